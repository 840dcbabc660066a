"""The text form of a loop nest. docs/loops.md explains it; `parse_nest` of the tests reads it back.

kernel matmul
  axes m = 128, n = 3072, k = 768
  buffer A: input float32[128, 768] layout(row)
  buffer B: weight float32[768, 3072] layout(1/48 0 1%48)
  buffer C: output float32[128, 3072] layout(row)
  stage main
    for m in 128 by 8 parallel
      for n in 3072 by 48
        compute sum mul(A[m, k], B[k, n])
          reduce k by 4
          unroll k by 1, m by 1, n by 16
          vector n
          store C[m, n] = acc
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from numbers import Integral

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    Fold,
    Incoming,
    IndexValue,
    Item,
    Items,
    Load,
    Op,
    Reduce,
    Space,
    Tee,
    Tensor,
    children,
    walk,
)
from tilewright.compiler.loops.index import Affine, Axis, FloorDiv, Term, number_text, sum_text
from tilewright.compiler.loops.nest import Binding, Compute, LoopNest, Node, Order, Tile

RESERVED = frozenset({"acc", "inf", "nan"})
"""Words with a special meaning in expressions of the text form. A name that is one of these words
is quoted."""


def print_nest(nest: LoopNest) -> str:
    """Return the text of a whole kernel."""
    return "\n".join(_Printer(nest).lines()) + "\n"


class _Printer:
    """Prints a loop nest as text, with a unique name for each axis and tensor."""

    def __init__(self, nest: LoopNest) -> None:
        self.nest = nest
        self.axes: dict[Axis, str] = {}
        self.tensors: dict[Tensor, str] = {}
        for tensor in (*nest.buffers, *nest.scratch):
            self._name_tensor(tensor)
        for axis in nest.axes:
            self.axes[axis] = _unique(axis.name, self.axes.values())
        for compute in nest.computes:
            for expr in _expressions(compute):
                self._name_tensors(expr)

    # ---- names

    def _name_tensor(self, tensor: Tensor) -> None:
        if tensor not in self.tensors:
            self.tensors[tensor] = _unique(tensor.name, self.tensors.values())

    def _name_tensors(self, expr: Expr) -> None:
        for node in walk(expr):
            match node:
                case Load(tensor=tensor):
                    self._name_tensor(tensor)
                case Tee(target=target):
                    self._name_tensors(target)

    # ---- lines

    def lines(self) -> Iterator[str]:
        nest = self.nest
        yield f"kernel {quoted(nest.name)}"
        if sizes := nest.sizes:
            yield "  sizes " + ", ".join(f"{d} {d.range_text}" for d in sizes)
        if self.axes:
            named = (f"{self._axis(axis)} = {axis.extent}" for axis in self.axes)
            yield "  axes " + ", ".join(named)
        declared = (*nest.buffers, *nest.scratch)
        for tensor in nest.buffers:
            yield f"  buffer {self._declaration(tensor)}"
        for tensor in nest.scratch:
            yield f"  scratch {self._declaration(tensor)}"
        for tensor in self.tensors:
            if tensor not in declared:
                yield f"  tensor {self._declaration(tensor)}"
        for stage in nest.stages:
            yield f"  stage {quoted(stage.name)}"
            for node in stage.body:
                yield from self._node(node, 2)

    def _declaration(self, tensor: Tensor) -> str:
        shape = ", ".join(map(str, tensor.shape))
        text = f"{quoted(self.tensors[tensor])}: {tensor.role} {tensor.dtype}[{shape}]"
        text += f" layout({tensor.layout})"
        if tensor.halo:
            text += f" halo({', '.join(f'{low} {high}' for low, high in tensor.halo)})"
        if tensor.space is not Space.MEMORY:
            text += f" {tensor.space}"
        if tensor.values:
            text += f" values({', '.join(map(_number, tensor.values))})"
        return text

    def _node(self, node: Node, depth: int) -> Iterator[str]:
        if isinstance(node, Compute):
            yield from self._compute(node, "  " * depth)
            return
        text = f"for {self._axis(node.axis)} in {node.axis.extent} by {node.step}"
        if node.binding is not Binding.SERIAL:
            text += f" {node.binding}"
        text += " peel" * node.peel + " unroll" * node.unroll
        for let in node.lets:
            source = self._index(let.source)
            text += f" let {self._axis(let.axis)} = min({source}, {let.maximum})"
        yield "  " * depth + text
        for child in node.body:
            yield from self._node(child, depth + 1)

    def _compute(self, compute: Compute, indent: str) -> Iterator[str]:
        names: dict[Expr, str] = {}
        for shared in _shared(compute):
            text = self._expression(shared, names)
            names[shared] = f"%{len(names)}"
            yield f"{indent}let {names[shared]} = {text}"
        kind = self._combiner(compute.combiner, names) if compute.combiner else "map"
        line = f"{indent}compute {kind} {self._expression(compute.body, names)}"
        if compute.init is not None:
            line += f" from {self._expression(compute.init, names)}"
        yield line
        inner = indent + "  "
        if compute.reduce:
            yield f"{inner}reduce {', '.join(map(self._tile, compute.reduce))}"
        if compute.unroll:
            yield f"{inner}unroll {', '.join(map(self._tile, compute.unroll))}"
        if compute.vector is not None:
            yield f"{inner}vector {self._axis(compute.vector)}"
        if compute.partial:
            yield f"{inner}partial {', '.join(map(self._axis, compute.partial))}"
        if compute.order is not Order.GREEDY:
            yield f"{inner}order {compute.order}"
        if compute.skip_padding:
            yield f"{inner}skip-padding"
        if compute.store_vector is not None:
            yield f"{inner}store-vector {self._axis(compute.store_vector)}"
        if compute.dot is not None:
            yield f"{inner}dot {self._axis(compute.dot)}"
        if compute.rows is not None:
            yield f"{inner}rows {self._axis(compute.rows)}"
        if compute.prefetch:
            passes = f" over {', '.join(map(self._tile, compute.passes))}" if compute.passes else ""
            yield f"{inner}prefetch {compute.prefetch}{passes}"
        for store in compute.stores:
            target = self._expression(store.target, names)
            yield f"{inner}store {target} = {self._expression(store.value, names)}"

    def _tile(self, tile: Tile) -> str:
        return f"{self._axis(tile.axis)} by {tile.step}" + " unrolled" * tile.unroll

    # ---- expressions

    def _expression(self, expr: Expr, names: dict[Expr, str]) -> str:
        if expr in names:
            return names[expr]
        match expr:
            case Load():
                return self._load(expr, names)
            case Const(value=value, type=dtype):
                return _number(value) + _suffix(dtype)
            case IndexValue(index=index, type=dtype):
                return f"index({self._index(index)}, {dtype})"
            case Accumulator(type=dtype, number=number):
                return "acc" + (f"({number})" if number else "") + _suffix(dtype)
            case Incoming(type=dtype, number=number):
                return f"new({number})" + _suffix(dtype)
            case Items(values=values):
                return f"items({', '.join(self._expression(v, names) for v in values)})"
            case Item(reduction=reduction, number=number):
                return f"item({self._expression(reduction, names)}, {number})"
            case Op(operation=operation, args=args):
                return f"{operation}({', '.join(self._expression(a, names) for a in args)})"
            case Cast(value=value, type=dtype):
                return f"cast({self._expression(value, names)}, {dtype})"
            case Reduce(combiner=combiner, axes=axes, body=body):
                over = " ".join(map(self._axis, axes))
                kind = self._combiner(combiner, names)
                return f"reduce({kind}, [{over}], {self._expression(body, names)})"
            case Tee(value=value, target=target):
                return f"tee({self._expression(value, names)}, {self._load(target, names)})"
            case _:
                raise TypeError(f"no text form for {type(expr).__name__}")

    def _combiner(self, combiner: Combiner | Fold, names: dict[Expr, str]) -> str:
        if isinstance(combiner, Combiner):
            return combiner.value
        neutral, joined = (
            ", ".join(self._expression(e, names) for e in part)
            for part in (combiner.neutral, combiner.joined)
        )
        return f"fold([{neutral}], [{joined}])"

    def _load(self, load: Load, names: dict[Expr, str]) -> str:
        text = ", ".join(map(self._index, load.index))
        for dim, position in load.indirect:
            text += f"; {dim}: {self._expression(position, names)}"
        return f"{quoted(self.tensors[load.tensor])}[{text}]"

    def _axis(self, axis: Axis) -> str:
        return quoted(self.axes[axis])

    def _index(self, index: Affine) -> str:
        terms = ((self._term(term), coefficient) for term, coefficient in index.terms)
        return sum_text(terms, index.constant)

    def _term(self, term: Term) -> str:
        if isinstance(term, FloorDiv):
            return f"({self._axis(term.axis)}//{number_text(term.divisor)})"
        return self._axis(term)


def quoted(name: str) -> str:
    """Return a name unchanged if the grammar of the text form allows it, else as a JSON string."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.~]*", name) and name not in RESERVED
    return name if plain else json.dumps(name)


