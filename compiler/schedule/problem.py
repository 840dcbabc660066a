"""A workload as one tensor expression, with the structure of its accesses.

Templates are generators of kernels. They analyse this structure, not operator names or shapes, to
decide whether they apply and to derive schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Node
from tilewright.compiler.loops.expr import (
    Cast,
    Combiner,
    Const,
    Expr,
    IndexValue,
    Load,
    Op,
    Operation,
    Reduce,
    Role,
    Tensor,
    finished,
    walk,
)
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.int8_casts import remove_int8_casts
from tilewright.compiler.loops.rewriting import substitute
from tilewright.compiler.loops.semantics import from_memory
from tilewright.compiler.memo import memo
from tilewright.compiler.ops.registry import OpKind, Source
from tilewright.compiler.plan.workload import Boundary, Workload


@dataclass(frozen=True)
class Problem:
    """A workload, or a part of its output, as one tensor expression.

    The expression computes `output[index] = expr` for all values of `axes`. For example,
    relu(add(conv(x, w), b)) becomes `max(Reduce(sum, (ic, kh, kw), x[..] * w[..]) + b[d1], 0)`.
    `inputs` are the workload's inputs as tensors with their layouts.
    """

    workload: Workload
    axes: tuple[Axis, ...]
    output: Load
    expr: Expr
    inputs: tuple[Tensor, ...]
    groups: tuple[Axis, ...] = ()
    """The outer axes of the dimensions that the argument `split` of `compose` divides, such as the
    groups of a grouped convolution."""

    @cached_property
    def parts(self) -> tuple[Expr, ...]:
        """Every distinct node of the expression, operands first."""
        return tuple(walk(self.expr))

    @cached_property
    def reductions(self) -> tuple[Reduce, ...]:
        """Every distinct reduction, inner ones first."""
        return tuple(node for node in self.parts if isinstance(node, Reduce))

    @property
    def reduction(self) -> Reduce:
        (reduction,) = self.reductions
        return reduction

    @cached_property
    def epilogue(self) -> Expr:
        """The expression with an `Accumulator` in place of its only reduction.

        It consists of the operations that follow the reduction.
        """
        reduction = self.reduction
        return substitute(self.expr, {reduction: finished(reduction)})

    @cached_property
    def product(self) -> tuple[Expr, Expr] | None:
        """The two factors, if the problem has a single reduction, which sums products; otherwise
        None.
        """
        if len(self.reductions) != 1 or self.reduction.combiner is not Combiner.SUM:
            return None
        match self.reduction.body:
            case Op(operation=Operation.MUL, args=(left, right)):
                return left, right
        return None


def is_one_expression(workload: Workload) -> bool:
    """Whether the same expression computes every element of the output.

    It is false, for example, for a concatenation.
    """
    return all(ops.get(node.op).kind is not OpKind.PIECES for node in workload.graph.nodes)


def boundaries(workload: Workload) -> tuple[tuple[Tensor, ...], Tensor]:
    """The inputs and the output of a workload, with their memory layouts."""
    inputs = tuple(
        _boundary(f"in{n}", each, Role.WEIGHT if each.constant else Role.INPUT)
        for n, each in enumerate(workload.inputs)
    )
    return inputs, _boundary("out", workload.output, Role.OUTPUT)


def _boundary(name: str, boundary: Boundary, role: Role) -> Tensor:
    kind = boundary.type
    return Tensor(name, kind.shape, kind.dtype, boundary.layout, boundary.halo, role=role)


@memo(256)
def compose(workload: Workload, split: tuple[tuple[int, int], ...] = ()) -> Problem:
    """Return a workload as one tensor expression over the axes of its output.

    `split` divides output dimensions into two axes: each pair is a dimension and the extent of its
    inner axis. The dimension's index becomes `outer * extent + inner`. For example, the channels of
    a grouped convolution are split into groups.
    """
    graph = workload.graph
    axes: list[Axis] = []
    groups: list[Axis] = []
    index: list[Affine] = []
    for dim, extent in enumerate(workload.output.type.shape):
        inner = dict(split).get(dim)
        if inner is None:
            axis = Axis(f"d{dim}", extent)
            axes.append(axis)
            index.append(affine(axis))
        else:
            outer, axis = Axis(f"g{dim}", extent // inner), Axis(f"d{dim}", inner)
            axes += [outer, axis]
            groups.append(outer)
            index.append(outer * inner + axis)
    inputs, tensor = boundaries(workload)
    sources = dict(zip(graph.inputs, inputs, strict=True))
    builder = _Composer(workload, sources)
    expr = remove_int8_casts(builder.value(graph.outputs[0], tuple(index)))
    return Problem(workload, tuple(axes), Load(tensor, tuple(index)), expr, inputs, tuple(groups))


class _Composer:
    """Composes operators' expressions from a graph's output back to its inputs."""

    def __init__(self, workload: Workload, sources: Mapping[str, Tensor]) -> None:
        self._graph = workload.graph
        self._sources = sources
        self._fresh: dict[str, int] = {}
        self._memo: dict[tuple[str, tuple[Affine, ...]], Expr] = {}

    def value(self, name: str, index: tuple[Affine, ...]) -> Expr:
        """Return the expression of a value's element at `index`."""
        tensor = self._sources.get(name)
        if tensor is not None:
            return Load(tensor, index)
        key = name, index
        if key not in self._memo:
            self._memo[key] = self._element(name, index)
        return self._memo[key]

    def _element(self, name: str, index: tuple[Affine, ...]) -> Expr:
        constant = self._graph.constants.get(name)
        if constant is not None:
            dtype = self._graph.types[name].dtype
            if constant.size != 1:
                raise ValueError(f"'{name}': a constant in a workload is a scalar")
            return Const(from_memory(constant.reshape(-1), dtype)[0].item(), dtype)
        node = self._graph.producer(name)
        assert node is not None
        operator = ops.get(node.op)
        return operator.expression(
            [self._source(value) for value in node.inputs],
            [self._graph.types[value] for value in node.inputs],
            node.attrs,
            index,
            self._axis,
        )

    def _source(self, name: str) -> Source:
        def read(index: tuple[Affine, ...], indirect: tuple[tuple[int, Expr], ...] = ()) -> Expr:
            if not indirect:
                return self.value(name, index)
            tensor = self._sources.get(name)
            if tensor is not None:
                return Load(tensor, index, indirect)
            node = self._graph.producer(name)
            if node is None or ops.get(node.op).kind is not OpKind.ELEMENTWISE or node.inputs[1:]:
                raise ValueError(f"'{name}' is read indirectly and must be an input")
            inner = self._source(node.inputs[0])

            def moved(
                index: tuple[Affine, ...], indirect: tuple[tuple[int, Expr], ...] = indirect
            ) -> Expr:
                return inner(index, indirect)

            kinds = [self._graph.types[node.inputs[0]]]
            return ops.get(node.op).expression([moved], kinds, node.attrs, index, self._axis)

        return read

    def _axis(self, name: str, extent: int) -> Axis:
        number = self._fresh.get(name, 0)
        self._fresh[name] = number + 1
        return Axis(f"{name}{number}" if number else name, extent)


def anchor(workload: Workload) -> Node | None:
    """Return the first node that determines the loop structure, or None.

    It is a contraction, window, reduction, row operation or attention.
    """
    anchors = (
        OpKind.CONTRACTION,
        OpKind.WINDOW,
        OpKind.REDUCTION,
        OpKind.ROW,
        OpKind.ATTENTION,
    )
    return next((n for n in workload.graph.nodes if ops.get(n.op).kind in anchors), None)


def axes_of(expr: Expr) -> frozenset[Axis]:
    """Return every axis that an expression depends on, through indices of loads or index values."""
    found: set[Axis] = set()
    for node in walk(expr):
        match node:
            case Load(index=index):
                found.update(axis for position in index for axis in position.axes())
            case IndexValue(index=position):
                found.update(position.axes())
    return frozenset(found)


def stored(factor: Expr) -> Expr:
    """Return the load inside a cast of a loaded value; any other factor is returned unchanged.

    The register tile loads a factor in its stored type, and casts it before the multiplication.
    """
    match factor:
        case Cast(value=Load() as load):
            return load
    return factor
