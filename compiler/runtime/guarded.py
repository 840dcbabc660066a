"""Compiled models that select among several programs in each run.

Each program has a guard: a condition on the input sizes and on values computed during the run. Some
programs accept all sizes of a range, others only one combination of sizes. In a process that has
the compiler, a missing program is compiled when a run first needs it.

An artifact has a fixed list of programs. If its manifest allows padding, inputs are padded with
zeros to the next larger sizes that have a program, and the outputs are cropped.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias, TypeVar

import numpy as np

from tilewright.compiler.errors import (
    CompilerError,
    InvalidArgumentError,
    InvalidInputError,
    ModelWarning,
)
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.inputs import arrays_in_order, listed, shapes_of
from tilewright.compiler.runtime.model import Model
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import (
    Dims,
    ModelPort,
    ModelPorts,
    Sizes,
    checked_sizes,
    dims_text,
    ranges_text,
    sizes_text,
)
from tilewright.compiler.runtime.program import Port
from tilewright.compiler.runtime.segments import (
    LiveIns,
    Make,
    ModelSegment,
    SegmentBoundary,
    SegmentGuard,
)
from tilewright.compiler.runtime.session import Session
from tilewright.compiler.runtime.stopping import StopFlag
from tilewright.compiler.sizes import Dimension

T = TypeVar("T")

Ran: TypeAlias = tuple[Executable, dict[str, Array]]
"""A program that ran, and its input arrays by name."""

Part: TypeAlias = "Callable[[Mapping[str, Dims]], GuardedModel]"
"""Returns the same model with other names of the inputs' dimensions."""


