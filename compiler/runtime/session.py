"""Sessions: runs that follow each other, with values that stay between them.

A state is an output that the next run takes as an input. The session holds its memory, and no step
copies it. Where a program changes the input in place (`Program.in_place`: a cache to which rows are
added), both are the same memory. Elsewhere there are two buffers: a run reads one and writes the
other, and they change places.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compiler.errors import InvalidArgumentError, InvalidInputError, enough_memory_for
from compiler.runtime.inputs import Placed, arrays_in_order, listed, shapes_of
from compiler.runtime.memory import check_memory
from compiler.runtime.packing import Array, Bytes, aligned_empty, aligned_zeros
from compiler.runtime.ports import Dims, dims_text
from compiler.sizes import is_open

if TYPE_CHECKING:
    from compiler.runtime.context import SizedPort
    from compiler.runtime.executable import Executable
    from compiler.runtime.program import Port

GROWTH = 2
"""A state that grows gets room for so many times as much, so that few steps need new memory."""

STEPS = 64
"""Shapes of steps that a session remembers what to do for."""


class Session:
    """Runs of one model that follow each other; made by `Executable.bind`.

    A session is one sequence of steps: it takes one step at a time. Sessions of one executable
    share its code and weights, and may run at the same time.

    Attributes:
        input_names: what `run` takes: the inputs that are no states.
        output_names: what `run` gives, in order: the outputs that are no states.
        states: the inputs that are states.

    Args:
        inputs: the dimensions of the model's inputs, by name and in order.
        outputs: the names of its outputs, in order.
        fitting: the executable for these inputs, states among them.
        states: for each output that is kept the input that it becomes.
        initial: first values, by input.

    Raises:
        InvalidArgumentError: if what is given is no mapping, a name is unknown, two outputs
            become one input, or a first value is missing.
        InvalidInputError: if a first value has another shape than its input.
        OutOfMemoryError: if there is no room for the first values.
    """

    def __init__(
        self,
        inputs: Mapping[str, Dims],
        outputs: Sequence[str],
        fitting: Callable[[Sequence[Array]], Executable],
        states: Mapping[str, str],
        initial: Mapping[str, Array],
    ) -> None:
        for what, given in (("states", states), ("initial", initial)):
            if not isinstance(given, Mapping):
                raise InvalidArgumentError(f"{what} is a mapping from names, not {given!r}")
        order = tuple(inputs)
        self._fitting = fitting
        self._states: list[_State] = []
        taken: dict[str, str] = {}
        for output, name in states.items():
            if output not in outputs:
                raise InvalidArgumentError(
                    f"there is no output '{output}', the outputs are {listed(outputs)}"
                )
            if not isinstance(name, str) or name not in inputs:
                raise InvalidArgumentError(
                    f"there is no input '{name}', the inputs are {listed(order)}"
                )
            if name in taken:
                raise InvalidArgumentError(
                    f"input '{name}' is bound to two outputs, '{taken[name]}' and '{output}'"
                )
            taken[name] = output
            self._states.append(
                _State(name, order.index(name), outputs.index(output), inputs[name])
            )
        for name in initial:
            if name not in taken:
                raise InvalidArgumentError(
                    f"'{name}' has a first value and is no state, the states are {listed(taken)}"
                )
        self._states.sort(key=lambda state: state.input)
        for state in self._states:
            state.begin_with(initial.get(state.name))
        kept = {state.output for state in self._states}
        self.states = tuple(taken)
        self.input_names = tuple(name for name in order if name not in taken)
        self.output_names = tuple(name for k, name in enumerate(outputs) if k not in kept)
        self._steps: dict[object, tuple[Executable, Sequence[_Move]]] = {}
        self._lock = threading.Lock()

    def run(self, inputs: Mapping[str, Array] | Sequence[Array] = ()) -> list[Array]:
        """Take one step.

        Args:
            inputs: arrays by name, or in the order of `input_names`.

        Returns:
            The outputs that are no states, in the order of `output_names`, as new arrays. The
            states are those of the next step.

        Raises:
            InvalidInputError: if an input is missing, unknown, a state, or of another shape or
                dtype; the states stay as they are.
            InvalidArgumentError: if another thread is running this session.
            OutOfMemoryError: as `Executable.run` does.
        """
        with _alone(self._lock):
            if isinstance(inputs, Mapping) and (bound := self._by_name(inputs)) is not None:
                raise InvalidInputError(f"input '{bound}' is a state of this session")
            given = arrays_in_order(inputs, self.input_names)
            executable, moves = self._step(given)
            arrays: list[Array | Placed] = [*given]
            for state, before, _, _ in moves:  # in the order of the inputs
                arrays.insert(state.input, state.of(before))
            written = {
                state.output: state.next(after, in_place=in_place)
                for state, _, after, in_place in moves
            }
            outputs = executable.run_into(arrays, written)
            for state in self._states:
                state.advance()
            shown = executable.labelled(outputs)
            return [array for k, array in enumerate(shown) if k not in written]

    def state(self, name: str) -> Array:
        """A copy of what the next step finds in an input.

        Raises:
            InvalidArgumentError: if it is no state, another thread is running this session, or
                nothing has said yet what type it has.
        """
        with _alone(self._lock):
            return self._named(name).copied()

    def reset(self) -> None:
        """Put the first values back into the states.

        Raises:
            InvalidArgumentError: if another thread is running this session.
        """
        with _alone(self._lock):
            for state in self._states:
                state.reset()

    def check(self, executable: Executable) -> None:
        """Check that the states fit an executable.

        Raises:
            InvalidArgumentError: if an output cannot become its input: they differ in dtype or
                shape, or the data decide how many elements there are.
            InvalidInputError: if a first value has another dtype.
        """
        for state in self._states:
            state.check(executable.inputs[state.input], executable.outputs[state.output])

    def _step(self, given: Sequence[Array]) -> tuple[Executable, Sequence[_Move]]:
        """What runs for inputs of these shapes, and what becomes of the states."""
        key = (*shapes_of(given, self.input_names), *(state.shape for state in self._states))
        found = self._steps.get(key)
        if found is None:
            arrays = [*given]
            for state in self._states:
                arrays.insert(state.input, state.value())
            executable = self._fitting(arrays)
            self.check(executable)
            taken, made = executable.ports_for(arrays)
            moves = [
                _Move(
                    state,
                    taken[state.input],
                    made[state.output],
                    executable.in_place.get(state.output) == state.input,
                )
                for state in self._states
            ]
            if len(self._steps) >= STEPS:
                self._steps.clear()
            found = self._steps[key] = executable, moves
        return found

    def _by_name(self, inputs: Mapping[str, Array]) -> str | None:
        return next((name for name in self.states if name in inputs), None)

    def _named(self, name: str) -> _State:
        for state in self._states:
            if state.name == name:
                return state
        raise InvalidArgumentError(
            f"there is no state '{name}', the states are {listed(self.states)}"
        )


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Memory of a state, which may be more than it takes, and the array at its start."""

    memory: Bytes
    placed: Placed


