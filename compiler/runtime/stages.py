"""Programs with guards: which program of a model serves which sizes, and what runs behind it.

A model is the first cut. Where the data decide a size or a branch, it is cut again, and a run goes
from cut to cut: what the data decide is known at each. Behind a cut one program serves all sizes
above 0; sizes of 0, truth values and numbers that are not sizes have programs of their own. In a
process that has the compiler they are made when a run first needs them (`compiler.specialise.jit`);
an artifact holds a closed list (`stage_tree`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm, prod
from typing import Generic, TypeVar

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError, InvalidInputError, InvalidModelError
from tilewright.compiler.runtime.kernel import Natural
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import Dims, ranges_text
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.sizes.ranges import default_range

P = TypeVar("P")

LARGEST_SIZE = 1 << 30
"""Larger numbers are no sizes: the ends of slices that reach to the last element."""

MOST_OPEN = 16
"""So many elements of one value stay open: they are the extents of one array."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value that is read behind a cut. A text among `dims` names an open dimension there.

    If it is `deciding`, sizes depend on its elements, and what is behind is imported for them;
    `label` is what their names start with. A `text` is an array of `str`.
    """

    name: str
    label: str
    dtype: DType
    dims: tuple[Natural | str, ...]
    deciding: bool
    text: bool = False

    def elements(self, array: Array) -> tuple[str, ...]:
        """The names of an array's elements."""
        return tuple(f"{self.label}_{k}" for k in range(array.size))

    @property
    def sizes_input(self) -> str:
        """The name of the input whose extents are the elements of a deciding value."""
        return f"{self.name}//sizes"

    def taken(self, array: Array) -> Array:
        """An array as programs take it.

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
class Facts:
    """What is known of the values that are read behind a cut.

    `sizes` are dimensions and deciding elements with one value, `known` the bytes of deciding
    values that are no sizes. `open` are those that stay open, with their ranges.
    """

    sizes: tuple[tuple[str, int], ...] = ()
    known: tuple[tuple[str, bytes, tuple[int, ...]], ...] = ()
    open: tuple[Dimension, ...] = ()

    def holds(self, exact: Facts) -> bool:
        """Whether a program for these facts serves what is known of one run."""
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
        """`count_0=0, element_1_0 1..4096` for people."""
        parts = [f"{name}={size}" for name, size in self.sizes]
        parts += [f"{name} of {len(data)} bytes, shape {shape}" for name, data, shape in self.known]
        return ", ".join([*parts, *filter(None, [ranges_text(self.open)])]) or "nothing"


@dataclass(frozen=True, slots=True)
class Reads:
    """The values that are read behind a cut, in order.

    Attributes:
        crossings: the values.
        ranges: of the dynamic dimensions of extents, by name: a run has no other sizes. Elements
            have none.
        defaults: ranges that are tried first for dimensions without a given one, by name.
        derived: dimensions that the model expresses by others, by name: these say their sizes.
    """

    crossings: tuple[Crossing, ...]
    ranges: Mapping[str, Dimension]
    defaults: Mapping[str, Dimension] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()

    def exact(self, arrays: Mapping[str, Array]) -> Facts:
        """The facts of one run: each size is one number."""
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
        return Facts(tuple(sizes.items()), tuple(known))

    def at(self, sizes: Mapping[str, int]) -> Facts:
        """As `exact`, for these sizes of the dimensions, where no value decides."""
        names = (dim for c in self.crossings for dim in c.dims if isinstance(dim, str))
        ordered = dict.fromkeys(name for name in (*names, *sorted(sizes)) if name in sizes)
        return Facts(tuple((name, sizes[name]) for name in ordered))

    def around(
        self, exact: Facts, ends: Mapping[str, Sequence[int]], steps: Mapping[str, int]
    ) -> Facts:
        """The facts of a program that also serves other sizes: all above 0 stay open.

        Args:
            exact: what is known of a run that it serves.
            ends: the sizes that a range must not reach across, by name.
            steps: ranges have multiples of these numbers alone, by name; other sizes have programs
                of their own.
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
        return Facts(tuple(fixed), exact.known, tuple(ranges))

    def parted(self, inputs: Mapping[str, Dims]) -> Reads:
        """The same values with other dimensions, which have the ranges of the old ones."""
        ranges = dict(self.ranges)
        for crossing in self.crossings:
            for dim, old in zip(inputs[crossing.name], crossing.dims, strict=True):
                if isinstance(dim, str) and isinstance(old, str) and old in ranges:
                    ranges[dim] = replace(ranges[old], name=dim)
        crossings = tuple(replace(each, dims=inputs[each.name]) for each in self.crossings)
        return Reads(crossings, ranges)

    def inputs(self, facts: Facts, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """What a program for these facts takes: values, and for deciding ones an array without
        elements that has those as its extents."""
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
        """The sizes that a range of them can stand for, by name."""
        found = {n for n, size in sizes.items() if size > 0 or self._range(n).low == 0}
        for crossing in self.crossings:
            if crossing.deciding:
                elements = {n for n in found if n.startswith(f"{crossing.label}_")}
                few = {n for n in elements if sizes[n] <= LARGEST_SIZE}
                # NumPy has no array of more elements, even if one of its extents is 0
                if len(few) > MOST_OPEN or prod(int(sizes[n]) for n in few) > LARGEST_SIZE**2:
                    few = set()
                found -= elements - few
        return found

    def _range(self, name: str) -> Dimension:
        """The sizes of a dimension that a first program is for."""
        return self.ranges.get(name) or self.defaults.get(name) or default_range(name)

    def _around(self, name: str, size: int, ends: Sequence[int], step: int) -> Dimension:
        """The largest range that holds a size and does not reach across the ends."""
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
class DataStage(Generic[P]):
    """A program between two cuts, None where nothing is to be computed, and what is behind it.

    `makes` are the names of its outputs in the model; the program's own differ where an output is
    an input or a constant.
    """

    program: P | None
    makes: tuple[str, ...]
    behind: DataCut[P] | None


@dataclass(slots=True, eq=False)
class DataCut(Generic[P]):
    """What is left of a model, with the programs that there are for it.

    Attributes:
        reads: the values that are read behind the cut.
        ends: sizes that no range reaches across, by name: a question of the compiler about a size
            has one answer up to there and another one from there on.
        steps: ranges have multiples of these numbers alone, by name.
        made: the stages, by what they are for.
        reason: why no program serves ranges of sizes; empty while one may.
        refused: ranges that no program serves, and why: each of their sizes may have one.
        own: sizes that get programs of their own, within the range of another program or not.
        served: what an artifact has stages for; None if others can be compiled.
        whole: whether each stage is the whole model: none has a cut behind it.
        ranged: whether new stages are for ranges; else each is for one combination of sizes.
    """

    reads: Reads
    ends: dict[str, list[int]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    made: dict[Facts, DataStage[P]] = field(default_factory=dict)
    reason: str = ""
    refused: dict[Facts, CompilerError] = field(default_factory=dict)
    own: frozenset[Facts] = frozenset()
    served: tuple[Facts, ...] | None = None
    whole: bool = False
    ranged: bool = True

    @property
    def reasons(self) -> list[str]:
        """The reasons why sizes that the model takes have programs of their own."""
        undecided = (e for e in self.refused.values() if not isinstance(e, InvalidModelError))
        return [*filter(None, [self.reason]), *map(str, undecided)]

    def facts(self, values: Mapping[str, Array]) -> Facts:
        """The facts of the stage that serves these values, or of the stage to make for them."""
        exact = self.reads.exact(values)
        return self.serving(exact) or self.wanted(exact)

    def serving(self, exact: Facts) -> Facts | None:
        """The facts of the stage that serves one run: a stage for its sizes alone before one for
        ranges. None if no stage does."""
        if exact in self.made or exact in self.own or exact in (self.served or ()):
            return exact
        known = tuple(self.made) if self.served is None else self.served
        return next((facts for facts in known if facts.open and facts.holds(exact)), None)

    def wanted(self, exact: Facts) -> Facts:
        """The facts of a new stage that serves one run."""
        if self.reason or not self.ranged:
            return exact
        facts = self.reads.around(exact, self.ends, self.steps)
        return exact if facts in self.refused else facts

    def walk(self) -> Iterator[DataCut[P]]:
        """This cut and all behind it, each before those behind it."""
        waiting = [self]
        while waiting:
            cut = waiting.pop(0)
            yield cut
            waiting += [stage.behind for stage in list(cut.made.values()) if stage.behind]


Make = Callable[[DataCut[P], Facts, Mapping[str, Array]], "DataStage[P] | None"]
"""Makes the stage for these facts, which the values have; None if none serves these ranges: the cut
has new ends, or a reason."""
