"""Inputs and outputs that are bound before a run, with ONNX Runtime's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright.compiler.bindings.ort.failures import InvalidArgument
from tilewright.compiler.bindings.ort.values import (
    OrtValue,
    array_at,
    as_array,
    check_cpu,
    element_type_of,
)

if TYPE_CHECKING:
    from tilewright.compiler.bindings.ort.options import RunOptions
    from tilewright.compiler.bindings.ort.session import InferenceSession
    from tilewright.compiler.runtime.packing import Array


class IOBinding:
    """Bindings of a session's inputs and outputs to the arrays that runs read and write.

    Args:
        session: the session.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Array] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._found: list[OrtValue] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an input to an array; each run reads the array's values at the time of the run."""
        self._inputs[name] = as_array(arr_on_cpu)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to an OrtValue; each run reads its values at the time of the run."""
        self._inputs[name] = as_array(ortvalue)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to a C-contiguous array that starts at the address `buffer_ptr`.

        Each run reads the array, so the caller must keep its memory valid. `device_type` must be
        `cpu`; `device_id` is ignored.
        """
        check_cpu(device_type)
        self._inputs[name] = array_at(buffer_ptr, shape, element_type_of(element_type))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output, so that each run computes it.

        With `buffer_ptr`, a run writes the output to that address, and the caller must keep the
        memory valid. Otherwise, `get_outputs` returns the output in new memory.
        """
        check_cpu(device_type)
        if buffer_ptr is None:
            self._outputs[name] = None
            return
        if shape is None or element_type is None:
            raise InvalidArgument(f"output '{name}' at an address needs a type and a shape")
        self._outputs[name] = OrtValue(array_at(buffer_ptr, shape, element_type_of(element_type)))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to an OrtValue, into which each run writes the output."""
        self._outputs[name] = ortvalue

    def clear_binding_inputs(self) -> None:
        """Remove the bindings of all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Remove the bindings of all outputs."""
        self._outputs.clear()
        self._found = []

    def synchronize_inputs(self) -> None:
        """Do nothing: the CPU's memory needs no synchronisation."""

    def synchronize_outputs(self) -> None:
        """Do nothing: the CPU's memory needs no synchronisation."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return list(self._found)

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return the outputs of the last run as arrays, in the order in which they were bound."""
        return [value.numpy() for value in self._found]

    def _run(self, options: RunOptions | None) -> None:
        names = list(self._outputs)
        found = self._session.run(names, self._inputs, options) if names else []
        self._found = []
        for name, array in zip(names, found, strict=True):
            place = self._outputs[name]
            if place is None:
                place = OrtValue(array)
            else:
                place.update_inplace(array)
            self._found.append(place)
