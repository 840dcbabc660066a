"""Segments of models, with guards that state for which sizes and values a program is valid.

A `SegmentBoundary` is a point of the model at which the elements of some tensors determine sizes of
the remaining model, or which of its branches run. A run proceeds from boundary to boundary. At each
boundary, these elements are known, and the run selects the segment (`ModelSegment`) whose guard
(`SegmentGuard`) holds. The first boundary is before the first node of the model; only segmented
models have further boundaries.

After a boundary, one program accepts all sizes above 0. Sizes of 0, booleans, and integers that are
not sizes need separate programs. If the compiler is available, a segment is compiled when a run
first needs it (`compiler.specialise.jit`). An artifact has a fixed tree of segments
(`segment_tree`).
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
"""Maximum integer in a live-in that is treated as a size. Larger integers are ends of slices that
extend to the last element."""

MOST_OPEN = 16
"""Maximum number of elements of one live-in that become dynamic sizes. These elements are passed as
the extents of one array."""


@dataclass(frozen=True, slots=True)
class LiveIn:
    """A live-in of a segment boundary: a value computed before the boundary and used after it.

    Attributes:
        name: the name of the value.
        label: a prefix from which `elements` forms names for the value's elements.
        dtype: the element type.
        dims: the size of each fixed dimension, and the name of each dynamic one.
        deciding: whether the value is shape-determining. The elements of such a value are sizes,
            branch conditions or other integers that the compiler must know to import the rest of
            the model.
        text: whether the elements are strings.
    """

    name: str
    label: str
    dtype: DType
    dims: tuple[Natural | str, ...]
    deciding: bool
    text: bool = False

    def elements(self, array: Array) -> tuple[str, ...]:
        """Return names for the elements of a value in row-major order, such as `count_0`."""
        return tuple(f"{self.label}_{k}" for k in range(array.size))

    @property
    def sizes_input(self) -> str:
        """The name of the program input by which the elements of this value are passed.

        The elements of a shape-determining value are passed as the extents of an empty array.
        """
        return f"{self.name}//sizes"

    def taken(self, array: Array) -> Array:
        """Convert an input of the model to the array that programs read.

        A bfloat16 array is converted to raw bits (uint16).

        Raises:
            InvalidInputError: if the array has a wrong element type.
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
    """The condition on sizes and values under which a segment (part of a model) may be used.

    Some values determine shapes: for example, an integer tensor whose elements are the new sizes of
    a Reshape. A guard has conditions on the elements of such values. Guards are the keys of
    `SegmentBoundary.made`. A guard without dynamic dimensions also describes the sizes and values
    of one run (`LiveIns.exact`).

    Attributes:
        sizes: the required size of each fixed dimension, as (name, size). An element of a value
            that determines shapes is listed like a dimension.
        known: the required contents of other values that determine shapes, such as booleans that
            select a branch, as (name, bytes, shape).
        open: the dimensions and elements that stay dynamic, with the ranges of their sizes.
    """

    sizes: tuple[tuple[str, int], ...] = ()
    known: tuple[tuple[str, bytes, tuple[int, ...]], ...] = ()
    open: tuple[Dimension, ...] = ()

    def holds(self, exact: SegmentGuard) -> bool:
        """Whether a run satisfies this guard; `exact` describes the sizes and values of the run."""
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
        """The guard formatted for messages, such as `count_0=0, element_1_0 1..4096`."""
        parts = [f"{name}={size}" for name, size in self.sizes]
        parts += [f"{name} of {len(data)} bytes, shape {shape}" for name, data, shape in self.known]
        return ", ".join([*parts, *filter(None, [ranges_text(self.open)])]) or "nothing"


