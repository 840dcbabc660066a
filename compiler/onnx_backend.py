"""The interface of `onnx.backend.base`: `prepare`, `run_model`, `run_node`, `supports_device`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from compiler.errors import CompilerError, InvalidInputError, InvalidModelError
from compiler.frontend.onnx_import import NEWEST_OPSET


class TilewrightRep(BackendRep):  # type: ignore[misc]  # onnx ships no types for its backend
    """A compiled model."""

    def __init__(self, executable: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._executable = executable
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run on a sequence of arrays in the order of the model's inputs, or on a mapping.

        Raises:
            InvalidInputError: if an input is missing or has another shape or type.
        """
        if isinstance(inputs, Mapping):
            named = dict(inputs)
        else:
            items = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(items) != len(self._inputs):
                raise InvalidInputError(f"{len(items)} inputs instead of {len(self._inputs)}")
            named = dict(zip(self._inputs, items, strict=True))
        arrays = self._executable.run({name: np.asarray(array) for name, array in named.items()})
        result: tuple[Any, ...] = namedtupledict("Outputs", self._outputs)(*arrays)
        return result


class TilewrightBackend(Backend):  # type: ignore[misc]  # as above
    """The compiler as an ONNX backend for this machine's CPU."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> TilewrightRep:
        """Compile a model; `kwargs` go to `compiler.compile_model`.

        Raises:
            CompilerError: if the device is not this machine's CPU, or the model does not compile.
        """
        import compiler

        if not cls.supports_device(device):
            raise CompilerError(f"device '{device}' is not supported, CPU is")
        constants = {tensor.name for tensor in model.graph.initializer}
        names = [info.name for info in model.graph.input if info.name not in constants]
        executable = compiler.compile_model(model, **kwargs)
        return TilewrightRep(executable, names, [info.name for info in model.graph.output])

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Compile one node and run it once; integer inputs after the first become constants."""
        arrays = [np.asarray(array) for array in inputs]
        names = [name for name in node.input if name]
        if len(arrays) != len(names):
            raise InvalidModelError(
                f"{node.op_type} '{node.name}': {len(arrays)} arrays for {len(names)} inputs"
            )
        infos, initializers, feeds = [], [], []
        for position, (name, array) in enumerate(zip(names, arrays, strict=True)):
            if position and array.dtype.kind in "iu" and array.ndim <= 1:
                initializers.append(numpy_helper.from_array(array, name))
                continue
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            infos.append(helper.make_tensor_value_info(name, kind, array.shape))
            feeds.append(array)
        opset = int(kwargs.pop("opset_version", NEWEST_OPSET))
        results = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", infos, results, initializers)
        opsets = [helper.make_opsetid(node.domain, 1)] if node.domain else []
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *opsets])
        return cls.run_model(model, feeds, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether code for the device runs here: the CPU only."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False


prepare = TilewrightBackend.prepare
run_model = TilewrightBackend.run_model
run_node = TilewrightBackend.run_node
supports_device = TilewrightBackend.supports_device
