"""Compiled models of all kinds: how they are called and printed, and what they take and give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import OpenPort, dims_text
from tilewright.compiler.runtime.session import Session
from tilewright.compiler.runtime.stopping import StopFlag


class Model(ABC):
    """A compiled model: a function of arrays.

    `model(x, y)` takes inputs in order, `model(x=x, y=y)` by name, `model({"x": x, "y": y})` by
    names that are not Python's. Each gives the outputs as `run` does, which may be called from
    several threads at once.
    """

    @property
    @abstractmethod
    def inputs(self) -> Sequence[OpenPort]:
        """Name, dtype and shape of each input, in order; dynamic dimensions by name."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[OpenPort]:
        """Name, dtype and shape of each output, in order; dynamic dimensions by name."""

    @property
    @abstractmethod
    def output_names(self) -> tuple[str, ...]:
        """The names of what `run` returns, in order. A list of arrays has one name."""

    @abstractmethod
    def run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array],
        *,
        labels: bool = True,
        stop: StopFlag | None = None,
    ) -> list[Array]:
        """Run the model once.

        An input that is C-contiguous and aligned to 64 bytes is read where it lies, any other is
        copied. The outputs are new arrays, each as large as the run found it to be. A batch whose
        values outgrow the caches is run in slices (`Program.slices`).

        Args:
            inputs: arrays by input name, or in the order of `inputs`. Texts are arrays of `str`,
                or of their positions in the labels of the port.
            labels: whether texts are given as such, dictionaries as objects, sequences as lists of
                arrays, and bfloat16 as ml_dtypes has it, where that is installed; else texts are
                int64 positions of labels, arrays stand one by one, and bfloat16 is its raw bits in
                uint16.
            stop: ends the run when it is set.

        Returns:
            The outputs, in the order of `output_names`, or of `outputs` without labels.

        Raises:
            InvalidInputError: if an input is missing, unknown, or of another shape or dtype, a
                dimension is outside of its range, the model contradicts itself for these inputs,
                or an artifact has no program for them.
            CompilerError: if a program that this run is the first to need does not compile.
            OutOfMemoryError: if there is no room for the values between inputs and outputs.
            StoppedError: if `stop` was set before the end.
        """

    @abstractmethod
    def bind(
        self, states: Mapping[str, str], initial: Mapping[str, Array] | None = None
    ) -> Session:
        """A session of runs, each of which takes outputs of the one before it as inputs: a cache of
        keys and values, the state of a recurrent network. An element of a list is an output of its
        own there (`caches[0]`).

        Args:
            states: for each output that is kept the input that it becomes.
            initial: the first values of states, by input; zeros where none is given. A state with
                dynamic dimensions needs one, and may have another size after each step.

        Raises:
            InvalidArgumentError: if there is no such output or input, two outputs become one input,
                or the two of a state differ in shape or dtype.
            InvalidInputError: if a first value does not fit its input.
            OutOfMemoryError: if there is no room for the states.
        """

    def __call__(self, *arrays: Array | Mapping[str, Array], **named: Array) -> list[Array]:
        """Run the model once. Raises what `run` raises."""
        if named and arrays:
            raise InvalidInputError("give the inputs either in order or by name")
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            return self.run(arrays[0])
        return self.run(named or arrays)  # type: ignore[arg-type]  # a mapping is alone

    def __repr__(self) -> str:
        """`<Model x float32 (batch, 3) -> y float32 (batch, 10)>`."""
        sides = (", ".join(map(_text, ports)) for ports in (self.inputs, self.outputs))
        return f"<Model {' -> '.join(sides)}>"


def _text(port: OpenPort) -> str:
    dtype = port.dtype and port.dtype.value
    return " ".join(filter(None, [port.name, dtype, dims_text(port.shape)]))