@dataclass(frozen=True, slots=True)
class LiveIns:
    """The live-ins of a boundary: values that a model computes before the boundary and uses later.

    A boundary is a point at which a model is divided into segments, each with its own program.

    Attributes:
        crossings: the live-ins, in order.
        ranges: maps the name of a dynamic dimension to the range of its valid sizes. Elements of
            values that determine shapes have no ranges.
        defaults: maps the name of a dimension without an entry in `ranges` to a range that its
            first program should support.
        derived: the names of dimensions whose sizes the model computes from other dimensions.
    """

    crossings: tuple[LiveIn, ...]
    ranges: Mapping[str, Dimension]
    defaults: Mapping[str, Dimension] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()

    def exact(self, arrays: Mapping[str, Array]) -> SegmentGuard:
        """Return the guard (condition) that holds only for runs with the sizes of `arrays`.

        `arrays` has the values that the run has computed before the boundary, by name. The guard
        fixes the size of every dimension. It also fixes every element of values that determine
        shapes, such as the new sizes of a Reshape.
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
        """Return the guard (condition on sizes) in which the dimensions have these fixed sizes.

        The guard does not restrict values that determine shapes. `sizes` maps names of dimensions
        to sizes.
        """
        names = (dim for c in self.crossings for dim in c.dims if isinstance(dim, str))
        ordered = dict.fromkeys(name for name in (*names, *sorted(sizes)) if name in sizes)
        return SegmentGuard(tuple((name, sizes[name]) for name in ordered))

    def around(
        self, exact: SegmentGuard, ends: Mapping[str, Sequence[int]], steps: Mapping[str, int]
    ) -> SegmentGuard:
        """Return a guard with ranges that holds for one run and as many other runs as possible.

        A guard is the condition on sizes under which a program may be used. Sizes above 0 become
        dynamic, with the largest ranges that contain no split point.

        Args:
            exact: the guard that holds only for the sizes of the run.
            ends: maps the name of a dimension to its split points: the sizes at which a new range
                must start.
            steps: maps the name of a dimension to a number. All sizes in the dimension's range must
                be multiples of this number. If the run's size is not a multiple, it stays fixed.
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
        """Return a copy of this object with other names of the values' dimensions.

        `inputs` has the new dimensions of each value, by name. A renamed dimension keeps its range.
        """
        ranges = dict(self.ranges)
        for crossing in self.crossings:
            for dim, old in zip(inputs[crossing.name], crossing.dims, strict=True):
                if isinstance(dim, str) and isinstance(old, str) and old in ranges:
                    ranges[dim] = replace(ranges[old], name=dim)
        crossings = tuple(replace(each, dims=inputs[each.name]) for each in self.crossings)
        return LiveIns(crossings, ranges)

    def inputs(self, facts: SegmentGuard, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs, by name, of the program with the guard `facts`.

        A guard is the condition under which a run may use the program. Most values are passed
        unchanged. A value that determines shapes, such as the new sizes of a Reshape, is passed in
        another form: as an empty array whose extents are the value's dynamic elements. It is not
        passed if all its elements are fixed by the guard.

        Args:
            facts: the guard.
            arrays: the arrays that the run has computed before the program, by name.
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
        """Return the names of the sizes that a guard may leave variable, within a range.

        A guard is the condition on sizes under which a run may use a program. It fixes all other
        sizes to a number: a size of 0 whose range does not include 0, and elements of values that
        are too large or too many.

        `sizes` maps names to the sizes in one run. The names are those of dimensions, and of the
        elements of values that determine shapes, such as the new shape of a Reshape.
        """
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
        """Return the range of sizes for which a dimension's first program is compiled.

        It is the dimension's entry in `ranges` or `defaults`, or else 1..4096 (`default_range`).
        """
        return self.ranges.get(name) or self.defaults.get(name) or default_range(name)

    def _around(self, name: str, size: int, ends: Sequence[int], step: int) -> Dimension:
        """Return the largest range of a dimension that contains `size` but no split point.

        Sizes in the range are multiples of `step`. `ends` has the split points: each is the first
        size of a new range.
        """
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
    """A segment (a part of a model with one program), and the boundary that follows it.

    At a boundary, a run selects the next segment.

    Attributes:
        program: the program; None if the segment computes no value.
        makes: for each output of the program, the name of this value in the model. The program may
            use another name, if the value is also an input or a constant.
        behind: the boundary after the segment; None at the end of the model.
    """

    program: P | None
    makes: tuple[str, ...]
    behind: SegmentBoundary[P] | None


@dataclass(slots=True, eq=False)
class SegmentBoundary(Generic[P]):
    """A boundary between segments of a model, with the compiled segments that may follow it.

    A segment is a part of the model with one program. Its guard is the condition on sizes and
    values under which a run may use the segment. At a boundary, a run selects the next segment by
    its guard.

    Attributes:
        reads: the live-ins: the values that are computed before the boundary and used after it.
        ends: maps the name of a dimension to its split points. A range may not contain a split
            point, because the result of a comparison in the model changes there.
        steps: maps the name of a dimension to a number. All sizes in a range of the dimension must
            be multiples of this number.
        made: the compiled segments after the boundary, by guard.
        reason: the reason why a program with dynamic sizes is impossible; empty if no reason was
            found.
        asked: guards with ranges for which the compilation failed, because some condition holds
            only for a part of the ranges; with the errors. Single sizes within the ranges may
            compile.
        refused: guards with ranges for which the model is invalid, with the errors. The model may
            be valid for single sizes within the ranges.
        own: guards of fixed sizes for which a separate program is compiled, although a program with
            ranges accepts these sizes.
        served: the guards of an artifact's segments; None if further segments can be compiled.
        whole: whether each segment is the whole model, so that no boundary follows.
        ranged: whether new segments may have dynamic sizes.
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
        """The reasons why some segments can be compiled only for fixed sizes, as messages."""
        return [*filter(None, [self.reason]), *map(str, self.asked.values())]

    def guard(self, values: Mapping[str, Array]) -> SegmentGuard:
        """Return the guard (condition on sizes and values) of the segment that a run needs.

        `values` has the arrays that are known at this boundary, by name. If no existing segment
        accepts them, the result is the guard for which to compile a segment.
        """
        exact = self.reads.exact(values)
        return self.serving(exact) or self.wanted(exact)

    def serving(self, exact: SegmentGuard) -> SegmentGuard | None:
        """Return the guard of an existing segment that accepts a run, or None.

        A guard is the condition on sizes and values under which a segment (part of a model) may be
        used. A segment with exactly the sizes of the run has priority over a segment with ranges.
        Guards in `own` and `served` count as existing.

        Args:
            exact: the guard that holds only for the sizes of the run.
        """
        if exact in self.made or exact in self.own or exact in (self.served or ()):
            return exact
        known = tuple(self.made) if self.served is None else self.served
        return next((facts for facts in known if facts.open and facts.holds(exact)), None)

    def wanted(self, exact: SegmentGuard) -> SegmentGuard:
        """Return the guard for which to compile a new segment that accepts a run.

        A guard is the condition on sizes and values under which a segment (part of a model) may be
        used. The new guard has ranges around the sizes of the run, so that later runs can use the
        segment too. The result is `exact` if segments of this boundary cannot have ranges, or
        compilation for these ranges failed before.

        Args:
            exact: the guard that holds only for the sizes of the run.
        """
        if self.reason or not self.ranged:
            return exact
        facts = self.reads.around(exact, self.ends, self.steps)
        return exact if facts in self.asked or facts in self.refused else facts

    def walk(self) -> Iterator[SegmentBoundary[P]]:
        """Yield this boundary and all later boundaries that exist, each before its successors."""
        waiting = [self]
        while waiting:
            cut = waiting.pop(0)
            yield cut
            waiting += [stage.behind for stage in list(cut.made.values()) if stage.behind]


Make = Callable[[SegmentBoundary[P], SegmentGuard, Mapping[str, Array]], "ModelSegment[P] | None"]
"""Compiles the segment after a boundary for a guard, which the given live-ins satisfy. Returns None
if no program compiles for the guard's ranges. The boundary then records new split points, or the
error of the compilation."""
