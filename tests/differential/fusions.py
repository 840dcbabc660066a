"""Random graphs of the graph IR's own operators, sampled from their registry.

An operator needs a generator here only if its kind does not define its operands. Each node is run
as soon as it is generated, in float32 and in float64. It is rejected and generated again if the two
results differ by more than rounding, are not finite or grow large, so that a whole graph is well
conditioned. Where a result jumps (comparisons, rounding, places of maxima), operands are small
integers, which stay exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.graphs import Maker
from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import AttrValue, Graph
from tilewright.compiler.graph.verify import verify_graph
from tilewright.compiler.ops.registry import OpKind, operators

Array = np.ndarray[Any, Any]
Random = np.random.Generator
Attrs = dict[str, AttrValue]

LARGEST = 1000.0
CONDITION = 1e-4
"""Relative difference of float32 and float64 from which on a result counts as badly conditioned."""
ELEMENTS = 1 << 14
ATTEMPTS = 24

EXACT = frozenset(
    ["relu", "neg", "abs", "max", "min", "identity", "where", "clip", "transpose", "slice",
     "expand", "reshape", "concat", "pad", "gather", "max_pool", "reduce_max", "reduce_min"]
)  # fmt: skip
"""Operators that give one of their operands, but for its sign."""
JUMPING = frozenset(
    ["floor", "ceil", "round", "sign", "mod", "equal", "less", "less_or_equal", "greater",
     "greater_or_equal", "arg_max", "arg_min", "cast", "is_inf", "is_nan"]
)  # fmt: skip
TRUTHS = frozenset(
    ["logical_and", "logical_or", "logical_xor", "logical_not", "where", "identity", "cast",
     "equal", "transpose", "slice", "expand", "reshape", "concat", "gather"]
)  # fmt: skip
"""Operators of truth values."""

APART = {
    OpKind.NATIVE: "no kernel",
    OpKind.CONTROL: "no kernel",
    "field": "part of the result of control flow",
    "bitcast": "the bits of a float have no neighbours that are alike",
    "labelled": "text as positions, which only an output is",
}
"""Kinds and operators that the generator leaves out, and why."""


class Rejected(Exception):
    """The operator does not apply to the sampled operands."""


def drawn() -> tuple[str, ...]:
    """Every operator that a fusion may contain or have as a neighbour."""
    return tuple(
        sorted(n for n, o in operators().items() if n not in APART and o.kind not in APART)
    )


class Grower:
    """A graph under construction: `values` are the values that the next node may read."""

    def __init__(self, random: Random, lanes: int) -> None:
        self.random = random
        self.make = Maker(int(random.integers(1 << 30)))
        self.inputs: dict[str, Array] = {}
        self.values: list[str] = []
        self.grown: list[str] = []
        self.exact: set[str] = set()
        self._arrays: dict[str, tuple[Array, Array]] = {}
        channels = lanes * self.pick(1, 2, 2, 3) + self.pick(0, 0, 0, lanes // 2, 1)
        height, width = self.extent(1, 9), self.extent(1, 20)
        image = self.input(1, 3, height, width)
        self.values.append(self.conv(image, channels, self.pick(1, 3)))
        self.values.append(self.conv(image, channels, 1))
        self.values.append(self.input(1, channels, 1, 1))
        self.values.append(self.input(self.extent(1, 40), self.extent(1, 40)))
        self.values.append(self.input(*self.make.types[self.values[0]].shape[2:]))
        self.values.append(self.input(3, 5, dtype=DType.INT64))
        self.values.append(self.input(1, channels, height, 1, dtype=DType.BOOL))

    # ---- choices

    def pick(self, *values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def extent(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return int(self.random.integers(low, high + 1))

    def some(self, *, rank: int | None = None, floats: bool = False, exact: bool = False) -> str:
        """A value, of the last ones rather than of the first."""
        types = self.make.types
        fits = [
            v
            for v in self.values
            if (rank is None or len(types[v].shape) == rank)
            and (not floats or types[v].dtype is DType.FLOAT32)
            and (not exact or v in self.exact)
        ]
        if not fits:
            raise Rejected
        return fits[-1 - min(int(self.random.geometric(0.7)) - 1, len(fits) - 1)]

    # ---- values

    def input(self, *shape: int, dtype: DType = DType.FLOAT32) -> str:
        name = self.make.input(f"x{len(self.inputs)}", *shape, dtype=dtype)
        low, high = (0, 2) if dtype is DType.BOOL else (-4, 5)
        array = self.random.integers(low, high, shape).astype(dtype.numpy)
        self.inputs[name] = array
        return self._known(name, array)

    def weight(self, *shape: int) -> str:
        """A constant or an input of small integers."""
        if self.random.integers(2):
            return self.input(*shape)
        return self.known(self.random.integers(-1, 2, shape).astype(np.float32))

    def known(self, array: Array) -> str:
        """A constant."""
        return self._known(self.make.constant(f"c{len(self.make.constants)}", array), array)

    def _known(self, name: str, array: Array) -> str:
        wide = array.astype(np.float64) if array.dtype == np.float32 else array
        self._arrays[name] = array, wide
        self.exact.add(name)
        return name

    def conv(self, x: str, filters: int, size: int) -> str:
        w = self.weight(filters, self.make.types[x].shape[1], size, size)
        pad = size // 2
        return self.add("conv", [x, w], strides=(1, 1), pads=(pad,) * 4, dilations=(1, 1), group=1)

    def add(self, op: str, inputs: Sequence[str], **attrs: AttrValue) -> str:
        """Add a node, if its operator accepts these operands and its result is well conditioned."""
        make, operator, pairs = self.make, ops.get(op), tuple(sorted(attrs.items()))
        types = [make.types[v] for v in inputs]
        try:
            kind = operator.infer(types, pairs)
        except InvalidModelError as error:
            raise Rejected from error
        if not 0 < kind.elements <= ELEMENTS:
            raise Rejected
        if types and types[0].dtype is DType.BOOL and op not in TRUTHS:
            raise Rejected
        exact = all(v in self.exact for v in inputs)
        if op in JUMPING and not exact:
            raise Rejected
        arrays = [self._arrays[v] for v in inputs]
        with np.errstate(all="ignore"):
            narrow, wide = (
                np.asarray(operator.reference([pair[i] for pair in arrays], pairs)) for i in (0, 1)
            )
        if kind.dtype.is_float:
            scale = max(1.0, float(np.abs(wide).max()))
            if not np.isfinite(wide).all() or scale > LARGEST:
                raise Rejected
            if not np.abs(wide - narrow).max() <= CONDITION * scale:
                raise Rejected  # not a number, too
            narrow, wide = narrow.astype(np.float32), wide.astype(np.float64)
        name = make(op, *inputs, **attrs)
        self._arrays[name] = narrow.reshape(kind.shape), wide.reshape(kind.shape)
        if exact and (op in EXACT or not kind.dtype.is_float or np.array_equal(narrow, wide)):
            self.exact.add(name)
        return name

    # ---- nodes

    def grow(self, op: str) -> None:
        """Add one more node of this operator, and the values that it needs.

        Raises:
            Rejected: if it applies to nothing.
        """
        for _ in range(ATTEMPTS):
            nodes, values = len(self.make.nodes), len(self.values)
            try:
                self.values.append(_generator(op)(self, op))
                self.grown.append(self.values[-1])
                return
            except Rejected:
                del self.make.nodes[nodes:], self.values[values:]
        raise Rejected

    def graph(self) -> Graph:
        """The generated graph: its outputs are the values that nothing reads, and at times another
        one."""
        make, read = self.make, {v for node in self.make.nodes for v in node.inputs}
        outputs = [v for v in self.grown if v not in read]
        if self.random.integers(3) == 0:
            outputs.append(self.pick(*self.grown))
        alive, nodes = {*outputs}, []
        for node in reversed(make.nodes):
            if node.output in alive:
                nodes.append(node)
                alive.update(node.inputs)
        made = Graph(
            "fusion",
            tuple(v for v in make.inputs if v in alive),
            tuple(dict.fromkeys(outputs)),
            tuple(reversed(nodes)),
            {v: kind for v, kind in make.types.items() if v in alive},
            {v: array for v, array in make.constants.items() if v in alive},
        )
        verify_graph(made)
        return made

    def shape(self, value: str) -> tuple[int, ...]:
        return self.make.types[value].shape

    def array(self, value: str) -> Array:
        return self._arrays[value][0]

    def axes(self, rank: int) -> tuple[int, ...]:
        """Some of the axes, at least one."""
        if not rank:
            raise Rejected
        count = self.extent(1, rank)
        return tuple(sorted(int(a) for a in self.random.permutation(rank)[:count]))


def _elementwise(g: Grower, op: str) -> str:
    """An operand, and the operator's further operands: of its shape, or broadcast to it."""
    first = g.some(exact=op in JUMPING)
    attrs = _ATTRIBUTES.get(op, lambda g: {})(g)
    for arity in (1, 2, 3):
        operands = [first, *(_beside(g, first) for _ in range(arity - 1))]
        if op == "where":
            if arity < 3:
                continue
            mask = [v for v in g.values if g.make.types[v].dtype is DType.BOOL]
            operands[0] = g.pick(*mask)
            operands = operands if g.random.integers(2) else [operands[0], operands[2], first]
        elif arity > 1 and g.random.integers(2):
            operands.reverse()
        try:
            return g.add(op, operands, **attrs)
        except Rejected:
            continue
    # a logarithm, a root, an inverse function: where it is defined, and not steep
    inside = g.add("sigmoid", [g.add("tanh", [first])])
    beyond = g.add("exp", [g.add("exp", [inside])])
    return g.add(op, [g.pick(inside, beyond)], **attrs)


