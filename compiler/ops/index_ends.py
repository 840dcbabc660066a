"""How far positions reach that are counted from sizes: what a gather of them may read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

    Positions that depend on data are not known here, and clamped when they are read. So are those
    that a condition chooses: it may be what keeps them within.

    Raises:
        OpenSizeError: if whether one lies within depends on the run.
    """
    for ask, enough in ((lambda item: item < extent, "min"), (lambda item: -extent <= item, "max")):
        found = _holds(_Question(builder, extent, ask, enough), indices, _DEPTH)
        if isinstance(found, OpenSizeError):
            raise found


@dataclass(frozen=True, slots=True)
class _Question:
    """Whether positions lie on the right side of one end of `extent` elements.

    Of the operands of `enough`, one that does is enough.
    """

    builder: GraphBuilder
    extent: int
    ask: Callable[[int], bool]
    enough: str

    def of(self, item: int) -> _Answer:
        try:
            if self.ask(item):
                return True
        except OpenSizeError as error:
            return error
        if not is_open(item) and not is_open(self.extent):
            return False
        return OpenSizeError(f"position {item} is out of range for {self.extent} elements")


_Answer = bool | OpenSizeError | None
"""Whether it is so for all elements: an error is about one for which it is not at some sizes. None
is not known, and False what numbers alone say, which is none of ours."""


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
    errors = [each for each in found if isinstance(each, OpenSizeError)]
    return errors[0] if errors else next((each for each in found if each is not True), True)


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
