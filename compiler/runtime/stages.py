"""Programs of a model that is cut where the data decide a size: what runs from cut to cut.

A run goes from cut to cut. What the data decide is known at each: a size, or which branch is
taken. Behind a cut one program serves all sizes above 0, as for a model with open dimensions; sizes
of 0, truth values and numbers that are no sizes have programs of their own. In a process that has
the compiler they are made when a run first needs them (`compiler.specialise.jit`); an artifact
holds a closed list (`StageTree`).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError, InvalidInputError, ModelWarning
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.inputs import arrays_in_order, listed, shapes_of
from tilewright.compiler.runtime.kernel import Natural
from tilewright.compiler.runtime.model import OpenModel
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import Dims, OpenPorts, dims_text, ranges_text
from tilewright.compiler.runtime.program import Port
from tilewright.compiler.runtime.session import Session
from tilewright.compiler.runtime.stopping import StopFlag
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.sizes.ranges import default_range

P = TypeVar("P")

Ran: TypeAlias = tuple[Executable, dict[str, Array]]
"""A program that ran, and its inputs."""

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

    def taken(self, array: Array) -> Array | None:
        """An array as programs take it; None if it has another type."""
        if not isinstance(array, np.ndarray | np.generic):
            return None
        if self.dtype is DType.BFLOAT16 and array.dtype.name == "bfloat16":
            return np.asarray(array).view(np.uint16)
        fits = array.dtype.kind in "OUT" if self.text else array.dtype == self.dtype.numpy
        return np.asarray(array) if fits else None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the values that are read behind a cut.

    `sizes` are dimensions and deciding elements with one value, `known` the bytes of deciding
    values that are no sizes. `open` are those that stay open, with their ranges.
    """

    sizes: tuple[tuple[str, int], ...] = ()
    known: tuple[tuple[str, bytes, tuple[int, ...]], ...] = ()
    open: tuple[Dimension, ...] = ()

    @property
    def text(self) -> str:
        """`count_0=0, element_1_0 1..4096` for people."""
        parts = [f"{name}={size}" for name, size in self.sizes]
        parts += [f"{name} of {len(data)} bytes, shape {shape}" for name, data, shape in self.known]
        return ", ".join([*parts, *filter(None, [ranges_text(self.open)])]) or "nothing"


@dataclass(frozen=True, slots=True)
class Reads:
    """The values that are read behind a cut, in order.

    `ranges` are of the open dimensions that extents are; elements have none.
    """

    crossings: tuple[Crossing, ...]
    ranges: Mapping[str, Dimension]

    def facts(self, arrays: Mapping[str, Array], ends: Mapping[str, Sequence[int]] | None) -> Facts:
        """What a program behind the cut is for.

        If there are `ends`, all sizes above 0 stay open; `ends` are the sizes that a range must not
        reach across, by name.
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
        opened = set() if ends is None else self._open(sizes)
        fixed = tuple((name, int(s)) for name, s in sizes.items() if name not in opened)
        ranges = (
            self._around(name, int(size), (ends or {}).get(name, ()))
            for name, size in sizes.items()
            if name in opened
        )
        return Facts(fixed, tuple(known), tuple(ranges))

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
        found = {name for name, size in sizes.items() if size > 0}
        for crossing in self.crossings:
            if crossing.deciding:
                elements = {n for n in found if n.startswith(f"{crossing.label}_")}
                few = {n for n in elements if sizes[n] <= LARGEST_SIZE}
                # NumPy has no array of more elements, even if one of its extents is 0
                if len(few) > MOST_OPEN or prod(int(sizes[n]) for n in few) > LARGEST_SIZE**2:
                    few = set()
                found -= elements - few
        return found

    def _around(self, name: str, size: int, ends: Sequence[int]) -> Dimension:
        """The largest range that holds a size and does not reach across the ends."""
        whole = self.ranges.get(name) or default_range(name)
        if size not in whole:
            whole = Dimension(name, 1)
        if whole.multiple > 1 or not ends:
            return whole
        low = max([whole.low, *(end for end in ends if end <= size)])
        high = min([end - 1 for end in ends if end > size], default=whole.high)
        return Dimension(name, low, high if whole.high is None else min(high or 0, whole.high))


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

    `ends` are sizes that no range reaches across, by name: what the model asks of a size has one
    answer up to there and another one from there on. `reason` says why no program serves ranges of
    sizes; it is empty while one may.
    """

    reads: Reads
    ends: dict[str, list[int]] = field(default_factory=dict)
    made: dict[Facts, DataStage[P]] = field(default_factory=dict)
    reason: str = ""

    def facts(self, values: Mapping[str, Array]) -> Facts:
        """What a program for these values is for."""
        return self.reads.facts(values, None if self.reason else self.ends)

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


