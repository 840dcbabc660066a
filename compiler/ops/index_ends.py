"""How far positions reach that are counted from sizes: what a gather of them may read."""

from __future__ import annotations

from itertools import product

from compiler.ops.attributes import axis_of, integer, ints
from compiler.ops.builder import GraphBuilder
from compiler.sizes import OpenSizeError, is_open

_SAME = frozenset({"cast", "concat", "expand", "identity", "reshape", "slice", "transpose"})
"""Operators whose results are elements of their operands."""

_DEPTH = 8
"""Positions are computed in a few steps."""

_ENDS = 64
"""Sums of more ends are not looked at."""


def check_positions(builder: GraphBuilder, indices: str, extent: int) -> None:
    """Refuse positions that lie beyond `extent` elements at some sizes.

    Positions that depend on data are not known here, and clamped when they are read.

    Raises:
        OpenSizeError: if whether one lies within depends on the run.
    """
    for item in _ends(builder, indices, _DEPTH) or ():
        within = not (is_open(item) or is_open(extent)) or -extent <= item < extent
        if not within:
            raise OpenSizeError(f"position {item} is out of range for {extent} elements")


def _ends(builder: GraphBuilder, value: str, depth: int) -> tuple[int, ...] | None:
    """Sizes between which all elements lie; None where they are not known."""
    sizes, known = builder.sizes.get(value), builder.known(value)
    if sizes is not None:
        return tuple(sizes.flat)
    if known is not None:
        whole = known.size and known.dtype.kind in "iu"
        return (int(known.min()), int(known.max())) if whole else None
    node = builder.maker(value)
    if node is None or not depth:
        return None
    if node.op == "iota":
        start, step = integer(node.attrs, "start"), integer(node.attrs, "step")
        shape = ints(node.attrs, "shape")
        count = shape[axis_of(node.attrs, len(shape), -1)] if shape else 1
        return start, start + step * (count - 1)
    parts = []
    for operand in node.inputs:
        part = _ends(builder, operand, depth - 1)
        if part is None or len(part) > _ENDS:
            return None
        parts.append(part)
    if node.op in _SAME:
        return tuple(item for part in parts for item in part)
    if node.op in ("add", "sub"):
        sign = 1 if node.op == "add" else -1
        return tuple(a + sign * b for a, b in product(*parts))
    return None
