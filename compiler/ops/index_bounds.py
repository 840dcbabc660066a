"""Range analysis of gather indices that are computed from dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from tilewright.compiler.ops.attributes import axis_of, integer, ints
from tilewright.compiler.ops.builder import GraphBuilder
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.sizes import (
    Dimension,
    DynamicSizeError,
    SizeErrorContext,
    always_at_most,
    always_less,
    dimensions,
    dynamic_size,
    is_dynamic,
    substituted,
)

_SAME = frozenset({"cast", "concat", "expand", "identity", "reshape", "slice", "transpose"})
"""Operators that only move elements, or change their type."""

_DEPTH = 8
"""Maximum number of consecutive nodes of an index computation that are analysed."""

_ENDS = 64
"""Maximum number of sizes that bound an operand in an index computation. Operands with more are not
analysed."""


def sizes_within(node: OnnxNode, indices: str, extent: int) -> tuple[int, ...]:
    """Return the sizes that each run must compare with `extent`, so that no index is out of range.

    All indices are in range if every returned size is at most `extent`. A returned size is a sum of
    several dynamic dimensions, such as `past + tokens`. It exceeds `extent` only if more than one
    of these dimensions is large. Indices that depend on data, or that a condition selects, are not
    analysed: the gather clamps them at run time.

    Raises:
        InvalidModelError: if an index is out of range for all values of the dynamic dimensions.
        DynamicSizeError: if a single large dimension makes an index too large, or if a negative
            index is before the first element for some values of the dimensions only.
    """
    builder = node.builder
    before_end = _Question(builder, extent, lambda item: always_less(item, extent), "min")
    beyond = _holds(before_end, indices, _DEPTH)
    if isinstance(beyond, tuple):
        for item in beyond:
            if always_at_most(extent, item):
                raise node.invalid(_out_of_range(item, extent))
            check_single_dimension(item, extent)
        return tuple(dict.fromkeys(item + 1 for item in beyond))
    from_start = _Question(builder, extent, lambda item: always_at_most(-extent, item), "max")
    below = _holds(from_start, indices, _DEPTH)
    if isinstance(below, tuple) and not -extent <= below[0]:
        raise node.invalid(_out_of_range(below[0], extent))
    return ()


def check_single_dimension(item: int, extent: int) -> None:
    """Check that no single dimension can make an index, such as `past + tokens - 1`, too large.

    Each dynamic dimension takes all sizes of its range, while the others have their smallest sizes.
    The index `item` must then be below `extent`.

    Raises:
        DynamicSizeError: if a dimension can make the index too large.
    """
    for dimension in dimensions(item, extent):

        def smallest(other: Dimension, own: Dimension = dimension) -> int:
            return dynamic_size(other) // other.multiple if other == own else other.low

        alone, end = (substituted(size, smallest) for size in (item, extent))
        with SizeErrorContext(never_above=True):
            if not alone < end:
                raise DynamicSizeError(_out_of_range(alone, end))


def _out_of_range(item: int, extent: int) -> str:
    return f"position {item} is out of range for {extent} elements"


_Answer = bool | tuple[int, ...] | None
"""The result of checking a condition for all indices: True if it always holds; the dynamic indices
for which it depends on sizes; None if nothing is known; False if fixed integers violate it, which
other code reports."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A bounds check of indices, against either the end or the start of a dimension.

    Attributes:
        builder: the graph that computes the indices.
        extent: the number of elements along the dimension.
        always: returns whether an index passes the check for all values of the dynamic sizes.
        enough: the operator whose result passes the check if one of its operands does: "min" for
            the end, "max" for the start.
    """

    builder: GraphBuilder
    extent: int
    always: Callable[[int], bool]
    enough: str

    def of(self, item: int) -> _Answer:
        if self.always(item):
            return True
        return (item,) if is_dynamic(item) or is_dynamic(self.extent) else False


def _holds(question: _Question, value: str, depth: int) -> _Answer:
    ends = _ends(question.builder, value, depth)
    node = question.builder.maker(value)
    if ends is not None:
        found = [question.of(item) for item in ends]
    elif node is not None and depth and node.op in (*_SAME, "min", "max"):
        found = [_holds(question, operand, depth - 1) for operand in node.inputs]
        if node.op == question.enough:
            for known in (True, None):
                if any(each is known for each in found):
                    return known
    else:
        return None
    failed = tuple(item for each in found if isinstance(each, tuple) for item in each)
    if failed:
        return failed
    return next((each for each in found if each is not True), True)


def _ends(builder: GraphBuilder, value: str, depth: int) -> tuple[int, ...] | None:
    """Return sizes that bound the elements of a value; None if no bounds are known.

    In each run, every element lies between the smallest and the largest of these sizes. At most
    `depth` consecutive nodes of the value's computation are analysed.
    """
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
