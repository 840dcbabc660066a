"""The class `Model`, the interface of all compiled models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import ModelPort, dims_text
from tilewright.compiler.runtime.session import Session
from tilewright.compiler.runtime.stopping import StopFlag


class Model(ABC):
    """A compiled model: a function from input arrays to output arrays.

    A model can be called in three ways: `model(x, y)` passes inputs in order, `model(x=x, y=y)` by
    name, and `model({"x": x, "y": y})` by names that are not Python identifiers. All three return
    the results of `run`. Several threads may call `run` concurrently.
    """

    @property
    @abstractmethod
    def inputs(self) -> Sequence[ModelPort]:
        """The name, dtype and shape of each input, in order, with names for dynamic dimensions."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[ModelPort]:
        """The name, dtype and shape of each output, in order, with names for dynamic dimensions."""

    @property
    @abstractmethod
    def output_names(self) -> tuple[str, ...]:
        """The names of the results that `run` returns, in order; a list of arrays is one result."""

    @abstractmethod
    def run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array],
        *,
        labels: bool = True,
        stop: StopFlag | None = None,
    ) -> list[Array]:
        """Run the model once.

        An input that is C-contiguous and aligned to 64 bytes is read in place; other inputs are
        copied first. The outputs are new arrays. A batch whose intermediate values exceed the
        caches is divided into slices, which run one after the other (`Program.slices`).

        Args:
            inputs: the input arrays, by name or in the order of `Model.inputs`. A string input is
                an array of `str`, or of int64 positions in the table `Port.labels`.
            labels: whether outputs are converted for the caller. If true, string outputs are arrays
                of `str`, dictionary outputs are arrays of dictionaries, sequences are lists of
                arrays, and bfloat16 outputs have the type of ml_dtypes if it is installed. If
                false, strings are int64 positions, dictionaries are rows of a tensor, each element
                of a sequence is a separate output, and bfloat16 is raw bits in uint16.
            stop: a flag that another thread sets to end the run early.

        Returns:
            The outputs, in the order of `output_names` if `labels` is true, and of `Model.outputs`
            otherwise.

        Raises:
            InvalidInputError: if an input is missing or unknown, has a wrong shape or dtype, a
                dimension is outside its range, operators of the model require different sizes for
                these inputs, or an artifact has no program for them.
            CompilerError: if the run needs a new program, and its compilation fails.
            OutOfMemoryError: if memory does not suffice for the intermediate values.
            StoppedError: if `stop` was set before the run ended.
        """

    @abstractmethod
    def bind(
        self, states: Mapping[str, str], initial: Mapping[str, Array] | None = None
    ) -> Session:
        """Create a session, in which outputs of each run become inputs of the next run.

        Such outputs are called states. Examples are a cache of keys and values, and the state of a
        recurrent network. If an output is a list, each element counts as a separate output, with a
        name such as `caches[0]`.

        Args:
            states: maps the name of each state's output to the name of its input.
            initial: maps names of inputs to the initial values of states; the default is zeros. A
                state with dynamic dimensions needs an initial value, and may change its size in
                each run.

        Raises:
            InvalidArgumentError: if an output or input does not exist, two outputs have the same
                input, or a state's output and input differ in shape or dtype.
            InvalidInputError: if the shape or dtype of an initial value does not match its input.
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
        """Format the model as `<Model x float32 (batch, 3) -> y float32 (batch, 10)>`."""
        sides = (", ".join(map(_text, ports)) for ports in (self.inputs, self.outputs))
        return f"<Model {' -> '.join(sides)}>"


def _text(port: ModelPort) -> str:
    dtype = port.dtype and port.dtype.value
    return " ".join(filter(None, [port.name, dtype, dims_text(port.shape)]))
