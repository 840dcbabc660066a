"""Generators of nodes that move elements: reshapes, slices, gathers, scatters, resizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.differential.graphs import BOOL, FLOAT, INT, Array, Generator, Grower, Rejected, Value


def _transpose(g: Grower) -> None:
    value = g.some(g.pick([FLOAT, INT, BOOL]), least=1)
    order = g.draw(_permutations(value.rank))
    g.add("Transpose", [value], exact=True, perm=order)


def _permutations(rank: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(rank))


def _concat(g: Grower) -> None:
    first = g.some(least=1)
    axis = g.integer(0, first.rank - 1)
    others = [
        v
        for v in g.values
        if v.array.dtype == FLOAT
        and v.rank == first.rank
        and all(
            a == b or d == axis for d, (a, b) in enumerate(zip(v.shape, first.shape, strict=True))
        )
    ]
    more = [g.pick(others) for _ in range(g.integer(1, 2))]
    g.add("Concat", [first, *more], exact=True, axis=axis)


def _split(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.pick([d for d, extent in enumerate(value.shape) if extent > 1])
    at = g.integer(1, value.shape[axis] - 1)
    sizes = g.constant([at, value.shape[axis] - at], INT)
    g.add("Split", [value, sizes], outputs=2, exact=True, axis=axis)


def _slice(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.integer(0, value.rank - 1)
    extent = value.shape[axis]
    start, step = g.integer(-extent, extent - 1), g.pick([1, 1, 2, -1, -2])
    end = g.integer(-extent - 1, extent + 1)
    operands = [g.constant([n], INT) for n in (start, end, axis, step)]
    g.add("Slice", [value, *operands], exact=True)


def _pad(g: Grower) -> None:
    value = g.some(least=1)
    mode = g.pick(["constant", "constant", "reflect", "edge", "wrap"])
    if mode == "constant":
        sizes = [g.integer(-1, 2) for _ in range(2 * value.rank)]
    else:  # no element is reflected twice
        sizes = [g.integer(0, min(2, extent - 1)) for extent in 2 * value.shape]
    pads = g.constant(sizes, INT)
    fill = [g.constant(g.integer(-3, 3))] if mode == "constant" and g.flag() else []
    g.add("Pad", [value, pads, *fill], exact=True, mode=mode)


def _reshape(g: Grower) -> None:
    value = g.some(g.pick([FLOAT, FLOAT, INT, BOOL]), least=1)
    shape = list(value.shape)
    at = g.integer(0, len(shape) - 1)
    divisors = [d for d in range(1, shape[at] + 1) if shape[at] % d == 0]
    divisor = g.pick(divisors)
    shape[at : at + 1] = [divisor, shape[at] // divisor]
    if len(shape) > 1 and g.flag():
        at = g.integer(0, len(shape) - 2)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    if g.flag():
        shape[g.integer(0, len(shape) - 1)] = -1
    g.add("Reshape", [value, g.constant(shape, INT)], exact=True)


def _squeeze(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.pick([d for d, extent in enumerate(value.shape) if extent == 1])
    g.add("Squeeze", [value, g.constant([axis], INT)], exact=True)


def _unsqueeze(g: Grower) -> None:
    value = g.some()
    g.add("Unsqueeze", [value, g.constant([g.integer(0, value.rank)], INT)], exact=True)


def _expand(g: Grower) -> None:
    value = g.some()
    shape = [g.integer(2, 3) if extent == 1 else extent for extent in value.shape]
    shape = [g.integer(1, 3)] * g.integer(0, 1) + shape
    g.add("Expand", [value, g.constant(shape, INT)], exact=True)


def _tile(g: Grower) -> None:
    value = g.some(least=1)
    repeats = g.constant([g.integer(1, 3) for _ in value.shape], INT)
    g.add("Tile", [value, repeats], exact=True)


def _indices(g: Grower, shape: tuple[int, ...], extent: int) -> Value:
    """Places along an extent, also counted from its end; constant or not."""
    random = np.random.default_rng(g.integer(0, 99))
    array = random.integers(-extent, extent, shape)
    if g.flag():
        return g.constant(array, INT)
    value = g.input(shape, INT)
    g.inputs[value.name] = array
    g.values[-1] = Value(value.name, array, True)
    return g.values[-1]


def _gather(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.integer(0, value.rank - 1)
    shape = tuple(g.integer(1, 3) for _ in range(g.integer(0, 2)))
    places = _indices(g, shape, value.shape[axis])
    g.add("Gather", [value, places], exact=True, axis=axis)


def _gather_elements(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.integer(0, value.rank - 1)
    shape = tuple(g.integer(1, extent) for extent in value.shape)
    g.add("GatherElements", [value, _indices(g, shape, value.shape[axis])], exact=True, axis=axis)


def _gather_nd(g: Grower) -> None:
    value = g.some(least=1)
    depth = g.integer(1, value.rank)
    columns = [_places(g, 3, extent) for extent in value.shape[:depth]]
    g.add("GatherND", [value, g.constant(np.stack(columns, axis=-1), INT)], exact=True)


def _places(g: Grower, count: int, extent: int) -> Array:
    return np.random.default_rng(g.integer(0, 99)).integers(0, extent, count)


def _scatter_elements(g: Grower) -> None:
    value = g.some(least=1)
    axis = g.integer(0, value.rank - 1)
    reduction = g.pick(["none", "add", "max", "min"])
    shape = tuple(1 if d == axis and reduction == "none" else e for d, e in enumerate(value.shape))
    places = _indices(g, shape, value.shape[axis])
    g.add(
        "ScatterElements",
        [value, places, g.weight(*shape)],
        exact=True,
        axis=axis,
        reduction=reduction,
    )


def _scatter_nd(g: Grower) -> None:
    value = g.some(least=1)
    rows = g.draw(_permutations(value.shape[0]))[: g.integer(1, value.shape[0])]
    places = g.constant([[row] for row in rows], INT)
    updates = g.weight(len(rows), *value.shape[1:])
    g.add("ScatterND", [value, places, updates], exact=True, reduction=g.pick(["none", "add"]))


def _depth_to_space(g: Grower) -> None:
    value = g.some(rank=4)
    if value.shape[1] % 4:
        raise Rejected
    g.add("DepthToSpace", [value], exact=True, blocksize=2, mode=g.pick(["DCR", "CRD"]))


def _space_to_depth(g: Grower) -> None:
    value = g.some(rank=4)
    if value.shape[2] % 2 or value.shape[3] % 2:
        raise Rejected
    g.add("SpaceToDepth", [value], exact=True, blocksize=2)


def _resize(g: Grower) -> None:
    value = g.some(rank=4)
    sizes = [*value.shape[:2], *(e * g.pick([1, 2, 3]) for e in value.shape[2:])]
    mode = g.pick(["nearest", "linear"])
    form: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if mode == "linear":
        form = {"coordinate_transformation_mode": g.pick(["half_pixel", "align_corners"])}
    g.add("Resize", [value, None, None, g.constant(sizes, INT)], mode=mode, **form)


def _one_hot(g: Grower) -> None:
    depth = g.integer(2, 5)
    places = _indices(g, (g.integer(1, 4),), depth)
    values = g.constant([g.integer(-2, 0), g.integer(1, 3)])
    g.add("OneHot", [places, g.constant(depth, INT), values], exact=True, axis=g.integer(-1, 0))


def _trilu(g: Grower) -> None:
    value = g.some(least=2)
    k = g.constant(g.integer(-2, 2), INT)
    g.add("Trilu", [value, k], exact=True, upper=g.integer(0, 1))


MOVES: dict[str, Generator] = {
    "Transpose": _transpose, "Concat": _concat, "Split": _split, "Slice": _slice, "Pad": _pad,
    "Reshape": _reshape, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Expand": _expand,
    "Tile": _tile, "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
    "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "Resize": _resize,
    "OneHot": _one_hot, "Trilu": _trilu,
}  # fmt: skip
