"""Programs with guards: the program of a model that serves given sizes, and the segment that
follows.

A model is the first cut. Where data determine a size or a branch, the model has a further cut, and
a run proceeds from cut to cut. At each cut, the values that data determine are known. Behind a cut,
one program serves all sizes above 0; sizes of 0, truth values and numbers that are not sizes have
their own programs. In a process that has the compiler, a program is compiled when a run first needs
it (`compiler.specialise.jit`); an artifact holds a fixed list (`stage_tree`).
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
"""Larger numbers are not sizes, but ends of slices that extend to the last element."""

MOST_OPEN = 16
"""Maximum elements of one value that stay dynamic: they are the extents of one array."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A live-in: a value that is read behind a cut.

    Attributes:
        name: the name of the value.
        label: the prefix of the names of its elements.
        dtype: the element type.
        dims: a number for each fixed dimension, a name for each dynamic one.
        deciding: whether the value is shape-determining: sizes depend on its elements, and the
            continuation is imported for the values of the elements.
        text: whether the value is an array of `str`.
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
        """Convert an input to an array that programs accept; bfloat16 becomes raw bits.

        Raises:
            InvalidInputError: if it has another type.
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
    """The facts about the live-ins of a cut: the guard of a stage, and its specialisation key.

    Attributes:
        sizes: dimensions and shape-determining elements that have one value.
        known: name, bytes and shape of each shape-determining value that is not a size.
        open: the dimensions that stay dynamic, with their ranges.
    """

    sizes: tuple[tuple[str, int], ...] = ()
    known: tuple[tuple[str, bytes, tuple[int, ...]], ...] = ()
    open: tuple[Dimension, ...] = ()

    def holds(self, exact: SegmentGuard) -> bool:
        """Whether a program for these facts serves a run with the facts `exact`."""
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
        """Format the facts for a message, such as `count_0=0, element_1_0 1..4096`."""
        parts = [f"{name}={size}" for name, size in self.sizes]
        parts += [f"{name} of {len(data)} bytes, shape {shape}" for name, data, shape in self.known]
        return ", ".join([*parts, *filter(None, [ranges_text(self.open)])]) or "nothing"


@dataclass(frozen=True, slots=True)
class Reads:
    """The values that are read behind a cut, in order.

    Attributes:
        crossings: the values.
        ranges: ranges of the extents' dynamic dimensions, by name, which limit the sizes of a run.
            Shape-determining elements have no ranges.
        defaults: ranges that are tried first for dimensions without a given range, by name.
        derived: dimensions that the model expresses by others, by name.
    """

    crossings: tuple[Crossing, ...]
    ranges: Mapping[str, Dimension]
    defaults: Mapping[str, Dimension] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()

    def exact(self, arrays: Mapping[str, Array]) -> SegmentGuard:
        """Return the facts of a run on these arrays, in which each size is one number."""
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
        """Like `exact`, for these sizes of the dimensions, without shape-determining values."""
        names = (dim for c in self.crossings for dim in c.dims if isinstance(dim, str))
        ordered = dict.fromkeys(name for name in (*names, *sorted(sizes)) if name in sizes)
        return SegmentGuard(tuple((name, sizes[name]) for name in ordered))

    def around(
        self, exact: SegmentGuard, ends: Mapping[str, Sequence[int]], steps: Mapping[str, int]
    ) -> SegmentGuard:
        """Derive the facts of a program that serves a run and others: sizes above 0 stay dynamic.

        Args:
            exact: the facts of a run that the program must serve.
            ends: split points, which a range must not cross, by name.
            steps: required multiples of ranges, by name; other sizes have their own programs.
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

    def parted(self, inputs: Mapping[str, Dims]) -> Reads:
        """Return the same values with the dimensions in `inputs`.

        A new dimension has the range of the dimension that it replaces.
        """
        ranges = dict(self.ranges)
        for crossing in self.crossings:
            for dim, old in zip(inputs[crossing.name], crossing.dims, strict=True):
                if isinstance(dim, str) and isinstance(old, str) and old in ranges:
                    ranges[dim] = replace(ranges[old], name=dim)
        crossings = tuple(replace(each, dims=inputs[each.name]) for each in self.crossings)
        return Reads(crossings, ranges)

    def inputs(self, facts: SegmentGuard, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs of a program for these facts, by name.

        A shape-determining value is passed as an array without elements, whose extents are the
        elements of the value.
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
        """The names of sizes for which a range can be used."""
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
    """A program between two cuts, and the cut behind it.

    Attributes:
        program: None if there is nothing to compute.
        makes: the model's names of the program's outputs. The program's own names differ if an
            output is an input or a constant.
        behind: the cut behind the program; None at the end of the model.
    """

    program: P | None
    makes: tuple[str, ...]
    behind: SegmentBoundary[P] | None


@dataclass(slots=True, eq=False)
class SegmentBoundary(Generic[P]):
    """The continuation of a model, with its compiled programs.

    Attributes:
        reads: the values that are read behind the cut.
        ends: split points, which no range crosses, by name: a condition of the compiler on a size
            has one answer below and another one from there on.
        steps: required multiples of ranges, by name.
        made: the stages, by the facts that they serve.
        reason: why no program serves ranges of sizes; empty as long as one may.
        asked: ranges that no program serves, each with the condition that it leaves undecided. Each
            of their sizes may have a program.
        refused: ranges in which the model contradicts itself, with the contradiction. Each of their
            sizes may have a program.
        own: sizes that get their own programs, within the range of another program or not.
        served: the facts for which an artifact has stages; None if others can be compiled.
        whole: whether each stage is the whole model, without a cut behind it.
        ranged: whether new stages serve ranges; else each serves one combination of sizes.
    """

    reads: Reads
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
        """The reasons why accepted sizes have their own programs."""
        return [*filter(None, [self.reason]), *map(str, self.asked.values())]

    def facts(self, values: Mapping[str, Array]) -> SegmentGuard:
        """Return the facts of the stage that serves these values, or of a new stage to compile."""
        exact = self.reads.exact(values)
        return self.serving(exact) or self.wanted(exact)

    def serving(self, exact: SegmentGuard) -> SegmentGuard | None:
        """Return the facts of the stage that serves a run; None if no stage serves it.

        A stage for the exact sizes of the run is preferred to a stage for ranges.
        """
        if exact in self.made or exact in self.own or exact in (self.served or ()):
            return exact
        known = tuple(self.made) if self.served is None else self.served
        return next((facts for facts in known if facts.open and facts.holds(exact)), None)

    def wanted(self, exact: SegmentGuard) -> SegmentGuard:
        """Return the facts of a new stage to compile, for a run with the facts `exact`."""
        if self.reason or not self.ranged:
            return exact
        facts = self.reads.around(exact, self.ends, self.steps)
        return exact if facts in self.asked or facts in self.refused else facts

    def walk(self) -> Iterator[SegmentBoundary[P]]:
        """This cut and all later ones, each before its successors."""
        waiting = [self]
        while waiting:
            cut = waiting.pop(0)
            yield cut
            waiting += [stage.behind for stage in list(cut.made.values()) if stage.behind]


Make = Callable[[SegmentBoundary[P], SegmentGuard, Mapping[str, Array]], "ModelSegment[P] | None"]
"""Compiles the stage for these facts, which the values satisfy; None if no program serves these
ranges: the cut then has new split points, or a reason."""
