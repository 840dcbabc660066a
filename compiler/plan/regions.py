"""Regions: values that share memory, each at a fixed distance in bytes from the others.

A reshape shares the bytes of its operand, a slice is a part of its operand, and the operands of a
concatenation are next to each other in its result. Joining two values joins their regions, so that
a chain of concatenations, each an operand of the next one (DenseNet), is one region. The algorithm
is a union-find with distances.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.compiler.sizes import disjoint, larger, smaller

ALIGNMENT_BYTES = 64
"""Alignment of every value in bytes. Kernels load whole vectors."""


@dataclass(slots=True, eq=False)
class Region:
    """Values that share memory, each at a fixed distance in bytes from the others.

    Attributes:
        members: the start of each value, in bytes from a common origin.
        low: the first byte of the region.
        high: the byte after its last byte.
        spans: the disjoint ranges that kernels write: first byte, and the byte after the last.
    """

    members: dict[str, int] = field(default_factory=dict)
    low: int = 0
    high: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return self.high - self.low


class Regions:
    """A partition of the values of a plan into regions, which `join` merges."""

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def add(self, value: str, size: int, *, written: bool = True) -> None:
        """Add a value of `size` bytes as a new region.

        `written` says whether a kernel writes the value; otherwise it is a view of others.
        """
        spans = [(0, size)] if written and size != 0 else []
        self._regions[value] = Region({value: 0}, 0, size, spans)

    def __contains__(self, value: str) -> bool:
        return value in self._regions

    def of(self, value: str) -> Region:
        """Return the region that contains a value."""
        return self._regions[value]

    def start(self, value: str) -> int:
        """Return the byte offset of a value from the first byte of its region."""
        region = self._regions[value]
        return region.members[value] - region.low

    def can_join(self, first: str, second: str, apart: int) -> bool:
        """Whether `second` may start `apart` bytes after `first`, for all dynamic sizes.

        The result is False if two kernels would write the same byte, or if the values are already
        at another distance in one region.
        """
        one, other = self._regions[first], self._regions[second]
        shift = one.members[first] + apart - other.members[second]
        if one is other:
            return shift == 0
        return all(
            disjoint(span, (a + shift, b + shift)) for a, b in other.spans for span in one.spans
        )

    def join(self, first: str, second: str, apart: int) -> None:
        """Merge the regions of two values, so that `second` starts `apart` bytes after `first`.

        Raises:
            ValueError: if both are in one region at another distance.
        """
        one, other = self._regions[first], self._regions[second]
        shift = one.members[first] + apart - other.members[second]
        if one is other:
            if shift:
                raise ValueError(f"'{second}' does not lie {apart} bytes after '{first}'")
            return
        if len(one.members) < len(other.members):
            one, other, shift = other, one, -shift
        for value, start in other.members.items():
            one.members[value] = start + shift
            self._regions[value] = one
        one.low = smaller(one.low, other.low + shift)
        one.high = larger(one.high, other.high + shift)
        one.spans += [(a + shift, b + shift) for a, b in other.spans]
