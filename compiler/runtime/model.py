"""`Model`, the interface of all compiled models: calls, printing, inputs and outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import ModelPort, dims_text
from tilewright.compiler.runtime.session import Session
from tilewright.compiler.runtime.stopping import StopFlag


class Model(ABC):
    """A compiled model: a function of arrays.

    `model(x, y)` takes inputs in order, `model(x=x, y=y)` by name, `model({"x": x, "y": y})` by
    names that are not Python identifiers. Each returns the outputs like `run`. Several threads may
    call `run` at once.
    """

    @property
    @abstractmethod
    def inputs(self) -> Sequence[ModelPort]:
        """Name, dtype and shape of each input, in order; a dynamic dimension is its name."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[ModelPort]:
        """Name, dtype and shape of each output, in order; a dynamic dimension is its name."""

    @property
    @abstractmethod
    def output_names(self) -> tuple[str, ...]:
        """The names of the results of a run, in order. A list of arrays has one name."""

    @abstractmethod
    def run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array],
        *,
        labels: bool = True,
        stop: StopFlag | None = None,
    ) -> list[Array]:
        """Run the model once.

        An input that is C-contiguous and aligned to 64 bytes is read in place; any other is copied.
        The outputs are new arrays. A batch whose intermediate values exceed the caches is run in
        slices (`Program.slices`).

        Args:
            inputs: arrays by input name, or in the order of `inputs`. Strings are arrays of `str`,
                or of int64 positions in the table `Port.labels`.
            labels: if true, the outputs are converted: positions to strings, rows to dictionaries,
                elements of sequences to lists of arrays, and bfloat16 to ml_dtypes' type, if that
                is installed. If false, strings are int64 positions, elements of sequences are
                separate arrays, and bfloat16 is raw bits in uint16.
            stop: ends the run when it is set.

        Returns:
            The outputs, in the order of `output_names` with `labels`, else of `outputs`.

        Raises:
            InvalidInputError: if an input is missing, unknown, or of another shape or dtype, a
                dimension is outside its range, the model contradicts itself for these inputs, or an
                artifact has no program for them.
            CompilerError: if a program that this run needs first does not compile.
            OutOfMemoryError: if memory does not suffice for the intermediate values.
            StoppedError: if `stop` was set before the end.
        """

    @abstractmethod
    def bind(
        self, states: Mapping[str, str], initial: Mapping[str, Array] | None = None
    ) -> Session:
        """Create a session: consecutive runs that take outputs of the previous run as inputs.

        Examples are a cache of keys and values, or the state of a recurrent network. Each element
        of a list counts as a separate output (`caches[0]`).

        Args:
            states: maps each output that is a state to the input that it becomes in the next run.
            initial: the initial values of states, by input; zeros by default. A state with dynamic
                dimensions needs an initial value, and may change its size at each step.

        Raises:
            InvalidArgumentError: if an output or input does not exist, two outputs become one
                input, or a state's output and input differ in shape or dtype.
            InvalidInputError: if an initial value does not fit its input.
            OutOfMemoryError: if memory does not suffice for the states.
        """

    def __call__(self, *arrays: Array | Mapping[str, Array], **named: Array) -> list[Array]:
        """Run the model once; results and errors are those of `run`."""
        if named and arrays:
            raise InvalidInputError("give the inputs either in order or by name")
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            return self.run(arrays[0])
        return self.run(named or arrays)  # type: ignore[arg-type]  # a mapping is alone

    def __repr__(self) -> str:
        """`<Model x float32 (batch, 3) -> y float32 (batch, 10)>`."""
        sides = (", ".join(map(_text, ports)) for ports in (self.inputs, self.outputs))
        return f"<Model {' -> '.join(sides)}>"


def _text(port: ModelPort) -> str:
    dtype = port.dtype and port.dtype.value
    return " ".join(filter(None, [port.name, dtype, dims_text(port.shape)]))
