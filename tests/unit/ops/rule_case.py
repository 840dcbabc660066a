"""One ONNX node as a test case: a model, inputs, and ONNX Runtime's results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.exact_int8 import exact_int8

FLOAT = np.float32


@dataclass(frozen=True)
class Case:
    """One node. Shapes become random float inputs, arrays initializers, and `data` inputs.

    `numpy` computes the outputs from all operands, if neither ONNX Runtime nor onnx can.
    """

    op_type: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    low: float = -2.0
    domain: str = ""
    domain_opset: int = 1
    atol: float = 2e-6
    numpy: Callable[..., Sequence[np.ndarray]] | None = None

    @property
    def name(self) -> str:
        shapes = "x".join(str(getattr(i, "shape", i)) for i in self.inputs)
        attrs = "-".join(f"{k}={v}" for k, v in self.attrs.items() if not hasattr(v, "dims"))
        return f"{self.op_type}{self.opset}-{shapes}-{attrs}".replace(" ", "")

    def model(self) -> tuple[ModelProto, dict[str, np.ndarray]]:
        random = np.random.default_rng(3)
        feeds: dict[str, np.ndarray] = {}
        names, inputs, initializers = [], [], []
        for number, entry in enumerate(self.inputs):
            name = f"x{number}"
            if entry is None:
                names.append("")
                continue
            names.append(name)
            if isinstance(entry, np.ndarray) and not _is_data(entry):
                initializers.append(numpy_helper.from_array(entry, name))
                continue
            array = entry
            if isinstance(entry, tuple):
                array = random.uniform(self.low, 2.0, entry).astype(FLOAT)
            feeds[name] = array
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
        outputs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(
            self.op_type, names, outputs, name="node", domain=self.domain, **self.attrs
        )
        infos = [onnx_info(name) for name in outputs]
        graph = helper.make_graph([node], "case", inputs, infos, initializers)
        imports = [helper.make_opsetid("", self.opset)]
        if self.domain:
            imports.append(helper.make_opsetid(self.domain, self.domain_opset))
        return helper.make_model(graph, opset_imports=imports, ir_version=8), feeds

    def expected(self, model: ModelProto, feeds: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The outputs that another implementation has."""
        if self.numpy is None:
            return expected_outputs(model, feeds)
        known = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer} | feeds
        return self.numpy(*(np.asarray(known[n]) if n else None for n in model.graph.node[0].input))


class Data(np.ndarray):
    """An integer array that is a run-time input."""


def _is_data(array: np.ndarray) -> bool:
    return isinstance(array, Data)


def data(values: Any, dtype: Any = np.int64) -> np.ndarray:
    return np.asarray(values, dtype).view(Data)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def onnx_info(name: str) -> Any:
    info = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    info.ClearField("type")
    return info


def expected_outputs(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """ONNX Runtime's outputs; those of onnx's reference where ONNX Runtime has no kernel."""
    plain = {name: np.asarray(array) for name, array in feeds.items()}
    for exact in (True, False):
        try:
            return of_onnxruntime(model, plain, exact=exact)
        except Exception:  # noqa: BLE001  # any of its errors means that it cannot run the node
            continue
    return list(ReferenceEvaluator(model).run(None, plain))


def of_onnxruntime(
    model: ModelProto, feeds: dict[str, np.ndarray], *, exact: bool
) -> list[np.ndarray]:
    """ONNX Runtime's outputs.

    Without VNNI, its sums of two products of bytes saturate. If `exact`, signed weights are
    constants of the model, which it makes unsigned to avoid that; some kernels take none such.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    options = exact_int8() if exact else onnxruntime.SessionOptions()
    options.log_severity_level = 4
    known: set[str] = set()
    if exact:
        known = {name for name, array in feeds.items() if array.dtype == np.int8 and array.ndim > 1}
        inputs = [each for each in copy.graph.input if each.name not in known]
        del copy.graph.input[:]
        copy.graph.input.extend(inputs)
        copy.graph.initializer.extend(numpy_helper.from_array(feeds[name], name) for name in known)
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options)
    return list(session.run(None, {name: feeds[name] for name in feeds if name not in known}))