def _beside(g: Grower, first: str) -> str:
    kind = g.make.types[first]
    if g.random.integers(3):
        return g.pick(*(v for v in g.values if g.make.types[v].dtype is kind.dtype))
    shape = tuple(e if g.random.integers(3) else 1 for e in kind.shape)
    return g.input(*shape[g.extent(0, len(shape)) :], dtype=kind.dtype)


_ATTRIBUTES: dict[str, Callable[[Grower], Attrs]] = {
    "cast": lambda g: {"to": g.pick("int32", "int64", "float32", "bool", "int8")},
    "clip": lambda g: {"min": -1.0, "max": 2.0},
    "selu": lambda g: {"alpha": 1.67, "gamma": 1.05},
    "mod": lambda g: {"fmod": g.pick(0, 1)},
}


def _transpose(g: Grower, op: str) -> str:
    x = g.some()
    return g.add(op, [x], perm=tuple(map(int, g.random.permutation(len(g.shape(x))))))


def _slice(g: Grower, op: str) -> str:
    x = g.some()
    starts, steps, sizes = [], [], []
    for extent in g.shape(x):
        step = g.pick(1, 1, 1, 1, 2, -1)
        size = extent if g.random.integers(2) and abs(step) == 1 else g.extent(1, extent)
        size = min(size, -(-extent // abs(step)))
        reach = (size - 1) * abs(step)
        low = g.pick(0, extent - 1 - reach, g.extent(0, extent - 1 - reach))
        starts.append(low if step > 0 else low + reach)
        steps.append(step)
        sizes.append(size)
    return g.add(op, [x], starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))


def _expand(g: Grower, op: str) -> str:
    x = g.some()
    if 1 not in g.shape(x):
        axis = g.extent(0, len(g.shape(x)) - 1) if g.shape(x) else 0
        if not g.shape(x):
            raise Rejected
        starts = tuple(g.extent(0, e - 1) if d == axis else 0 for d, e in enumerate(g.shape(x)))
        sizes = tuple(1 if d == axis else e for d, e in enumerate(g.shape(x)))
        x = g.add("slice", [x], starts=starts, steps=(1,) * len(sizes), sizes=sizes)
    shape = tuple(g.pick(1, g.extent(2, 20)) if e == 1 else e for e in g.shape(x))
    more = (g.extent(2, 4),) if len(shape) < 4 and g.random.integers(2) else ()
    return g.add(op, [x], shape=(*more, *shape))


def _reshape(g: Grower, op: str) -> str:
    x = g.some()
    shape = list(g.shape(x))
    if len(shape) < 2:
        raise Rejected
    at = g.extent(0, len(shape) - 2)
    if g.random.integers(2):
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    else:
        shape[at], shape[at + 1] = shape[at + 1], shape[at]
    return g.add(op, [x], shape=tuple(shape))


def _reduction(g: Grower, op: str) -> str:
    x = g.some()
    axes = g.axes(len(g.shape(x)))
    keepdims = g.pick(0, 1)
    if op == "reduce_prod" and np.prod(np.maximum(np.abs(g.array(x)), 1.0), dtype=float) > 1e30:
        raise Rejected  # parts of it overflow, in some order
    if op.startswith("arg"):
        return g.add(op, [x], axis=axes[0], keepdims=keepdims, last=g.pick(0, 1))
    return g.add(op, [x], axes=axes, keepdims=keepdims)


def _row(g: Grower, op: str) -> str:
    x = g.some(floats=True)
    shape = g.shape(x)
    (axis, *_) = g.axes(len(shape))
    if op in ("softmax", "log_softmax"):
        return g.add(op, [x], axis=axis)
    if op == "layer_norm":
        operands = [x, g.input(*shape[axis:]), g.input(*shape[axis:])]
        return g.add(op, operands, axis=axis, epsilon=1e-1)
    if len(shape) < 2:
        raise Rejected
    scale, shift, mean = (g.input(shape[1]) for _ in range(3))
    spread = g.add("abs", [g.input(shape[1])])
    return g.add(op, [x, scale, shift, mean, spread], epsilon=1e-1)


def _iota(g: Grower, op: str) -> str:
    """Counts along a dimension of another value, and added to it."""
    x = g.some()
    shape = g.shape(x)
    axis = g.extent(0, len(shape) - 1) if shape else 0
    counted = g.add(
        op, [], dtype=g.make.types[x].dtype.value, axis=axis, start=g.extent(-3, 3),
        step=g.pick(0, 1, 2), shape=tuple(e if d == axis else 1 for d, e in enumerate(shape)),
    )  # fmt: skip
    return g.add("add", [x, counted])


def _lrn(g: Grower, op: str) -> str:
    return g.add(op, [g.some(floats=True)], size=g.pick(3, 5), alpha=0.5, beta=0.75, bias=1.5)


def _pool(g: Grower, op: str) -> str:
    x = g.some(rank=4)
    size, step, pad = g.pick(1, 2, 3), g.pick(1, 2), g.pick(0, 1)
    if pad >= size:
        raise Rejected
    more: Attrs = {"count_include_pad": 1} if op == "average_pool" else {}
    return g.add(
        op, [x], kernel=(size,) * 2, strides=(step,) * 2, pads=(pad,) * 4, dilations=(1, 1), **more
    )


def _conv(g: Grower, op: str) -> str:
    return g.conv(g.some(rank=4, floats=True), g.pick(3, 8, 16, 32), g.pick(1, 3))


def _matmul(g: Grower, op: str) -> str:
    x = g.some(rank=2 if op == "gemm" else None, floats=True)
    shape = g.shape(x)
    if len(shape) < 2:
        raise Rejected
    if g.random.integers(2):
        return g.add(op, [x, g.weight(shape[-1], g.extent(1, 40))])
    return g.add(op, [g.weight(g.extent(1, 40), shape[-2]), x])


def _block_matmul(g: Grower, op: str) -> str:
    """Nibbles, eight to a word, with a scale for each sixteen of them."""
    x = g.some(rank=2, floats=True)
    if g.shape(x)[1] % 16:
        x = g.input(g.extent(1, 9), 16 * g.extent(1, 3))
    columns, depth = g.extent(1, 20), g.shape(x)[1]
    words = g.random.integers(0, 2**32, (columns, depth // 8), np.uint32)
    return g.add(op, [x, g.known(words), g.weight(columns, depth // 16)], bits=4, block=16)


def _attention(g: Grower, op: str) -> str:
    x = g.some(rank=4, floats=True)
    n, heads, _tokens, size = g.shape(x)
    if g.random.integers(2):
        return g.add(op, [x, x, x], scale=0.1, causal=g.pick(0, 1), past=0)
    keys = g.extent(1, 20)
    operands = [x, g.input(n, heads, keys, size), g.input(n, heads, keys, g.extent(1, 20))]
    return g.add(op, operands, scale=0.1, causal=0, past=0)


def _concat(g: Grower, op: str) -> str:
    x = g.some()
    (axis, *_) = g.axes(len(g.shape(x)))
    fits = [
        v
        for v in g.values
        if g.make.types[v].dtype is g.make.types[x].dtype
        and len(g.shape(v)) == len(g.shape(x))
        and all(
            a == b for d, (a, b) in enumerate(zip(g.shape(v), g.shape(x), strict=True)) if d != axis
        )
    ]
    return g.add(op, [x, *(g.pick(*fits) for _ in range(g.extent(1, 2)))], axis=axis)


def _pad(g: Grower, op: str) -> str:
    x = g.some()
    rank = len(g.shape(x))
    if not rank:
        raise Rejected
    return g.add(op, [x], pads=tuple(g.pick(0, 1, 3) for _ in range(2 * rank)), value=0.5)


def _extend(g: Grower, op: str) -> str:
    x = g.some()
    rank = len(g.shape(x))
    if not rank or 0 in g.shape(x):
        raise Rejected
    return g.add(op, [x], pads=tuple(g.pick(0, 1) for _ in range(2 * rank)), mode="edge")


def _gather(g: Grower, op: str) -> str:
    x = g.some()
    (axis, *_) = g.axes(len(g.shape(x)))
    index = g.random.integers(0, g.shape(x)[axis], g.extent(1, 9))
    return g.add(op, [x, g.known(index)], axis=axis)


def _lookup(g: Grower, op: str) -> str:
    kinds = g.pick(DType.UINT8, DType.INT8), g.pick(np.uint8, np.int8)
    shape = g.shape(g.some())
    table = g.random.integers(0, 256, 256, np.uint8).view(kinds[1])
    return g.add(op, [g.input(*shape, dtype=kinds[0]), g.known(table)])


def _interpolate(g: Grower, op: str) -> str:
    """Two taps for each of some outputs, along one dimension or two."""
    x = g.some(floats=True)
    kind = g.make.types[x]
    dims = [dim for dim, extent in enumerate(kind.shape) if extent > 0]
    if not dims:
        raise Rejected
    axes = tuple(sorted({g.pick(*dims) for _ in range(2)}))
    operands = [x]
    for axis in axes:
        outputs = g.extent(1, 9)
        places = g.random.integers(0, kind.shape[axis], (2, outputs)).astype(np.int32)
        weights = g.random.uniform(0.25, 0.75, (2, outputs)).astype(kind.dtype.numpy)
        operands += [g.known(places), g.known(weights)]
    return g.add(op, operands, axes=axes)


_Generator = Callable[[Grower, str], str]

_KINDS: dict[OpKind, _Generator] = {
    OpKind.ELEMENTWISE: _elementwise, OpKind.REDUCTION: _reduction, OpKind.ROW: _row,
    OpKind.ATTENTION: _attention,
}  # fmt: skip

_OWN: dict[str, _Generator] = {
    "transpose": _transpose, "slice": _slice, "expand": _expand, "reshape": _reshape,
    "lrn": _lrn, "max_pool": _pool, "average_pool": _pool, "conv": _conv, "matmul": _matmul,
    "gemm": _matmul, "concat": _concat, "pad": _pad, "extend": _extend, "gather": _gather,
    "block_matmul": _block_matmul, "iota": _iota, "lookup": _lookup,
    "interpolate": _interpolate,
}  # fmt: skip


def _generator(op: str) -> _Generator:
    return _OWN.get(op) or _KINDS[ops.get(op).kind]