def _unique(name: str, taken: Iterable[str]) -> str:
    """Return a name that no other axis or tensor has.

    This is the name itself, or else `name~2`, `name~3` and so on.
    """
    handles, number = set(taken), 1
    handle = f"{name}~1" if re.search(r"~\d+$", name) else name
    while handle in handles:
        number += 1
        handle = f"{name}~{number}"
    return handle


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))


def _suffix(dtype: DType) -> str:
    return "" if dtype is DType.FLOAT32 else f":{dtype}"


def _expressions(compute: Compute) -> tuple[Expr, ...]:
    """The expressions in a Compute (a leaf of a loop nest), in the order of its text."""
    fold = compute.combiner.joined if isinstance(compute.combiner, Fold) else ()
    init = () if compute.init is None else (compute.init,)
    stores = (e for store in compute.stores for e in (store.target, store.value))
    return (*fold, compute.body, *init, *stores)


def _shared(compute: Compute) -> list[Expr]:
    """The operations that occur more than once in a Compute (a leaf of a loop nest).

    Operands come before the operations that use them. The text defines each of the operations once,
    as a named `let`.
    """
    uses: Counter[Expr] = Counter()
    nodes: dict[Expr, None] = {}
    for expr in _expressions(compute):
        uses[expr] += 1
        for node in walk(expr):
            if node not in nodes:
                nodes[node] = None
                uses.update(children(node))
    return [n for n in nodes if uses[n] > 1 and isinstance(n, Op | Cast | Reduce | Item | Tee)]
