"""Compiled models of all kinds: how they are called and printed, and what they take and give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import OpenPort, OpenPorts, dims_text, open_dims
from tilewright.compiler.runtime.program import Port
from tilewright.compiler.runtime.stopping import StopFlag


class CompiledModel(ABC):
    """A compiled model: a function of arrays.

    `model(x, y)` takes inputs in order, `model(x=x, y=y)` by name, `model({"x": x, "y": y})` by
    names that are not Python's. Each gives the outputs as `run` does.
    """

    @property
    @abstractmethod
    def inputs(self) -> Sequence[Port | OpenPort]:
        """Name, dtype and shape of each input."""

    @property
    @abstractmethod
    def outputs(self) -> Sequence[Port | OpenPort]:
        """Name, dtype and shape of each output."""

    @abstractmethod
    def run(
        self,
        inputs: Mapping[str, Array] | Sequence[Array],
        *,
        labels: bool = True,
        stop: StopFlag | None = None,
    ) -> list[Array]:
        """Run the model once."""

    def __call__(self, *arrays: Array | Mapping[str, Array], **named: Array) -> list[Array]:
        """Run the model once. Raises what `run` raises."""
        if named and arrays:
            raise InvalidInputError("give the inputs either in order or by name")
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            return self.run(arrays[0])
        return self.run(named or arrays)  # type: ignore[arg-type]  # a mapping is alone

    def __repr__(self) -> str:
        """`<SizedExecutable x float32 (batch, 3) -> y float32 (batch, 10)>`."""
        sides = (", ".join(map(_text, ports)) for ports in (self.inputs, self.outputs))
        return f"<{type(self).__name__} {' -> '.join(sides)}>"


class OpenModel(CompiledModel):
    """A compiled model whose dimensions are open, as its ports state.

    Attributes:
        ports: the inputs and outputs, with the names of their open dimensions.
    """

    ports: OpenPorts

    @property
    def open(self) -> tuple[str, ...]:
        """The names of the inputs' open dimensions, each once, in order."""
        return self.ports.open

    @property
    def inputs(self) -> tuple[OpenPort, ...]:
        """Name, dtype and shape of each input, in order; open dimensions by name."""
        return self.ports.described(self.ports.inputs)

    @property
    def outputs(self) -> tuple[OpenPort, ...]:
        """Name, dtype and shape of each output, in order; open dimensions by name."""
        return self.ports.described(self.ports.outputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of what `run` returns, in order."""
        return tuple(self.ports.outputs)


def _text(port: Port | OpenPort) -> str:
    dims = dims_text(port.shape if isinstance(port, OpenPort) else open_dims(port.shape))
    return " ".join(filter(None, [port.name, port.dtype and port.dtype.value, dims]))
