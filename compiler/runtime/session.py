"""Sessions: consecutive runs of a model with states.

A state is an output that the next run reads as an input. The session owns the memory of its states,
and a run does not copy them:

- If the program updates the input in place (`Program.in_place`), such as a cache to which rows are
  added, input and output share memory.
- A cache that grows by new rows is in a buffer with unused rows at the end (`Port.room`). When the
  buffer is full, the cache is copied to a buffer twice as large.
- Other states have two buffers, of which a run reads one and writes the other. They are swapped
  after each run.
- A model that computes some sizes from data needs several programs for one run. The states
  are then the arrays that the run returned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.compiler.errors import InvalidArgumentError, InvalidInputError, suggestion
from tilewright.compiler.runtime.inputs import Placed, arrays_in_order, listed, shapes_of
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import Dims
from tilewright.compiler.runtime.states import SessionState, SessionStep, StateMove, with_rooms

if TYPE_CHECKING:
    from tilewright.compiler.runtime.executable import Executable

NO_DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType({})

STEPS = 64
"""Maximum number of different input shapes for which a session caches the plan of a step."""


class Session:
    """Consecutive runs of one model with states; created by `Model.bind`.

    A state is an output that the next run (the next step) reads as an input. A session runs one
    step at a time. Sessions of the same model share its code and weights, and may run concurrently.

    Attributes:
        input_names: the names of the inputs that `run` expects: all inputs that are not states.
        output_names: the names of the outputs that `run` returns, in order: all that are not
            states.
        states: the names of the inputs that are states.

    Args:
        inputs: the dimensions of the model's inputs, by name and in order.
        outputs: the names of the model's outputs, in order.
        fitting: a function that returns the executable for a step, given all inputs including
            states. It returns None if the step needs several executables.
        run: a function that runs the model on all inputs, for steps that need several executables.
        states: maps the name of each state's output to the name of its input.
        initial: maps names of inputs to the initial values of states.
        dtypes: the dtype of each input that is known before the first step, by name.

    Raises:
        InvalidArgumentError: if `states` or `initial` is not a mapping, a name is unknown, two
            outputs have the same input, or an initial value is missing.
        InvalidInputError: if the shape of an initial value does not match its input.
        OutOfMemoryError: if memory does not suffice for the initial values.
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
        self._expected: tuple[int, ...] = ()  # slack capacities of the next step
        self._lock = threading.Lock()

    def run(self, inputs: Mapping[str, Array] | Sequence[Array] = ()) -> list[Array]:
        """Run the model once on the given inputs and the current states, and update the states.

        Args:
            inputs: arrays by name, or in the order of `input_names`.

        Returns:
            The outputs that are not states, in the order of `output_names`, as new arrays.

        Raises:
            InvalidInputError: if an input is missing, unknown or a state, or has a wrong shape or
                dtype. The states are unchanged.
            InvalidArgumentError: if another thread is running this session.
            CompilerError: if the step needs a new program, and its compilation fails; or if memory
                does not suffice.
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
            for state, before, _, _, has_slack in step.moves:  # in the order of the inputs
                arrays.insert(state.input, state.of(before, has_slack=has_slack))
            written = {
                state.output: state.next(after, in_place=in_place, has_slack=has_slack)
                for state, _, after, in_place, has_slack in step.moves
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
        """Run a step of a model that computes some sizes from data and so needs several programs.

        The arrays that the run returns become the new states without a copy.
        """
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
        """Return all inputs of the model in order: the given inputs and the current states."""
        arrays = [*given]
        for state in self._states:
            arrays.insert(state.input, state.value())
        return arrays

    def state(self, name: str) -> Array:
        """Return a copy of a state's current value; `name` is the name of its input.

        A bfloat16 state is returned as raw bits (uint16).

        Raises:
            InvalidArgumentError: if `name` is not a state, another thread is running this session,
                or the dtype is not known before the first step.
        """
        with _alone(self._lock):
            return self._named(name).copied()

    def reset(self) -> None:
        """Reset the states to their initial values.

        Raises:
            InvalidArgumentError: if another thread is running this session.
        """
        with _alone(self._lock):
            for state in self._states:
                state.reset()

    def check(self, executable: Executable) -> None:
        """Check that the session can run a program (`executable`).

        Each state of the session is an output that the next run reads as an input. A cache that
        grows is in a buffer with spare rows at the end.

        Raises:
            InvalidArgumentError: if an output cannot be the next input: the dtypes or shapes
                differ, the number of elements depends on data, or the buffer has unused elements
                other than spare rows. Also if the program's outputs are not those of the model.
            InvalidInputError: if the initial value of a state has a wrong dtype.
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
        """Return the plan of one run with the inputs `given` and the current states.

        The plan depends only on the shapes of the inputs and states, and is cached. The result is
        None if the run needs several programs.
        """
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
            f"{suggestion(name, self.states)}"
        )


def _bound_states(
    inputs: Sequence[str],
    outputs: Sequence[str],
    states: Mapping[str, str],
    initial: Mapping[str, Array],
) -> dict[str, str]:
    """Check the arguments of `Model.bind`, and map each state's input to its output.

    Raises:
        InvalidArgumentError: if `states` or `initial` is not a mapping, a name is unknown, two
            outputs have the same input, or `initial` contains an input that is not a state.
    """
    for what, given in (("states", states), ("initial", initial)):
        if not isinstance(given, Mapping):
            raise InvalidArgumentError(f"{what} is a mapping from names, not {given!r}")
    taken: dict[str, str] = {}
    for output, name in states.items():
        if output not in outputs:
            raise InvalidArgumentError(
                f"there is no output '{output}', the outputs are {listed(outputs)}"
                f"{suggestion(output, outputs)}"
            )
        if not isinstance(name, str) or name not in inputs:
            raise InvalidArgumentError(
                f"there is no input '{name}', the inputs are {listed(inputs)}"
                f"{suggestion(name, inputs)}"
            )
        if name in taken:
            raise InvalidArgumentError(
                f"input '{name}' is bound to two outputs, '{taken[name]}' and '{output}'"
            )
        taken[name] = output
    for name in initial:
        if name not in taken:
            raise InvalidArgumentError(
                f"'{name}' has an initial value and is not a state, the states are {listed(taken)}"
                f"{suggestion(name, taken)}"
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
