"""A slow evaluator of tensor expressions: their meaning, without a schedule or a compiler.

All elements of the output are computed side by side; reductions are loops over their points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import semantics
from tilewright.compiler.loops.expr import (
    Cast,
    Combiner,
    Const,
    Expr,
    IndexValue,
    Item,
    Load,
    Op,
    Reduce,
    Tensor,
    loads,
)
from tilewright.compiler.loops.index import Affine, Axis, FloorDiv, affine

Env = Mapping[Axis, np.ndarray]


_COMBINE = {
    Combiner.SUM: np.add,
    Combiner.PRODUCT: np.multiply,
    Combiner.MAX: np.maximum,
    Combiner.MIN: np.minimum,
}


def evaluate_operator(op: str, arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """The output of an operator by its tensor expression, or by its pieces."""
    operator = ops.get(op)
    types = [TensorType(semantics_dtype(a), a.shape) for a in arrays]
    result = operator.infer(types, attrs)
    if operator.pieces is not None:
        return _from_pieces(operator, types, arrays, attrs, result)
    tensors = [Tensor(f"x{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    axes = tuple(Axis(f"d{dim}", extent) for dim, extent in enumerate(result.shape))
    names: dict[str, int] = {}

    def fresh(name: str, extent: int) -> Axis:
        names[name] = names.get(name, 0) + 1
        return Axis(f"{name}_{names[name]}", extent)

    def source(tensor: Tensor) -> ops.Source:
        return lambda index, indirect=(): Load(tensor, index, indirect)

    expr = operator.expression(
        [source(t) for t in tensors], types, attrs, tuple(map(affine, axes)), fresh
    )
    points = np.indices(result.shape).reshape(len(axes), result.elements)
    env = dict(zip(axes, points, strict=True))
    with np.errstate(all="ignore"):
        values = _value(expr, env, {f"x{i}": a for i, a in enumerate(arrays)})
    count = result.elements
    return np.broadcast_to(values, (count,)).reshape(result.shape).astype(result.dtype.numpy)


def semantics_dtype(array: np.ndarray) -> DType:

    return DType(array.dtype.name)


def _from_pieces(
    operator: ops.Operator,
    types: Sequence[TensorType],
    arrays: Sequence[np.ndarray],
    attrs: Attrs,
    result: TensorType,
) -> np.ndarray:
    written = np.zeros(result.shape, int)
    output = np.empty(result.shape, result.dtype.numpy)
    assert operator.pieces is not None
    for piece in operator.pieces(types, attrs):
        box = tuple(slice(o, o + e) for o, e in zip(piece.offset, piece.extents, strict=True))
        fill = dict(attrs).get("value", 0.0)
        source = fill if piece.operand is None else arrays[piece.operand]
        if piece.starts:
            parts = zip(piece.starts, piece.steps, piece.extents, strict=True)
            places = [start + step * np.arange(extent) for start, step, extent in parts]
            source = np.asarray(source)[np.ix_(*places)]
        output[box] = source
        written[box] += 1
    assert (written >= 1).all(), "the pieces leave elements out"
    return output


def _value(expr: Expr, env: Env, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    memo: dict[Expr, np.ndarray] = {}

    def visit(node: Expr) -> np.ndarray:
        if node not in memo:
            memo[node] = compute(node)
        return memo[node]

    def compute(node: Expr) -> np.ndarray:
        match node:
            case Const(value=value, type=dtype):
                return np.asarray(value, semantics.compute_type(dtype))
            case IndexValue(index=index, type=dtype):
                return np.asarray(_index(index, env), dtype.numpy)
            case Load():
                positions = _positions(node, env, arrays)
                shape = node.tensor.shape
                inside = [np.clip(p, 0, e - 1) for p, e in zip(positions, shape, strict=True)]
                return np.asarray(arrays[node.tensor.name][tuple(inside)])
            case Op(operation=operation, args=args):
                constants = tuple(isinstance(a, Const) for a in args)
                return semantics.apply(operation, tuple(map(visit, args)), constants)
            case Cast(value=value, type=dtype):
                return semantics.cast(visit(value), dtype)
            case Reduce():
                (total,) = _reduced(node, env, arrays)
                return total
            case Item(reduction=reduction, number=number):
                return _reduced(reduction, env, arrays)[number]
        raise AssertionError(type(node))

    return visit(expr)


def _reduced(node: Reduce, env: Env, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    totals = semantics.neutral_items(node.combiner, node.body.dtype)
    for point in product(*(range(axis.extent) for axis in node.axes)):
        inner = {**env, **{a: np.asarray(p) for a, p in zip(node.axes, point, strict=True)}}
        items = [_value(item, inner, arrays) for item in semantics.items_of(node.body)]
        if isinstance(node.combiner, Combiner):
            joined: tuple[np.ndarray, ...] = (_COMBINE[node.combiner](*totals, *items),)
        else:
            joined = semantics.join(node.combiner, totals, items)
        inside = _takes_part(node.body, inner, arrays)
        totals = tuple(np.where(inside, j, t) for j, t in zip(joined, totals, strict=True))
    return totals


def _takes_part(body: Expr, env: Env, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Whether every load of a reduction's body lies within its tensor."""
    inside = np.asarray(True)
    for load in loads(body):
        for position, extent in zip(_positions(load, env, arrays), load.tensor.shape, strict=True):
            inside = inside & (position >= 0) & (position < extent)
    return inside


def _positions(load: Load, env: Env, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    # a load inside an inner reduction has axes that are not bound here; it is judged there
    positions = [np.asarray(_index(index, env)) for index in load.index]
    for dim, value in load.indirect:
        positions[dim] = positions[dim] + _value(value, env, arrays)
    return positions


def _index(index: Affine, env: Env) -> np.ndarray | int:
    total: np.ndarray | int = index.constant
    for term, coefficient in index.terms:
        if isinstance(term, FloorDiv):
            total = total + env.get(term.axis, np.asarray(0)) // term.divisor * coefficient
        else:
            total = total + env.get(term, np.asarray(0)) * coefficient
    return total