class _State:
    """One input, and the output that becomes it.

    `_now` is what the next step finds; None before the first. `_spare` is what a step writes to
    that cannot work in place.
    """

    def __init__(self, name: str, input_: int, output: int, dims: Dims) -> None:
        self.name = name
        self.input = input_
        self.output = output
        self._dims = dims
        self._grows = any(isinstance(dim, str) for dim in dims)
        self._dtype: np.dtype[Any] | None = None
        self._first: Array | None = None
        self._now: _Buffer | None = None
        self._next: _Buffer | None = None
        self._spare: _Buffer | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """That of what the next step finds."""
        return self.value().shape

    def begin_with(self, first: Array | None) -> None:
        """Set the first value; None is zeros."""
        if first is None:
            if self._grows:
                raise InvalidArgumentError(
                    f"state '{self.name}' has open dimensions {dims_text(self._dims)}: "
                    "give its first value in `initial`"
                )
            return
        if not isinstance(first, np.ndarray | np.generic):
            raise InvalidInputError(
                f"the first value of '{self.name}' is of type {type(first).__name__}, "
                "expected an array"
            )
        if not _fits(first.shape, self._dims):
            raise InvalidInputError(
                f"the first value of '{self.name}' has shape {first.shape}, "
                f"expected {dims_text(self._dims)}"
            )
        array = np.asarray(first)
        if array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        self._first, self._dtype = array.copy(), array.dtype

    def reset(self) -> None:
        self._now = self._next = self._spare = None

    def value(self) -> Array:
        """What the next step finds; while the type is not known, zeros of any."""
        if self._now is not None:
            return self._now.placed.array
        if self._first is not None:
            return self._first
        return np.broadcast_to(np.zeros((), self._dtype or np.bool_), _closed(self._dims))

    def copied(self) -> Array:
        if self._dtype is None:
            raise InvalidArgumentError(f"state '{self.name}' has no type before the first step")
        return self.value().copy()

    def check(self, port: Port, output: Port) -> None:
        """See `Session.check`."""
        what = f"output '{output.name}' cannot become input '{self.name}'"
        if output.counted is not None:
            raise InvalidArgumentError(f"{what}: the data decide how many elements it has")
        if output.dtype is not port.dtype:
            raise InvalidArgumentError(f"{what}: it is of {output.dtype}, not of {port.dtype}")
        if not _fits(output.shape, self._dims):
            raise InvalidArgumentError(
                f"{what}: it has shape {output.shape}, not {dims_text(self._dims)}"
            )
        if self._first is not None and self._first.dtype != port.dtype.numpy:
            raise InvalidInputError(
                f"the first value of '{self.name}' has dtype {self._first.dtype}, "
                f"expected {port.dtype}"
            )
        self._dtype = port.dtype.numpy

    def of(self, port: SizedPort) -> Placed:
        """What the next step finds, in memory that steps may write to."""
        if self._now is None:
            self._now = _placed(self._memory(port.bytes, zeros=self._first is None), port)
            if self._first is not None:
                self._now.placed.array[...] = self._first
        return self._now.placed

    def next(self, port: SizedPort, *, in_place: bool) -> Placed:
        """Where a step writes what comes next."""
        spare = self._spare
        if in_place:
            spare = self._now
        elif spare is None or spare.memory.nbytes < port.bytes:
            spare = self._spare = _placed(self._memory(port.bytes), port)
        elif spare.placed.shape != port.shape:
            spare = self._spare = _placed(spare.memory, port)
        assert spare is not None
        self._next = spare
        return spare.placed

    def advance(self) -> None:
        """The step is done."""
        if self._next is not self._now:
            self._now, self._spare = self._next, self._now

    def _memory(self, size: int, *, zeros: bool = False) -> Bytes:
        room = size * GROWTH if self._grows else size
        what = f"for the state '{self.name}'"
        check_memory(room, what)
        with enough_memory_for(what):
            return aligned_zeros(room) if zeros else aligned_empty(room)


def _placed(memory: Bytes, port: SizedPort) -> _Buffer:
    return _Buffer(memory, Placed.at_start(memory, port.shape, port.dtype))


class _Move(NamedTuple):
    """What a program makes of a state: the ports that it is, and whether both are one buffer."""

    state: _State
    before: SizedPort
    after: SizedPort
    in_place: bool


def _fits(shape: tuple[int, ...], dims: Dims) -> bool:
    return len(shape) == len(dims) and all(
        isinstance(dim, str) or is_open(extent) or extent == dim
        for extent, dim in zip(shape, dims, strict=True)
    )


def _closed(dims: Dims) -> tuple[int, ...]:
    return tuple(dim for dim in dims if isinstance(dim, int))


@contextmanager
def _alone(lock: threading.Lock) -> Iterator[None]:
    if not lock.acquire(blocking=False):
        raise InvalidArgumentError(
            "a session takes one step at a time, and another thread is running this one"
        )
    try:
        yield
    finally:
        lock.release()
