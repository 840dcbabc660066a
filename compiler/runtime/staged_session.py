"""Sessions of models that are cut: states are the arrays that a run gave, and no step copies them.

Programs of stages take and give arrays of any size, so that a state needs no memory of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.compiler.errors import InvalidArgumentError, InvalidInputError, enough_memory_for
from tilewright.compiler.runtime.inputs import arrays_in_order, listed
from tilewright.compiler.runtime.memory import check_memory
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import Dims, dims_text
from tilewright.compiler.runtime.session import alone, bound_states


class StagedSession:
    """Runs of one model that follow each other; made by `StagedExecutable.bind`.

    As `Session`: one sequence of steps, one step at a time.

    Attributes:
        input_names: what `run` takes: the inputs that are no states.
        output_names: what `run` gives, in order: the outputs that are no states.
        states: the inputs that are states.

    Args:
        inputs: the dtype and the dimensions of the model's inputs, by name and in order.
        outputs: the names of its outputs, in order.
        run: runs the model once, on all inputs in order.
        states: for each output that is kept the input that it becomes.
        initial: first values, by input; zeros where none is given.

    Raises:
        InvalidArgumentError: if what is given is no mapping, a name is unknown, two outputs become
            one input, or a first value is missing.
        InvalidInputError: if a first value is no array.
        OutOfMemoryError: if there is no room for the first values.
    """

    def __init__(
        self,
        inputs: Mapping[str, tuple[np.dtype, Dims]],
        outputs: Sequence[str],
        run: Callable[[list[Array]], list[Array]],
        states: Mapping[str, str],
        initial: Mapping[str, Array],
    ) -> None:
        taken = bound_states(tuple(inputs), outputs, states, initial)
        self._order = tuple(inputs)
        self._outputs = tuple(outputs)
        self._run = run
        self._kept = {output: name for name, output in taken.items()}
        self._first = {name: _first(name, *inputs[name], initial.get(name)) for name in taken}
        self._now = dict(self._first)
        self.states = tuple(taken)
        self.input_names = tuple(name for name in inputs if name not in taken)
        self.output_names = tuple(name for name in outputs if name not in self._kept)
        self._lock = threading.Lock()

    def run(self, inputs: Mapping[str, Array] | Sequence[Array] = ()) -> list[Array]:
        """Take one step: inputs and outputs that are no states, as `Session.run`.

        Raises:
            InvalidInputError: as `StagedExecutable.run` does, also for a state that no longer fits
                its input, and if an input is a state; the states stay as they are.
            InvalidArgumentError: if another thread is running this session.
        """
        with alone(self._lock):
            bound = [n for n in self.states if isinstance(inputs, Mapping) and n in inputs]
            if bound:
                raise InvalidInputError(f"input '{bound[0]}' is a state of this session")
            given = dict(
                zip(self.input_names, arrays_in_order(inputs, self.input_names), strict=True)
            )
            whole = given | self._now
            found = self._run([whole[name] for name in self._order])
            made = dict(zip(self._outputs, found, strict=True))
            self._now = {name: made[output] for output, name in self._kept.items()}
            return [made[name] for name in self.output_names]

    def state(self, name: str) -> Array:
        """A copy of what the next step finds in an input; bfloat16 as its raw bits.

        Raises:
            InvalidArgumentError: if it is no state, or another thread is running this session.
        """
        with alone(self._lock):
            if name not in self._now:
                raise InvalidArgumentError(
                    f"there is no state '{name}', the states are {listed(self.states)}"
                )
            return _bits(self._now[name].copy())

    def reset(self) -> None:
        """Put the first values back into the states.

        Raises:
            InvalidArgumentError: if another thread is running this session.
        """
        with alone(self._lock):
            self._now = dict(self._first)


def _first(name: str, dtype: np.dtype, dims: Dims, given: Array | None) -> Array:
    """The first value of a state, as an array of our own."""
    if given is not None:
        if not isinstance(given, np.ndarray):
            raise InvalidInputError(f"input '{name}' is of type {type(given).__name__}, no array")
        with enough_memory_for(f"for state '{name}'"):
            copied = given.copy()
        return _bits(copied)
    shape = [dim for dim in dims if isinstance(dim, int)]
    if len(shape) < len(dims):
        raise InvalidArgumentError(
            f"state '{name}' has open dimensions {dims_text(dims)}: give its first value in "
            "`initial`"
        )
    check_memory(int(np.prod(shape, dtype=object)) * dtype.itemsize, f"for state '{name}'")
    return np.zeros(shape, dtype)


def _bits(array: Array) -> Array:
    """The array, with the raw bits of bfloat16."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
