"""Substitution of fixed sizes for the dynamic dimensions of a loop nest."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.compiler.loops.index import Affine, Axis, FloorDiv, Term
from tilewright.compiler.sizes import Size, at, check_values, dimensions, is_dynamic


class SameAxisError(Exception):
    """Raised if a substitution gives the same extent to two axes with the same name.

    The axes have different dynamic extents. With equal ones, they would become the same axis, and
    the nest would change its meaning.
    """


class SizeSubstitution:
    """A callable that replaces the dynamic sizes in an extent, an axis or an index by fixed sizes.

    The argument `values` of the constructor has the fixed size of each dimension by name. Results
    are memoised, because a search substitutes in hundreds of nests, and the same few sizes occur at
    hundreds of places in each.

    A call raises SameAxisError if two different axes become equal, ValueError for a size outside
    its dimension's range, and KeyError for a dimension without a size.
    """

    KINDS = (Size, Axis, Affine)
    """Types of the objects that a call replaces; an argument of `compiler.sizes.replaced`."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self._values = values
        self._numbers: dict[int, int] = {}
        self._axes: dict[Axis, Axis] = {}
        self._taken: set[Axis] = set()
        self._indices: dict[Affine, Affine | None] = {}  # None: unchanged

    def __call__(self, part: Size | Axis | Affine) -> int | Axis | Affine:
        match part:
            case Axis():
                return self._axis(part)
            case Affine():
                return self._index(part)
        return self._number(part)

    def _number(self, size: int) -> int:
        if not is_dynamic(size):
            return size
        number = self._numbers.get(size)
        if number is None:
            check_values(dimensions(size), self._values)
            number = self._numbers[size] = at(size, self._values)
        return number

    def _axis(self, axis: Axis) -> Axis:
        found = self._axes.get(axis)
        if found is None:
            found = Axis(axis.name, self._number(axis.extent)) if is_dynamic(axis.extent) else axis
            if found in self._taken:
                raise SameAxisError
            self._taken.add(found)
            self._axes[axis] = found
        # the same object, which marks it as unchanged
        return found if is_dynamic(axis.extent) else axis

    def _index(self, index: Affine) -> Affine:
        if index not in self._indices:
            terms = tuple([(self._term(t), self._number(c)) for t, c in index.terms])
            changed = Affine(terms, self._number(index.constant))
            # As in newly built indices, axes with a single value and coefficients of 0 are dropped.
            self._indices[index] = None if changed == index else changed.substitute({})
        return self._indices[index] or index

    def _term(self, term: Term) -> Term:
        if isinstance(term, Axis):
            return self._axis(term)
        return FloorDiv(self._axis(term.axis), self._number(term.divisor))
