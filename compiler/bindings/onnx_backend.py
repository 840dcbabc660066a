"""The compiler as an ONNX backend (`onnx.backend.base`): `prepare`, `run_model`, `run_node`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from tilewright.compiler.driver import compile_whole
from tilewright.compiler.errors import (
    CompilerError,
    InvalidInputError,
    InvalidModelError,
    UnsupportedOperatorError,
)
from tilewright.compiler.frontend.model_file import NEWEST_OPSET
from tilewright.compiler.mode import Mode
from tilewright.compiler.options import CompileOptions
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.inputs import listed
from tilewright.compiler.targets.host import resolve_target

_MODE = ("threads", "numerics", "precision")
"""Names of the backend's options that are fields of `Mode`."""


class TilewrightRep(BackendRep):  # type: ignore[misc]  # onnx ships no types for its backend
    """A compiled model, with the interface of `onnx.backend.base.BackendRep`.

    Dynamic dimensions work as in a model from `compile_model`. Compiled code fixes the rank of each
    input, and the values of shape operands such as axes, sizes and pads. Compilation waits for the
    first run if an input has no declared rank, or if an input is a shape operand. It then uses the
    inputs of that run. A later run with another rank, or with another value of a shape operand,
    compiles the model again. The eight most recently compiled programs are kept.
    """

    def __init__(self, model: ModelProto, options: Mapping[str, Any]) -> None:
        """Compile the model, unless compilation needs ranks or values that only a run provides.

        `options` are fields of `CompileOptions` and `Mode` by name.

        Raises:
            CompilerError: if the model does not compile.
        """
        constants = {tensor.name for tensor in model.graph.initializer}
        self._model = model
        given = dict(options)
        how = {name: given.pop(name) for name in _MODE if name in given}
        if "target" in given:
            how["target"] = resolve_target(given.pop("target"))
        self._options = CompileOptions(Mode(**how), **given)
        self._inputs = tuple(i.name for i in model.graph.input if i.name not in constants)
        self._outputs = tuple(info.name for info in model.graph.output)
        self._unranked = tuple(
            info.name
            for info in model.graph.input
            if info.name in self._inputs and not info.type.tensor_type.HasField("shape")
        )
        self._decisive: tuple[str, ...] = ()
        """Names of the inputs whose values must be known at compile time."""
        self._made: dict[_Key, Executable | GuardedModel] = {}
        if not self._unranked:
            try:
                self._compiled({}, {})
            except UnsupportedOperatorError as error:
                if not error.depends_on:
                    raise
                self._decisive = error.depends_on

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model, and return its outputs as a named tuple.

        `inputs` is a sequence of arrays in the order of the model's inputs, or a mapping by name.

        Raises:
            InvalidInputError: if an input is missing or has another shape or type.
            CompilerError: if the model must be compiled for these inputs, and that fails.
        """
        if isinstance(inputs, Mapping):
            named = dict(inputs)
        else:
            items = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(items) != len(self._inputs):
                raise InvalidInputError(
                    f"there are {len(items)} inputs, expected {len(self._inputs)}: "
                    f"{listed(self._inputs)}"
                )
            named = dict(zip(self._inputs, items, strict=True))
        arrays = {name: np.asarray(array) for name, array in named.items()}
        executable = self.executable(arrays)
        given = {n: a for n, a in arrays.items() if n not in self._decisive}
        found = executable.run(given)
        result: tuple[Any, ...] = namedtupledict("Outputs", self._outputs)(*found)
        return result

    @property
    def decisive(self) -> tuple[str, ...]:
        """The names of the inputs whose values are compiled into the code as constants.

        They are shape operands, such as axes or pads.
        """
        return self._decisive

    def executable(self, arrays: Mapping[str, np.ndarray]) -> Executable:
        """Return the executable for these inputs, compiled if necessary.

        Raises:
            InvalidInputError: if an input is missing whose rank or values are needed to compile.
            CompilerError: if the model does not compile for these inputs.
        """
        while True:
            values = {name: self._given(arrays, name) for name in self._decisive}
            ranks = {n: self._given(arrays, n).ndim for n in self._unranked if n not in values}
            try:
                found = self._compiled(ranks, values)
                if isinstance(found, Executable):
                    return found
                rest = [self._given(arrays, name) for name in found.ports.inputs]
                program = found.program_for(rest)
                assert program is not None, "the model is not cut"
                return program
            except UnsupportedOperatorError as error:
                added = tuple(n for n in error.depends_on if n not in self._decisive)
                if not added:
                    raise
                self._decisive += added

    def _given(self, arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
        if name not in arrays:
            raise InvalidInputError(
                f"input '{name}' is missing, the inputs are {listed(self._inputs)}"
            )
        return arrays[name]

    def _compiled(
        self, ranks: Mapping[str, int], values: Mapping[str, np.ndarray]
    ) -> Executable | GuardedModel:
        """Compile the model, or return the earlier result for the same ranks and values.

        Args:
            ranks: the rank of each input whose rank the model does not declare, by name.
            values: arrays by input name; these inputs become constants of the compiled code.
        """
        key: _Key = (
            tuple(ranks.items()),
            tuple((v.shape, v.dtype.str, v.tobytes()) for v in values.values()),
        )
        if key in self._made:
            return self._made[key]
        model = self._model
        if ranks or values:
            model = ModelProto()
            model.CopyFrom(self._model)
            for info in model.graph.input:
                if info.name in ranks:
                    shape = info.type.tensor_type.shape
                    shape.SetInParent()
                    for _ in range(ranks[info.name]):
                        shape.dim.add()
            kept = [info for info in model.graph.input if info.name not in values]
            del model.graph.input[:]
            model.graph.input.extend(kept)
            tensors = (numpy_helper.from_array(array, name) for name, array in values.items())
            model.graph.initializer.extend(tensors)
        made = compile_whole(model, self._options)
        while len(self._made) >= EXECUTABLE_LIMIT:
            del self._made[next(iter(self._made))]
        self._made[key] = made
        return made


_Key = tuple[tuple[tuple[str, int], ...], tuple[tuple[tuple[int, ...], str, bytes], ...]]

EXECUTABLE_LIMIT = 8
"""Maximum number of executables that a `TilewrightRep` caches if its model has inputs that
determine shapes, or inputs without a stated rank."""


class TilewrightBackend(Backend):  # type: ignore[misc]  # as above
    """The compiler as an ONNX backend for this machine's CPU."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> TilewrightRep:
        """Compile a model; `kwargs` are fields of `compiler.options.CompileOptions`.

        Raises:
            CompilerError: if the device is not this machine's CPU, or the model does not compile.
        """
        if not cls.supports_device(device):
            raise CompilerError(f"device '{device}' is not supported, expected CPU")
        return TilewrightRep(model, kwargs)

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile a model, run it once and return its outputs; `kwargs` are those of `prepare`."""
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
        """Compile a model that consists of one node, run it once and return its outputs.

        `inputs` are the node's inputs in order.
        """
        arrays = [np.asarray(array) for array in inputs]
        names = [name for name in node.input if name]
        if len(arrays) != len(names):
            raise InvalidModelError(
                f"{node.op_type} '{node.name}' takes {len(names)} inputs, given are {len(arrays)} "
                "arrays"
            )
        infos = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(names, arrays, strict=True)
        ]
        opset = int(kwargs.pop("opset_version", NEWEST_OPSET))
        results = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", infos, results)
        opsets = [helper.make_opsetid(node.domain, 1)] if node.domain else []
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *opsets])
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether compiled code runs on a device; true for the CPU only."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False


prepare = TilewrightBackend.prepare
run_model = TilewrightBackend.run_model
run_node = TilewrightBackend.run_node
supports_device = TilewrightBackend.supports_device