class StagedExecutable(OpenModel):
    """A compiled model whose data decide sizes that other nodes have to know.

    `run` may be called from several threads at once; a program is made once.

    Args:
        ports: its inputs and outputs, without the dimensions that the caller gives a size.
        first: the model as what is left of itself: its inputs are what it reads.
        make: gives stages that are not among `DataCut.made`, and puts them there. One thread
            calls it at a time.
        part: gives the same model with other dimensions of its inputs, for runs in which one name
            in the file stands for two sizes; None where such a run is an error.
    """

    def __init__(
        self,
        ports: OpenPorts,
        first: DataCut[Executable],
        make: Make[Executable],
        part: Callable[[Mapping[str, Dims]], StagedExecutable] | None = None,
    ) -> None:
        self.ports = ports
        self._part = part
        self._parted: dict[tuple[Dims, ...], StagedExecutable] = {}
        self.ranges = {n: r for n, r in first.reads.ranges.items() if n in ports.open}
        self._first = first
        self._make = make
        self._names = tuple(ports.inputs)
        self._lock = threading.Lock()

    @property
    def programs(self) -> int:
        """How many programs have been made so far and are kept."""
        stages = (stage for cut in self._first.walk() for stage in list(cut.made.values()))
        return sum(stage.program is not None for stage in stages)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why programs behind cuts serve one combination of sizes each, where they do."""
        return tuple(dict.fromkeys(cut.reason for cut in self._first.walk() if cut.reason))

    def run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array],
        *,
        labels: bool = True,
        stop: StopFlag | None = None,
    ) -> list[Array]:
        """Run the model once; the outputs in order, as `Executable.run` gives them.

        Raises:
            InvalidInputError: if an input is missing, unknown, or of another shape or dtype, or the
                model contradicts itself for what the data decide, or an artifact has no program for
                that.
            CompilerError: if a stage that this run is the first to need does not compile.
            StoppedError: if `stop` was set before the end.
        """
        return self._run(inputs, labels, stop)[0]

    def programs_of(self, inputs: Mapping[str, Array] | Sequence[Array]) -> list[Ran]:
        """The programs that a run on these inputs consists of, each with its own inputs, in order.

        Raises:
            InvalidInputError, CompilerError: as `run` does.
        """
        return self._run(inputs, labels=False)[1]

    def inputs_at(self, sizes: Mapping[str, int]) -> tuple[Port, ...]:
        """The inputs that are no text, with these sizes of `open`."""
        return tuple(
            Port(
                crossing.name,
                crossing.dtype,
                tuple(sizes[dim] if isinstance(dim, str) else dim for dim in crossing.dims),
            )
            for crossing in self._first.reads.crossings
            if not crossing.text
        )

    def texts_at(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs that are text, by name, with these sizes of `open`."""
        return {
            crossing.name: tuple(sizes[d] if isinstance(d, str) else d for d in crossing.dims)
            for crossing in self._first.reads.crossings
            if crossing.text
        }

    def _run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array],
        labels: bool,
        stop: StopFlag | None = None,
    ) -> tuple[list[Array], list[Ran]]:
        """What a run gives, and what ran for it."""
        ordered = arrays_in_order(inputs, self._names)
        if self._part is not None and (dims := self._apart(ordered)) != self._dims:
            return self._run_parted(self._part, dims, ordered, labels, stop)
        arrays = self._checked(ordered)
        values: dict[str, Array] = dict(zip(self._names, arrays, strict=True))
        ran: list[Ran] = []
        cut: DataCut[Executable] | None = self._first
        while cut is not None:
            stage, given = self._stage(cut, values)
            if stage.program is not None:
                ran.append((stage.program, given))
                found = stage.program.run(given, labels=labels, stop=stop)
                found = found if labels else stage.program.listed(found)
                values |= dict(zip(stage.makes, found, strict=True))
            cut = stage.behind
        return [values[name] for name in self.output_names], ran

    def bind(
        self, states: Mapping[str, str], initial: Mapping[str, Array] | None = None
    ) -> Session:
        """As `Model.bind`. No step copies a state."""
        dtypes = {crossing.name: crossing.dtype.numpy for crossing in self._first.reads.crossings}
        return Session(
            self.ports.inputs,
            self.output_names,
            lambda arrays: None,
            self.run,
            states,
            initial or {},
            dtypes,
        )

    @property
    def _dims(self) -> tuple[Dims, ...]:
        return tuple(self.ports.inputs.values())

    def _apart(self, arrays: Sequence[Array]) -> tuple[Dims, ...]:
        """The dimensions of the inputs; one whose name has another size before it is one of its
        own (`x[0]`)."""
        sizes: dict[str, int] = {}
        found: list[Dims] = []
        for name, dims, array in zip(self._names, self._dims, arrays, strict=True):
            shape = np.shape(array)
            if len(shape) != len(dims):
                return self._dims
            found.append(
                tuple(
                    f"{name}[{position}]"
                    if isinstance(dim, str) and sizes.setdefault(dim, extent) != extent
                    else dim
                    for position, (dim, extent) in enumerate(zip(dims, shape, strict=True))
                )
            )
        return tuple(found)

    def _run_parted(
        self,
        part: Callable[[Mapping[str, Dims]], StagedExecutable],
        dims: tuple[Dims, ...],
        arrays: Sequence[Array],
        labels: bool,
        stop: StopFlag | None,
    ) -> tuple[list[Array], list[Ran]]:
        """Run with these dimensions. If the model cannot have them, the inputs are at fault."""
        try:
            with self._lock:
                other = self._parted.get(dims)
                if other is None:
                    other = part(dict(zip(self._names, dims, strict=True)))
            outputs = other._run(arrays, labels, stop)
        except CompilerError as error:
            try:
                self._checked(arrays)
            except InvalidInputError as refused:
                raise refused from error
            raise
        if dims not in self._parted:
            self._parted[dims] = other
            named = {d for each in dims for d in each if isinstance(d, str)} - set(self.open)
            warnings.warn(
                f"the sizes of {listed(sorted(named))} differ from others of their names: "
                "they are taken as dimensions of their own",
                ModelWarning,
                stacklevel=3,
            )
        return outputs

    def _checked(self, arrays: Sequence[Array]) -> list[Array]:
        """The inputs as programs take them."""
        checked = []
        shapes = shapes_of(arrays, self._names)
        sizes: dict[str, int] = {}
        crossings = self._first.reads.crossings
        for crossing, array, shape in zip(crossings, arrays, shapes, strict=True):
            # those of inputs before this one, so that no program is made for a contradiction
            dims = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in crossing.dims]
            fits = len(shape) == len(dims)
            for size, dim, known in zip(shape, crossing.dims, dims, strict=False):
                if isinstance(dim, str):
                    fits = fits and size in self.ranges.get(dim, (size,))
                    known = sizes.setdefault(dim, size)
                fits = fits and size == known
            taken = crossing.taken(array)
            if not fits or taken is None:
                wanted = "text" if crossing.text else crossing.dtype
                raise InvalidInputError(
                    f"input '{crossing.name}' is {array.dtype} of {shape}, expected "
                    f"{wanted} of {dims_text(tuple(dims))}"
                )
            checked.append(taken)
        return checked

    def _stage(
        self, cut: DataCut[Executable], values: Mapping[str, Array]
    ) -> tuple[DataStage[Executable], dict[str, Array]]:
        """The stage for these values, made if it is not there, and its inputs."""
        while True:
            facts = cut.facts(values)
            stage = self._made(cut, facts, values)
            if stage is None:
                continue  # with other ends, or with a reason
            given = self._given(cut, stage, facts, values)
            if not facts.open or stage.program is None or stage.program.takes(list(given.values())):
                return stage, given
            # Two sizes that the program expresses by each other differ in this run, which says
            # nothing about the next one.
            facts = cut.reads.facts(values, None)
            stage = self._made(cut, facts, values)
            assert stage is not None, "sizes of one run have no ends"
            return stage, self._given(cut, stage, facts, values)

    def _made(
        self, cut: DataCut[Executable], facts: Facts, values: Mapping[str, Array]
    ) -> DataStage[Executable] | None:
        """The stage for these facts; None if none serves their ranges."""
        stage = cut.made.get(facts)
        if stage is not None:
            return stage
        with self._lock:
            if facts.open and facts != cut.facts(values):
                return None  # what another thread has found out meanwhile
            return cut.made.get(facts) or self._make(cut, facts, values)

    @staticmethod
    def _given(
        cut: DataCut[Executable],
        stage: DataStage[Executable],
        facts: Facts,
        values: Mapping[str, Array],
    ) -> dict[str, Array]:
        """The inputs of a stage's program."""
        given = cut.reads.inputs(facts, values)
        return (
            given
            if stage.program is None
            else {p.name: given[p.name] for p in stage.program.inputs}
        )
