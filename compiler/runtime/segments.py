"""Segments of models, with guards that state for which sizes and values a program is valid.

A `SegmentBoundary` is a point of the model at which the values of some tensors determine sizes or
branches of the rest. A run proceeds from boundary to boundary, where these values are known, and
selects the segment (`ModelSegment`) whose guard (`SegmentGuard`) holds. The first boundary is
before the whole model; only segmented models have others. Behind a boundary, one program serves all
sizes above 0; sizes of 0, booleans, and integers that are not sizes have their own programs. In a
process that has the compiler, a segment is compiled when a run first needs it
(`compiler.specialise.jit`); an artifact holds a fixed tree of segments (`segment_tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod
from typing import Generic, TypeVar

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidInputError, InvalidModelError
from tilewright.compiler.runtime.kernel import Natural
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import Dims, ranges_text
from tilewright.compiler.sizes import Dimension, DynamicSizeError
from tilewright.compiler.sizes.ranges import default_range

P = TypeVar("P")

LARGEST_SIZE = 1 << 30
"""Larger integers are not sizes, but ends of slices that extend to the last element."""

MOST_OPEN = 16
"""Maximum elements of one value that stay dynamic: they are the extents of one array."""


@dataclass(frozen=True, slots=True)
class LiveIn:
    """A live-in of a boundary: a value that is computed before it and read behind it.

    Attributes:
        name: the name of the value.
        label: the prefix of the names of its elements, which are names of sizes (`elements`).
        dtype: the element type.
        dims: the size of each fixed dimension, and the name of each dynamic one.
        deciding: whether the value is shape-determining: sizes depend on its elements, so that the
            continuation is imported for given elements.
        text: whether the elements are strings.
    """

    name: str
    label: str
    dtype: DType
    dims: tuple[Natural | str, ...]
    deciding: bool
    text: bool = False

    def elements(self, array: Array) -> tuple[str, ...]:
        """Return a name for each element of the array."""
        return tuple(f"{self.label}_{k}" for k in range(array.size))

    @property
    def sizes_input(self) -> str:
        """The name of the program input whose extents are the elements of the value.

        Only a shape-determining value has such an input.
        """
        return f"{self.name}//sizes"

    def taken(self, array: Array) -> Array:
        """Convert an input of the model to an array that programs accept.

        bfloat16 becomes raw bits.

        Raises:
            InvalidInputError: if the input has another element type.
        """
        given = np.asarray(array)
        if self.dtype is DType.BFLOAT16 and given.dtype.name == "bfloat16":
            return given.view(np.uint16)
        if given.dtype.kind not in "OUT" if self.text else given.dtype != self.dtype.numpy:
            wanted = "text" if self.text else self.dtype
            raise InvalidInputError(
                f"input '{self.name}' has dtype {given.dtype}, expected {wanted}"
            )
        return given


@dataclass(frozen=True, slots=True)
class SegmentGuard:
    """The condition on live-ins under which a segment may run, and the key by which it is found.

    A guard with only fixed sizes also describes the live-ins of one run (`LiveIns.exact`).

    Attributes:
        sizes: the dimensions, and elements of shape-determining values, that must have one size.
        known: name, bytes and shape of each shape-determining value that is not a size.
        open: the dimensions that stay dynamic, with the ranges in which their sizes must be.
    """

    sizes: tuple[tuple[str, int], ...] = ()
    known: tuple[tuple[str, bytes, tuple[int, ...]], ...] = ()
    open: tuple[Dimension, ...] = ()

    def holds(self, exact: SegmentGuard) -> bool:
        """Whether this guard holds for a run with the sizes and values in `exact`."""
        if self.known != exact.known:
            return False
        sizes = dict(exact.sizes)
        for name, size in self.sizes:
            if sizes.get(name) != size:
                return False
        for dimension in self.open:
            if dimension.name in sizes and sizes[dimension.name] not in dimension:
                return False
        return True

    @property
    def text(self) -> str:
        """The guard as text for messages, such as `count_0=0, element_1_0 1..4096`."""
        parts = [f"{name}={size}" for name, size in self.sizes]
        parts += [f"{name} of {len(data)} bytes, shape {shape}" for name, data, shape in self.known]
        return ", ".join([*parts, *filter(None, [ranges_text(self.open)])]) or "nothing"


@dataclass(frozen=True, slots=True)
class LiveIns:
    """The live-ins of a boundary, in order, with the ranges of their dimensions.

    Attributes:
        crossings: the live-ins.
        ranges: ranges of dynamic dimensions, by name, which limit the sizes of a run. Elements of
            shape-determining values have no ranges.
        defaults: ranges that are tried first for dimensions without a given range, by name.
        derived: names of dimensions that the model expresses by others.
    """

    crossings: tuple[LiveIn, ...]
    ranges: Mapping[str, Dimension]
    defaults: Mapping[str, Dimension] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()

    def exact(self, arrays: Mapping[str, Array]) -> SegmentGuard:
        """Return the guard that holds only for runs with the sizes of these live-ins.

        All its sizes are fixed, and it has the elements of shape-determining values.
        """
        sizes: dict[str, int] = {}
        known: list[tuple[str, bytes, tuple[int, ...]]] = []
        for crossing in self.crossings:
            array = arrays[crossing.name]
            for dim, extent in zip(crossing.dims, array.shape, strict=True):
                if isinstance(dim, str):
                    sizes[dim] = extent
            if not crossing.deciding:
                continue
            if array.dtype.kind in "iu" and array.size:
                sizes |= dict(zip(crossing.elements(array), map(int, array.flat), strict=True))
            else:
                known.append((crossing.name, array.tobytes(), array.shape))
        return SegmentGuard(tuple(sizes.items()), tuple(known))

    def at(self, sizes: Mapping[str, int]) -> SegmentGuard:
        """Return the guard of runs with these sizes of dimensions.

        Shape-determining values are not part of it.
        """
        names = (dim for c in self.crossings for dim in c.dims if isinstance(dim, str))
        ordered = dict.fromkeys(name for name in (*names, *sorted(sizes)) if name in sizes)
        return SegmentGuard(tuple((name, sizes[name]) for name in ordered))

    def around(
        self, exact: SegmentGuard, ends: Mapping[str, Sequence[int]], steps: Mapping[str, int]
    ) -> SegmentGuard:
        """Return a guard that holds for a run and as many others as possible.

        Sizes above 0 stay dynamic, within the largest ranges between split points.

        Args:
            exact: the guard of only that run.
            ends: split points, which a range must not cross, by name of the dimension.
            steps: required multiples of sizes in a range, by name; other sizes become fixed.
        """
        opened = self._open(dict(exact.sizes))
        fixed: list[tuple[str, int]] = []
        ranges: list[Dimension] = []
        for name, size in exact.sizes:
            if name in self.derived:
                continue
            step = steps.get(name, 1)
            whole = self._around(name, size, ends.get(name, ()), step)
            if name not in opened or size % step or whole.low == whole.high:
                fixed.append((name, size))
            else:
                ranges.append(whole)
        return SegmentGuard(tuple(fixed), exact.known, tuple(ranges))

    def with_dims(self, inputs: Mapping[str, Dims]) -> LiveIns:
        """Return the live-ins with other names of dimensions, as stated in `inputs`.

        A new dimension has the range of the dimension that it replaces.
        """
        ranges = dict(self.ranges)
        for crossing in self.crossings:
            for dim, old in zip(inputs[crossing.name], crossing.dims, strict=True):
                if isinstance(dim, str) and isinstance(old, str) and old in ranges:
                    ranges[dim] = replace(ranges[old], name=dim)
        crossings = tuple(replace(each, dims=inputs[each.name]) for each in self.crossings)
        return LiveIns(crossings, ranges)

    def inputs(self, facts: SegmentGuard, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs of a program with the guard `facts`, by name, for these live-ins.

        A shape-determining value is passed as an empty array whose extents are the elements of the
        value that stay dynamic; if none does, it is not passed.
        """
        found: dict[str, Array] = {}
        names = {dimension.name for dimension in facts.open}
        for crossing in self.crossings:
            array = arrays[crossing.name]
            if not crossing.deciding:
                found[crossing.name] = array
                continue
            elements = zip(crossing.elements(array), array.flat, strict=True)
            opened = [int(element) for name, element in elements if name in names]
            if opened:
                found[crossing.sizes_input] = np.empty((*opened, 0), np.int8)
        return found

    def _open(self, sizes: Mapping[str, int]) -> set[str]:
        """The names of the sizes that may stay dynamic."""
        found = {n for n, size in sizes.items() if size > 0 or self._range(n).low == 0}
        for crossing in self.crossings:
            if crossing.deciding:
                elements = {n for n in found if n.startswith(f"{crossing.label}_")}
                few = {n for n in elements if sizes[n] <= LARGEST_SIZE}
                # NumPy cannot create larger arrays, even if one of the extents is 0
                if len(few) > MOST_OPEN or prod(int(sizes[n]) for n in few) > LARGEST_SIZE**2:
                    few = set()
                found -= elements - few
        return found

    def _range(self, name: str) -> Dimension:
        """The range of a dimension for its first program."""
        return self.ranges.get(name) or self.defaults.get(name) or default_range(name)

    def _around(self, name: str, size: int, ends: Sequence[int], step: int) -> Dimension:
        """The largest range that contains a size and crosses no split point."""
        whole = self._range(name)
        if size not in whole:
            whole = Dimension(name, 1)
        multiple = lcm(whole.multiple, step)
        low = max([whole.low * whole.multiple, *(end for end in ends if end <= size)])
        above = [end - 1 for end in ends if end > size]
        if whole.high is not None:
            above.append(whole.high * whole.multiple)
        high = min(above) // multiple if above else None
        return Dimension(name, -(-low // multiple), high, multiple)


@dataclass(frozen=True, slots=True)
class ModelSegment(Generic[P]):
    """A segment: the program between two boundaries, and the boundary behind it.

    Attributes:
        program: the program; None if no value must be computed.
        makes: the model's names of the program's outputs. The program's own names differ if an
            output is an input or a constant.
        behind: the boundary behind the program; None at the end of the model.
    """

    program: P | None
    makes: tuple[str, ...]
    behind: SegmentBoundary[P] | None


@dataclass(slots=True, eq=False)
class SegmentBoundary(Generic[P]):
    """A boundary between segments, with the compiled segments that may follow it.

    Attributes:
        reads: the live-ins.
        ends: split points, by name of the dimension. No range crosses them, because the result of a
            comparison that the compiler needs differs below and from the split point on.
        steps: required multiples of sizes in a range, by name.
        made: the segments behind the boundary, by guard.
        reason: why a program with dynamic sizes is impossible; empty unless that is known.
        asked: guards with ranges for which no program compiles, because they do not decide the
            condition. A program may compile for single sizes.
        refused: guards with ranges in which the model is invalid, with the error. A program may
            compile for single sizes.
        own: guards of fixed sizes that get their own programs, even if a program with ranges serves
            them.
        served: the guards of an artifact's segments; None if other segments can be compiled.
        whole: whether each segment is the whole model, so that no boundary follows.
        ranged: whether new segments may have dynamic sizes; otherwise, each has fixed sizes.
    """

    reads: LiveIns
    ends: dict[str, list[int]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    made: dict[SegmentGuard, ModelSegment[P]] = field(default_factory=dict)
    reason: str = ""
    asked: dict[SegmentGuard, DynamicSizeError] = field(default_factory=dict)
    refused: dict[SegmentGuard, InvalidModelError] = field(default_factory=dict)
    own: frozenset[SegmentGuard] = frozenset()
    served: tuple[SegmentGuard, ...] | None = None
    whole: bool = False
    ranged: bool = True

    @property
    def reasons(self) -> list[str]:
        """The reasons why programs with fixed sizes are necessary."""
        return [*filter(None, [self.reason]), *map(str, self.asked.values())]

    def guard(self, values: Mapping[str, Array]) -> SegmentGuard:
        """Return the guard of the segment for these live-ins, which may have to be compiled."""
        exact = self.reads.exact(values)
        return self.serving(exact) or self.wanted(exact)

    def serving(self, exact: SegmentGuard) -> SegmentGuard | None:
        """Return the guard of the existing segment for a run with the guard `exact`, or None.

        A segment with the fixed sizes of the run is preferred to a segment with ranges.
        """
        if exact in self.made or exact in self.own or exact in (self.served or ()):
            return exact
        known = tuple(self.made) if self.served is None else self.served
        return next((facts for facts in known if facts.open and facts.holds(exact)), None)

    def wanted(self, exact: SegmentGuard) -> SegmentGuard:
        """Return the guard for which to compile a new segment that serves one run.

        The guard has ranges around the sizes of the run, so that the segment serves other runs,
        too. It is `exact` if a segment of this boundary cannot have ranges, or did not compile
        for these ranges before.

        Args:
            exact: the guard that holds only for runs with the sizes of this run.
        """
        if self.reason or not self.ranged:
            return exact
        facts = self.reads.around(exact, self.ends, self.steps)
        return exact if facts in self.asked or facts in self.refused else facts

    def walk(self) -> Iterator[SegmentBoundary[P]]:
        """Yield this boundary and all later ones, each before its successors."""
        waiting = [self]
        while waiting:
            cut = waiting.pop(0)
            yield cut
            waiting += [stage.behind for stage in list(cut.made.values()) if stage.behind]


Make = Callable[[SegmentBoundary[P], SegmentGuard, Mapping[str, Array]], "ModelSegment[P] | None"]
"""Compiles a segment behind a boundary for a guard, which the live-ins satisfy. Returns None if no
program compiles for the guard's ranges: the boundary then has new split points, or a reason."""
