"""Executables of models that are cut where the data decide a size (`compiler.frontend.stages`).

A run goes from cut to cut. What the data decide is known at each: a size, or which branch is
taken. Behind a cut one program serves all sizes above 0, as for a model with open dimensions; sizes
of 0, truth values and numbers that are no sizes have programs of their own, which are made when a
run first needs them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from compiler.errors import (
    CompilerError,
    InvalidArgumentError,
    InvalidInputError,
    InvalidModelError,
    OutOfMemoryError,
    enough_memory_for,
)
from compiler.frontend.model_file import ReadModel, with_tensors
from compiler.frontend.onnx_import import ModelImport, importing
from compiler.frontend.stages import Crossing, Facts, Rest
from compiler.frontend.tensors import element_type
from compiler.graph.ir import Graph
from compiler.ranges import turning_point
from compiler.runtime.executable import Executable
from compiler.runtime.inputs import arrays_in_order, shapes_of
from compiler.runtime.packing import Array
from compiler.runtime.ports import OpenPorts, dims_text
from compiler.runtime.session import Session
from compiler.sizes import Dimension, OpenSizeError

Compile = Callable[[Graph], Executable]

PROGRAMS_LIMIT = 64
"""Programs that are kept behind one cut; the oldest gives way."""

ENDS_LIMIT = 8
"""A dimension's range is parted at so many sizes at most."""

