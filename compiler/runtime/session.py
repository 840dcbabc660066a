"""Sessions: runs that follow each other, with values that stay between them.

A state is an output that the next run takes as an input. The session holds its memory, and no step
copies it. Where a program changes the input in place (`Program.in_place`: a cache to which rows are
added), both are the same memory. A cache that grows by its new rows lies in a buffer with room
behind it (`Port.room`), and is copied only when that is full, into one twice as large. Elsewhere
there are two buffers: a run reads one and writes the other, and they change places. If a step runs
several programs, since the model is cut, the states are the arrays that the run returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.compiler.errors import InvalidArgumentError, InvalidInputError
from tilewright.compiler.runtime.inputs import Placed, arrays_in_order, listed, shapes_of
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import Dims
from tilewright.compiler.runtime.states import SessionState, SessionStep, StateMove, with_rooms

if TYPE_CHECKING:
    from tilewright.compiler.runtime.executable import Executable

NO_DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType({})

STEPS = 64
"""Shapes of steps that a session remembers what to do for."""


class Session:
    """Runs of one model that follow each other; made by `Model.bind`.

    A session is one sequence of steps: it takes one step at a time. Sessions of one model share
    its code and weights, and may run at the same time.

    Attributes:
        input_names: what `run` takes: the inputs that are no states.
        output_names: what `run` gives, in order: the outputs that are no states.
        states: the inputs that are states.

    Args:
        inputs: the dimensions of the model's inputs, by name and in order.
        outputs: the names of its outputs, in order.
        fitting: the executable for these inputs, states among them; None if it takes several.
        run: runs the model once on all inputs, for steps that no one executable takes.
        states: for each output that is kept the input that it becomes.
        initial: first values, by input.
        dtypes: of inputs whose type is known before the first step, by name.

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
        fitting: Callable[[Sequence[Array]], Executable | None],
        run: Callable[[Sequence[Array]], list[Array]],
        states: Mapping[str, str],
        initial: Mapping[str, Array],
        dtypes: Mapping[str, np.dtype[Any]] = NO_DTYPES,
    ) -> None:
        taken = _bound_states(tuple(inputs), outputs, states, initial)
        order = tuple(inputs)
        self._outputs = tuple(outputs)
        self._fitting = fitting
        self._run = run
        self._states: list[SessionState] = [
            SessionState(
                name, order.index(name), outputs.index(output), inputs[name], dtypes.get(name)
            )
            for name, output in taken.items()
        ]
        self._states.sort(key=lambda state: state.input)
        for state in self._states:
            state.begin_with(initial.get(state.name))
        self._kept = {state.output for state in self._states}
        self.states = tuple(taken)
        self.input_names = tuple(name for name in order if name not in taken)
        self.output_names = tuple(name for k, name in enumerate(outputs) if k not in self._kept)
        self._steps: dict[object, SessionStep] = {}
        self._checked: set[Executable] = set()
        self._expected: tuple[int, ...] = ()  # how much room the next step will have
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
            CompilerError: as `Model.run` does.
        """
        with _alone(self._lock):
            if isinstance(inputs, Mapping) and (bound := self._by_name(inputs)) is not None:
                raise InvalidInputError(f"input '{bound}' is a state of this session")
            given = arrays_in_order(inputs, self.input_names)
            step = self._step(given)
            if step is None:
                return self._run_whole(given)
            rooms = tuple([room.made() for room in step.rooms])
            arrays: list[Array | Placed] = [*given]
            for state, before, _, _, roomy in step.moves:  # in the order of the inputs
                arrays.insert(state.input, state.of(before, roomy=roomy))
            written = {
                state.output: state.next(after, in_place=in_place, roomy=roomy)
                for state, _, after, in_place, roomy in step.moves
            }
            outputs = step.executable.run_into(arrays, written, rooms)
            for state in self._states:
                state.advance()
            self._expected = tuple(
                [room.left(now) for room, now in zip(step.rooms, rooms, strict=True)]
            )
            shown = step.executable.labelled(outputs)
            return [array for k, array in enumerate(shown) if k not in written]

    def _run_whole(self, given: Sequence[Array]) -> list[Array]:
        """Take a step that runs several programs. No state is copied."""
        outputs = self._run(self._with_states(given))
        for state in self._states:
            if not isinstance(outputs[state.output], np.ndarray):
                raise InvalidArgumentError(
                    f"output '{self._outputs[state.output]}' cannot become input '{state.name}': "
                    "it is a list"
                )
        for state in self._states:
            state.hold(outputs[state.output])
        return [array for k, array in enumerate(outputs) if k not in self._kept]

    def _with_states(self, given: Sequence[Array]) -> list[Array]:
        """All inputs of the model, in order."""
        arrays = [*given]
        for state in self._states:
            arrays.insert(state.input, state.value())
        return arrays

    def state(self, name: str) -> Array:
        """A copy of what the next step finds in an input; bfloat16 as its raw bits.

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
                shape, the data decide how many elements there are, or it is longer in memory by
                something else than a room.
            InvalidInputError: if a first value has another dtype.
        """
        program = executable.program
        rooms = program.rooms
        if tuple([port.name for port in executable.outputs]) != self._outputs:
            raise InvalidArgumentError(
                "a model whose output is a list has no sessions where it is made for each size"
            )
        for state in self._states:
            ports = program.inputs[state.input], program.outputs[state.output]
            state.check(*ports, rooms)

    def _step(self, given: Sequence[Array]) -> SessionStep | None:
        """What runs for inputs of these shapes, and what becomes of the states; None if that is
        more than one program."""
        key = (*shapes_of(given, self.input_names), *(state.shape for state in self._states))
        found = self._steps.get(key)
        if found is None:
            arrays = self._with_states(given)
            executable = self._fitting(arrays)
            if executable is None:
                return None
            if executable not in self._checked:
                self.check(executable)
                self._checked.add(executable)
            rooms = self._expected if len(self._expected) == len(executable.rooms) else ()
            taken, made = executable.ports_for(arrays, rooms)
            moves = [
                StateMove(
                    state,
                    taken[state.input],
                    made[state.output],
                    executable.in_place.get(state.output) == state.input,
                )
                for state in self._states
            ]
            if len(self._steps) >= STEPS:
                self._steps.clear()
            found = self._steps[key] = with_rooms(executable, moves)
        return found

    def _by_name(self, inputs: Mapping[str, Array]) -> str | None:
        return next((name for name in self.states if name in inputs), None)

    def _named(self, name: str) -> SessionState:
        for state in self._states:
            if state.name == name:
                return state
        raise InvalidArgumentError(
            f"there is no state '{name}', the states are {listed(self.states)}"
        )


def _bound_states(
    inputs: Sequence[str],
    outputs: Sequence[str],
    states: Mapping[str, str],
    initial: Mapping[str, Array],
) -> dict[str, str]:
    """The output that becomes each input that is a state.

    Raises:
        InvalidArgumentError: if what is given is no mapping, a name is unknown, two outputs become
            one input, or what has a first value is no state.
    """
    for what, given in (("states", states), ("initial", initial)):
        if not isinstance(given, Mapping):
            raise InvalidArgumentError(f"{what} is a mapping from names, not {given!r}")
    taken: dict[str, str] = {}
    for output, name in states.items():
        if output not in outputs:
            raise InvalidArgumentError(
                f"there is no output '{output}', the outputs are {listed(outputs)}"
            )
        if not isinstance(name, str) or name not in inputs:
            raise InvalidArgumentError(
                f"there is no input '{name}', the inputs are {listed(inputs)}"
            )
        if name in taken:
            raise InvalidArgumentError(
                f"input '{name}' is bound to two outputs, '{taken[name]}' and '{output}'"
            )
        taken[name] = output
    for name in initial:
        if name not in taken:
            raise InvalidArgumentError(
                f"'{name}' has a first value and is no state, the states are {listed(taken)}"
            )
    return taken


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