class GuardedModel(Model):
    """A compiled model that consists of several programs, each with a guard (`SegmentGuard`).

    A guard is the condition on sizes and values under which a run may use the program. Each program
    is compiled only once, even if several threads need it at the same time. A segmented model
    computes some tensor sizes from data. It is divided into segments at boundaries, and each
    segment has its own programs.

    Args:
        ports: the model's inputs and outputs with their dimensions.
        first: the boundary before the first node of the model. It stores the programs for the whole
            model or, if the model is segmented, for the first segment.
        make: a function that compiles the missing program for a guard, and adds it to
            `SegmentBoundary.made`. Calls are serialised by a lock.
        part: a function that returns the same model with other names of input dimensions. It is
            called if two dimensions with the same name have different sizes in a run. None selects
            the default: a model that compiles such programs. A segmented model, or one loaded from
            an artifact, has no default; such a run raises InvalidInputError.

    Raises:
        InvalidArgumentError: if the model pads its inputs, but an output could not be cropped.
    """

    def __init__(
        self,
        ports: ModelPorts,
        first: SegmentBoundary[Executable],
        make: Make[Executable],
        part: Part | None = None,
    ) -> None:
        ports.check_padding()
        self.ports = ports
        self.ranges = {n: r for n, r in first.reads.ranges.items() if n in ports.open}
        self._first = first
        self._make = make
        if part is None and first.whole and first.served is None:
            part = self._with_inputs
        self._part = part
        self._parted: dict[tuple[Dims, ...], GuardedModel] = {}
        self._names = tuple(ports.inputs)
        self._dims = tuple(ports.inputs.values())
        self._lock = threading.Lock()
        self._direct: Executable | None = None
        for facts in first.made:
            self._direct = self._first_to_try(facts)

    # ---- description

    @property
    def inputs(self) -> tuple[ModelPort, ...]:
        return self.ports.described(self.ports.inputs)

    @property
    def outputs(self) -> tuple[ModelPort, ...]:
        return self.ports.described(self.ports.outputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(self.ports.outputs)

    @property
    def open(self) -> tuple[str, ...]:
        """The names of all dynamic dimensions of the inputs, without duplicates, in order."""
        return self.ports.open

    @property
    def is_segmented(self) -> bool:
        """Whether the model runs in segments, because a run computes some sizes from data."""
        return not self._first.whole

    @property
    def programs(self) -> int:
        """The number of programs that have been compiled or loaded so far."""
        stages = (stage for cut in self._first.walk() for stage in list(cut.made.values()))
        return sum(stage.program is not None for stage in stages)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Messages that explain why programs have fixed sizes, or smaller ranges than requested."""
        return tuple(dict.fromkeys(text for cut in self._first.walk() for text in cut.reasons))

    @property
    def reason(self) -> str:
        """The first entry of `GuardedModel.reasons`, or an empty string."""
        return next(iter(self.reasons), "")

    @property
    def ranged(self) -> Executable | None:
        """The program that accepts ranges of sizes.

        None if all programs have fixed sizes, or the model is segmented (computes some sizes from
        data, so that a run needs several programs).
        """
        found = (stage.program for facts, stage in list(self._first.made.items()) if facts.open)
        return next(found, None) if self._first.whole else None

    @property
    def made(self) -> tuple[Sizes, ...]:
        """The combinations of sizes that have a program with fixed sizes, in order of first use.

        It is empty for segmented models (those that compute some sizes from data).
        """
        made = tuple(self._first.made) if self._first.whole else ()
        own = tuple(tuple(sorted(facts.sizes)) for facts in made if not facts.open)
        return own + tuple(sizes for other in self._parted.values() for sizes in other.made)

    @property
    def served(self) -> tuple[Sizes, ...] | None:
        """The combinations of sizes for which an artifact has a program with fixed sizes.

        It is None if the model can compile programs for other sizes, or is segmented (computes some
        sizes from data).
        """
        listed_ = self._first.served
        if listed_ is None or self.is_segmented:
            return None
        return tuple(tuple(sorted(facts.sizes)) for facts in listed_ if not facts.open)

    def inputs_at(self, sizes: Mapping[str, int]) -> tuple[Port, ...]:
        """Return the inputs at given sizes of the dynamic dimensions, excluding string inputs.

        `sizes` maps each name in `GuardedModel.open` to its size.
        """
        return tuple(
            Port(crossing.name, crossing.dtype, _shape(crossing.dims, sizes))
            for crossing in self._first.reads.crossings
            if not crossing.text
        )

    def texts_at(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each string input, by name, at given sizes of the dynamic dimensions.

        `sizes` maps each name in `GuardedModel.open` to its size.
        """
        return {
            crossing.name: _shape(crossing.dims, sizes)
            for crossing in self._first.reads.crossings
            if crossing.text
        }

    def executable(self, sizes: Mapping[str, int]) -> Executable:
        """Return the program with exactly these fixed sizes, and compile it if it does not exist.

        Later runs with these sizes use this program.

        Raises:
            InvalidInputError: if an artifact has no program for the sizes, or a size is outside its
                range.
            ArtifactError: if an artifact's program computes one of the sizes from the others, and
                the result differs from this size.
            InvalidArgumentError: if the sizes are not a mapping from names to integers, or the
                model is segmented, so that no single program computes the whole model.
            CompilerError: if the compilation fails.
        """
        cut, given = self._first, checked_sizes(sizes)
        facts = cut.reads.at(given)
        if not cut.whole:
            raise InvalidArgumentError(
                "sizes of this model depend on the data: none of its programs is the whole model"
            )
        if facts not in cut.made:
            if facts not in (cut.served or ()):
                for name, size in sorted(given.items()):
                    known = self.ranges.get(name)
                    if known is not None and size not in known:
                        raise InvalidInputError(
                            f"dimension '{name}' is {size}, expected {self._expected(known)}"
                        )
                if cut.served is not None and not self._in_ranges(given):
                    raise self._not_served(facts)
            with self._lock:
                if facts not in cut.made:
                    self._make(cut, facts, {})
                    self._direct = None
        stage = cut.made[facts]
        assert stage.program is not None
        return stage.program

    def _in_ranges(self, sizes: Mapping[str, int]) -> bool:
        """Whether `sizes` has a size for each dynamic dimension of the program for ranges of sizes.

        Only names are compared; the sizes may lie outside the ranges. The result is False if a name
        in `sizes` is not a dimension of the model. It is also False if all of the model's programs
        have fixed sizes.
        """
        if self.ranged is None:
            return False
        needed = {dimension.name for dimension in self.ranged.dimensions}
        return needed <= sizes.keys() <= needed | set(self.open)

    # ---- runs

    def run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array],
        *,
        labels: bool = True,
        stop: StopFlag | None = None,
    ) -> list[Array]:
        direct = self._direct
        if direct is not None:
            try:
                return direct.run(inputs, labels=labels, stop=stop)
            except InvalidInputError:
                # the error does not concern sizes, such as a wrong dtype
                if direct.takes(arrays_in_order(inputs, self._names)):
                    raise
        return self._run(inputs, labels, stop)[0]

    def programs_of(self, inputs: Mapping[str, Array] | Sequence[Array]) -> list[Ran]:
        """Run the model, and return the programs that ran, in order, each with its inputs by name.

        Raises:
            InvalidInputError: if an input is missing or unknown, has a wrong shape or dtype, a
                dimension is outside its range, or an artifact has no program for the inputs.
            CompilerError: if the run needs a new program, and its compilation fails.
        """
        return self._run(inputs, labels=False)[1]

    def _run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array],
        labels: bool,
        stop: StopFlag | None = None,
    ) -> tuple[list[Array], list[Ran]]:
        """Run the model once, and return its outputs, and each program that ran with its inputs."""
        ordered = arrays_in_order(inputs, self._names)
        if (dims := self._apart(ordered)) != self._dims:
            return self._parted_as(dims, ordered, lambda other: other._run(ordered, labels, stop))
        values = self._values(ordered)
        if self.ports.pad and self._first.guard(values) not in (self._first.served or ()):
            return self._padded(values, labels, stop)
        ran: list[Ran] = []
        cut: SegmentBoundary[Executable] | None = self._first
        while cut is not None:
            stage, given = self._stage(cut, values)
            if stage.program is not None:
                ran.append((stage.program, given))
                found = stage.program.run(list(given.values()), labels=labels, stop=stop)
                if cut.whole:
                    return found, ran
                found = found if labels else stage.program.listed(found)
                values |= dict(zip(stage.makes, found, strict=True))
            cut = stage.behind
        return [values[name] for name in self.output_names], ran

    def bind(
        self, states: Mapping[str, str], initial: Mapping[str, Array] | None = None
    ) -> Session:
        names = self.output_names
        if self.ranged is not None:
            names = tuple(port.name for port in self.ranged.outputs)
        dtypes = {crossing.name: crossing.dtype.numpy for crossing in self._first.reads.crossings}
        return Session(
            self.ports.inputs, names, self.program_for, self.run, states, initial or {}, dtypes
        )

    def program_for(self, arrays: Sequence[Array]) -> Executable | None:
        """Return the program that `run` selects for these inputs.

        The result is None for a segmented model, which computes some sizes from data, so that a run
        needs several programs.
        """
        if not self._first.whole:
            return None
        if self._direct is not None and self._direct.takes(arrays):
            return self._direct
        if (dims := self._apart(arrays)) != self._dims:
            return self._parted_as(dims, arrays, lambda other: other.program_for(arrays))
        return self._stage(self._first, self._values(arrays))[0].program

    def _first_to_try(self, facts: SegmentGuard) -> Executable | None:
        """Return the program with the guard `facts`, if runs may try this program first.

        A guard is the condition on sizes under which a program may be used. A run that tries a
        program first does not compare guards: it uses the program whenever the program accepts the
        inputs. The result is None in four cases, in which the run could use a wrong program:

        - The model computes some sizes from data (is segmented).
        - A program with fixed sizes has priority for some sizes.
        - Inputs may be padded.
        - The program accepts sizes outside the model's ranges.
        """
        cut = self._first
        listed_ = cut.served or ()
        if not cut.whole or cut.own or self.ports.pad or any(f not in cut.made for f in listed_):
            return None
        if not all(each.open for each in tuple(cut.made)):
            return None
        program = cut.made[facts].program
        assert program is not None
        # the program computes other dimensions from these, and does not check their ranges
        known = {d.name for d in program.dimensions} | dict(facts.sizes).keys()
        return None if any(n in self.ranges and n not in known for n in self.open) else program

    # ---- inputs

    def _values(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Check the shapes of the inputs, and return the arrays by name.

        For a segmented model (one that computes some sizes from data), this also checks the dtypes,
        and converts bfloat16 to raw bits.

        Raises:
            InvalidInputError: if an input is not an array, or its shape or dtype is wrong.
        """
        sizes: dict[str, tuple[int, str]] = {}
        outside: tuple[str, Dimension] | None = None
        shapes = shapes_of(arrays, self._names)
        for name, dims, shape in zip(self._names, self._dims, shapes, strict=True):
            fits = len(shape) == len(dims) and all(
                isinstance(dim, str) or extent == dim
                for extent, dim in zip(shape, dims, strict=True)
            )
            if not fits:
                raise InvalidInputError(
                    f"input '{name}' has shape {shape}, expected {dims_text(dims)}"
                )
            for position, (extent, dim) in enumerate(zip(shape, dims, strict=True)):
                if not isinstance(dim, str):
                    continue
                known = self.ranges.get(dim)
                if known is not None and extent not in known and outside is None:
                    outside = f"{_dimension(name, position, dim)} is {extent}", known
                first, other = sizes.setdefault(dim, (extent, name))
                if first != extent:
                    where = _dimension(name, position, dim)
                    raise InvalidInputError(f"{where} is {extent}, input '{other}' has {first}")
        values = dict(zip(self._names, arrays, strict=True))
        if not self._first.whole:  # otherwise the program checks its inputs
            for crossing in self._first.reads.crossings:
                values[crossing.name] = crossing.taken(values[crossing.name])
        if outside is not None and not self._has_own(values):
            raise InvalidInputError(f"{outside[0]}, expected {self._expected(outside[1])}")
        return values

    def _has_own(self, values: Mapping[str, Array]) -> bool:
        """Whether an artifact supports inputs although a size is outside its dimension's range.

        This is the case if the artifact has a program for exactly these sizes, or may pad inputs.
        The result is false for models that are not artifacts, and for models that compute some
        sizes from data (segmented models).
        """
        served = self._first.served
        if not self._first.whole or served is None:
            return False
        return self.ports.pad or self._first.reads.exact(values) in served

    def _expected(self, known: Dimension) -> str:
        """Format the accepted sizes of a dimension for an error, such as `1..4, or batch=8`.

        The text has the range, and all combinations of fixed sizes that have a program.
        """
        return ", or ".join([known.range_text, *map(sizes_text, self.served or ())])

    def _not_served(self, facts: SegmentGuard) -> InvalidInputError:
        served = [
            ranges_text(each.open) or sizes_text(tuple(sorted(each.sizes)))
            for each in self._first.served or ()
        ]
        asked = sizes_text(tuple(sorted(facts.sizes)))
        return InvalidInputError(f"{asked} is not served, only {'; '.join(served)}")

    def _apart(self, arrays: Sequence[Array]) -> tuple[Dims, ...]:
        """Return the dimensions of each input, after renaming those with contradictory sizes.

        For example, if the inputs `x` and `y` have a first dimension `batch`, but `x` has 2 rows
        and `y` has 3 rows in this run, the first dimension of `y` becomes `y[0]`.
        """
        sizes: dict[str, int] = {}
        found: list[Dims] = []
        if self._part is None:
            return self._dims
        for name, dims, shape in zip(
            self._names, self._dims, shapes_of(arrays, self._names), strict=True
        ):
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

    def _with_inputs(self, inputs: Mapping[str, Dims]) -> GuardedModel:
        """Return the model with other names of input dimensions, and without compiled programs.

        `inputs` maps the name of each input to its new dimensions. This model must not compute
        sizes from data (must not be segmented).
        """
        ports, reads = replace(self.ports, inputs=inputs), self._first.reads.with_dims(inputs)
        return GuardedModel(ports, unsegmented(reads, ports), self._make)

    def _parted_as(
        self,
        dims: tuple[Dims, ...],
        arrays: Sequence[Array],
        use: Callable[[GuardedModel], T],
    ) -> T:
        """Call `use` with a model whose inputs have the dimensions `dims`, and return its result.

        The first call for `dims` creates this model and emits a ModelWarning. If a call fails, the
        error states which dimensions of `arrays` have the same name but different sizes.
        """
        try:
            with self._lock:
                other = self._parted.get(dims)
                if other is None:
                    assert self._part is not None
                    other = self._part(dict(zip(self._names, dims, strict=True)))
            found = use(other)
        except CompilerError as error:
            try:
                self._values(arrays)
            except InvalidInputError as refused:
                raise refused from error
            raise
        if dims not in self._parted:
            self._parted[dims] = other
            named = {d for each in dims for d in each if isinstance(d, str)} - set(self.open)
            warnings.warn(
                f"the sizes of {listed(sorted(named))} differ from others of the same name: "
                "they are treated as separate dimensions",
                ModelWarning,
                stacklevel=4,
            )
        return found

    def _padded(
        self, values: Mapping[str, Array], labels: bool, stop: StopFlag | None
    ) -> tuple[list[Array], list[Ran]]:
        """Pad the inputs to the sizes of a program, run the program, and crop the outputs.

        Return the cropped outputs, and a list with one item: the program and its padded inputs.
        """
        sizes = dict(self._first.reads.exact(values).sizes)
        larger = self._next_sizes(sizes)
        padded = {
            name: _enlarged(np.asarray(values[name]), _shape(dims, larger))
            for name, dims in self.ports.inputs.items()
        }
        executable = self.executable(larger)
        results = executable.run(list(padded.values()), labels=False, stop=stop)
        cut = [
            _cut(result, _shape(dims, sizes))
            for result, dims in zip(results, self.ports.outputs.values(), strict=True)
        ]
        return executable.labelled(cut) if labels else cut, [(executable, padded)]

    def _next_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the fixed sizes of the program for which inputs of `sizes` are padded least.

        No size of the result is less than in `sizes`. If several programs qualify, the one with the
        smallest product of sizes is selected.

        Raises:
            InvalidInputError: if each program has a size that is too small.
        """
        fitting = [
            served
            for served in self.served or ()
            if all(size >= sizes[name] for name, size in served)
        ]
        if not fitting:
            raise self._not_served(SegmentGuard(tuple(sizes.items())))
        return dict(min(fitting, key=lambda each: (prod(size for _, size in each), each)))

    # ---- segments

    def _stage(
        self, cut: SegmentBoundary[Executable], values: Mapping[str, Array]
    ) -> tuple[ModelSegment[Executable], dict[str, Array]]:
        """Return the segment with which a run continues after a boundary, and its program's inputs.

        A segment is a part of the model that one program computes. It is compiled if it does not
        exist.

        Args:
            cut: the boundary: a point between segments, or the start of the model.
            values: the arrays that the run has computed before the boundary, by name. At the start,
                they are the model's inputs.

        Returns:
            The segment, and the inputs of its program by name.
        """
        while True:
            facts = cut.guard(values)
            stage = self._made(cut, facts, values)
            if stage is None:
                continue  # retry: the boundary has new split points or a reason
            given = self._given(cut, stage, facts, values)
            if not facts.open or stage.program is None or stage.program.takes(list(given.values())):
                if cut.whole:
                    self._direct = self._first_to_try(facts)
                return stage, given
            # The program computes one size from another, and the sizes of this run contradict this
            # computation. Other runs may still use the program.
            facts = cut.reads.exact(values)
            stage = self._made(cut, facts, values)
            assert stage is not None, "sizes of one run have no ends"
            return stage, self._given(cut, stage, facts, values)

    def _made(
        self, cut: SegmentBoundary[Executable], facts: SegmentGuard, values: Mapping[str, Array]
    ) -> ModelSegment[Executable] | None:
        """Return the segment with the guard `facts`, and compile it if it does not exist.

        A segment is a part of the model that one program computes. Its guard is the condition on
        sizes and values under which a run may use the segment. The result is None if one program
        cannot serve all sizes of the guard. The caller must then compute a narrower guard. A failed
        compilation, here or in another thread, has shown that ranges must be split or sizes must be
        fixed.

        Args:
            cut: the boundary before the segment.
            facts: the guard.
            values: the arrays that the run has computed before the boundary, by name.

        Raises:
            InvalidInputError: if an artifact has no segment with this guard.
        """
        stage = cut.made.get(facts)
        if stage is not None:
            return stage
        if cut.served is not None and facts not in cut.served:
            if cut.whole:
                raise self._not_served(facts)
            raise InvalidInputError(
                f"the artifact has no program for the values that the data determine: {facts.text}"
            )
        with self._lock:
            if facts.open and facts != cut.guard(values):
                return None  # another thread has changed the split points
            return cut.made.get(facts) or self._make(cut, facts, values)

    @staticmethod
    def _given(
        cut: SegmentBoundary[Executable],
        stage: ModelSegment[Executable],
        facts: SegmentGuard,
        values: Mapping[str, Array],
    ) -> dict[str, Array]:
        """Return the inputs of a segment's program by name.

        A segment is a part of the model that one program computes.

        Args:
            cut: the boundary before the segment.
            stage: the segment.
            facts: the segment's guard: the condition under which a run may use it.
            values: the arrays that are known at the boundary, by name.
        """
        if cut.whole:
            return dict(values)
        given = cut.reads.inputs(facts, values)
        if stage.program is None:
            return given
        return {port.name: given[port.name] for port in stage.program.inputs}


def unsegmented(
    reads: LiveIns,
    ports: ModelPorts,
    ranged: Executable | None = None,
    served: Iterable[Sizes] | None = None,
    own: Iterable[Sizes] = (),
    reason: str = "",
) -> SegmentBoundary[Executable]:
    """Return a boundary with the programs of a model that is not divided into segments.

    A model that computes some sizes from data is divided into segments, and a run needs the
    program of each. A run of any other model needs a single program. The boundary stores the
    programs of such a model, and a run selects one by the sizes of its inputs.

    Args:
        reads: the model's inputs, with the ranges of their dimensions.
        ports: the model's inputs and outputs.
        ranged: a compiled program with dynamic sizes, or None. Its ranges may be smaller than those
            of `reads`.
        served: combinations of sizes for which an artifact has programs; None outside of artifacts.
        own: combinations of sizes for which a program with fixed sizes is compiled on first use,
            even if `ranged` accepts them.
        reason: a message that explains why no program accepts all sizes of the ranges.
    """
    listed_ = None if served is None else [reads.at(dict(sizes)) for sizes in served]
    made = {}
    if ranged is not None:
        known = {**reads.ranges, **{d.name: d for d in ranged.dimensions}}
        facts = SegmentGuard(
            open=tuple(known.get(name) or Dimension(name, 0) for name in ports.open)
        )
        made[facts] = ModelSegment(ranged, tuple(ports.outputs), None)
    return SegmentBoundary(
        reads,
        made=made,
        reason=reason,
        own=frozenset(reads.at(dict(sizes)) for sizes in own),
        served=None if listed_ is None else (*listed_, *made),
        whole=True,
        ranged=False,
    )


def _dimension(name: str, position: int, dim: str) -> str:
    return f"input '{name}': dimension {position} ('{dim}')"


def _shape(dims: Dims, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in dims)


def _enlarged(array: Array, shape: tuple[int, ...]) -> Array:
    """Pad an array with zeros at the end of each dimension, up to a shape."""
    if array.shape == shape:
        return array
    whole = np.zeros(shape, array.dtype)
    whole[tuple(map(slice, array.shape))] = array
    return whole


def _cut(array: Array, shape: tuple[int, ...]) -> Array:
    """Crop an array to a smaller shape, by keeping the leading elements of each dimension."""
    if array.shape == shape:
        return array
    return np.ascontiguousarray(array[tuple(map(slice, shape))])