TAKEN_FOR_NUMBERS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError)
"""What code raises that was written for numbers and meets an open size: a bug, which costs the
program for the range alone, since each size compiles without."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """A program between two cuts, None where nothing is to be computed, and what is behind it.

    `makes` are the names of its outputs in the model; the program's own differ where an output is
    an input or a constant.
    """

    executable: Executable | None
    makes: tuple[str, ...]
    behind: _Cut | None


@dataclass(slots=True, eq=False)
class _Cut:
    """A rest of the model, with the programs that were made for it.

    `ends` are sizes that no range reaches across, by name: what the model asks of a size has one
    answer up to there and another one from there on. `reason` says why no program serves ranges of
    sizes; it is empty while one may.
    """

    rest: Rest
    compile: Compile
    ends: dict[str, list[int]] = field(default_factory=dict)
    made: dict[Facts, _Stage] = field(default_factory=dict)
    reason: str = ""


class StagedExecutable:
    """A compiled model whose data decide sizes that other nodes have to know.

    `run` may be called from several threads at once; a program is made once.

    Args:
        model: what was read of it.
        ports: its inputs and outputs, without the dimensions that the caller gives a size.
        ranges: the sizes that open dimensions may have, by name; those without one may have any.
        compiling: gives what compiles the graphs of one stage.

    Raises:
        CompilerError: if the first stage does not compile.
    """

    def __init__(
        self,
        model: ReadModel,
        ports: OpenPorts,
        ranges: Mapping[str, Dimension],
        compiling: Callable[[], Compile],
    ) -> None:
        self.ports = ports
        self.ranges = {name: r for name, r in ranges.items() if name in ports.open}
        self._compiling = compiling
        self._names = tuple(ports.inputs)
        self._lock = threading.Lock()
        self._first = _Cut(_whole(model, ports, self.ranges), compiling())
        if not ports.open:
            nothing: dict[str, Array] = {}
            with self._lock:
                self._made(self._first, Facts(), nothing)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of what `run` returns, in order."""
        return tuple(self.ports.outputs)

    @property
    def programs(self) -> int:
        """How many programs have been made so far and are kept."""
        waiting, count = [self._first], 0
        while waiting:
            stages = list(waiting.pop().made.values())
            count += sum(stage.executable is not None for stage in stages)
            waiting += [stage.behind for stage in stages if stage.behind is not None]
        return count

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why programs behind cuts serve one combination of sizes each, where they do."""
        waiting, found = [self._first], []
        while waiting:
            cut = waiting.pop(0)
            found += [cut.reason] if cut.reason else []
            waiting += [s.behind for s in cut.made.values() if s.behind is not None]
        return tuple(dict.fromkeys(found))

    def run(
        self, inputs: Mapping[str, Array] | Sequence[Array], *, labels: bool = True
    ) -> list[Array]:
        """Run the model once; the outputs in order, as `Executable.run` gives them.

        Raises:
            InvalidInputError: if an input is missing, unknown, or of another shape or dtype, or the
                model contradicts itself for what the data decide.
            CompilerError: if a stage that this run is the first to need does not compile.
        """
        arrays = arrays_in_order(inputs, self._names)
        self._check(arrays)
        values: dict[str, Array] = dict(zip(self._names, arrays, strict=True))
        cut: _Cut | None = self._first
        while cut is not None:
            stage, given = self._stage(cut, values)
            if stage.executable is not None:
                found = stage.executable.run(given, labels=labels)
                values |= dict(zip(stage.makes, found, strict=True))
            cut = stage.behind
        return [values[name] for name in self.output_names]

    def bind(
        self, states: Mapping[str, str], initial: Mapping[str, Array] | None = None
    ) -> Session:
        """Raises InvalidArgumentError: sessions are of models that are not cut."""
        raise InvalidArgumentError(
            "no state is kept between runs of a model whose data decide sizes of other nodes"
        )

    def _check(self, arrays: Sequence[Array]) -> None:
        shapes = shapes_of(arrays, self._names)
        sizes: dict[str, int] = {}
        for crossing, array, shape in zip(self._first.rest.crossings, arrays, shapes, strict=True):
            # those of inputs before this one, so that no program is made for a contradiction
            dims = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in crossing.dims]
            fits = len(shape) == len(dims)
            for size, dim, known in zip(shape, crossing.dims, dims, strict=False):
                if isinstance(dim, str):
                    fits = fits and size in self.ranges.get(dim, (size,))
                    known = sizes.setdefault(dim, size)
                fits = fits and size == known
            if not fits or array.dtype != crossing.dtype.numpy:
                raise InvalidInputError(
                    f"input '{crossing.name}' is {array.dtype} of {shape}, expected "
                    f"{crossing.dtype} of {dims_text(tuple(dims))}"
                )

    def _stage(self, cut: _Cut, values: Mapping[str, Array]) -> tuple[_Stage, dict[str, Array]]:
        """The stage for these values, made if it is not there, and its inputs."""
        while True:
            facts = cut.rest.facts(values, None if cut.reason else cut.ends)
            stage = cut.made.get(facts)
            if stage is None:
                with self._lock:
                    if facts != cut.rest.facts(values, None if cut.reason else cut.ends):
                        continue  # what another thread has found out meanwhile
                    stage = cut.made.get(facts) or self._made(cut, facts, values)
            if stage is None:
                continue  # with other ends, or with a reason
            given = cut.rest.inputs(facts, values)
            if stage.executable is None:
                return stage, given
            given = {port.name: given[port.name] for port in stage.executable.inputs}
            if not facts.open or stage.executable.takes(list(given.values())):
                return stage, given
            # Two sizes that the program expresses by each other differ in this run.
            cut.reason = "sizes that the model needs to be equal are not, or only sometimes"

    def _made(self, cut: _Cut, facts: Facts, values: Mapping[str, Array]) -> _Stage | None:
        """A new stage; None if none serves these ranges: there are new ends, or a reason."""
        try:
            stage = self._compiled(cut, facts, values)
        except OutOfMemoryError:
            raise
        except OpenSizeError as error:
            point = turning_point(error.undecided)
            ends = cut.ends.setdefault(point[0].name, []) if point else []
            if point and point[1] not in ends and len(ends) < ENDS_LIMIT:
                ends.append(point[1])
            else:
                cut.reason = str(error)
            return None
        except CompilerError as error:
            if facts.open:
                cut.reason = str(error)
                return None
            if isinstance(error, InvalidModelError) and cut is not self._first:
                raise InvalidInputError(f"for what the data decide, {error}") from error
            raise
        except TAKEN_FOR_NUMBERS as error:
            if not facts.open:
                raise
            cut.reason = f"a size is taken for a number ({type(error).__name__}: {error})"
            return None
        while len(cut.made) >= PROGRAMS_LIMIT:
            del cut.made[next(iter(cut.made))]
        cut.made[facts] = stage
        return stage

    def _compiled(self, cut: _Cut, facts: Facts, values: Mapping[str, Array]) -> _Stage:
        model = cut.rest.at(facts, values)
        before = None if cut is self._first else cut.rest

        def stage(found: ModelImport) -> tuple[Graph | None, tuple[str, ...], Rest | None]:
            return found.stage(before)

        with enough_memory_for("to compile the model"):
            graph, makes, rest = importing(model, {d.name: d for d in facts.open}, stage)
            executable = None if graph is None else cut.compile(graph)
            behind = None if rest is None else _Cut(rest, self._compiling())
            return _Stage(executable, makes, behind)


def _whole(model: ReadModel, ports: OpenPorts, ranges: Mapping[str, Dimension]) -> Rest:
    """A model as what is left of itself: its inputs are what it reads."""
    source = with_tensors(model)
    filled = {tensor.name for tensor in source.proto.graph.initializer}
    kinds = {
        info.name: element_type(info.type.tensor_type.elem_type, f"input '{info.name}'")
        for info in source.proto.graph.input
        if info.name not in filled
    }
    proto = type(source.proto)()
    proto.CopyFrom(source.proto)
    del proto.graph.input[:]
    crossings = tuple(
        Crossing(name, "", kinds[name], dims, deciding=False) for name, dims in ports.inputs.items()
    )
    return Rest(replace(source, proto=proto), crossings, ranges, "")
