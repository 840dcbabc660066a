"""The models of `benchmarks.digests`, which can be built reproducibly on any machine.

Building them needs no downloads and no calibration.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
import onnx.version_converter
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.calibrate import TensorData, TensorsData, save_tensors_data

from benchmarks import operators, sweep_cases
from benchmarks.collection_quantised import QUANTISED, network
from benchmarks.convolutional import (
    c3d_small,
    efficientnet_b0,
    efficientnet_lite0,
    mobilenet_v2,
    vgg16_features,
    yolo_nano,
)
from benchmarks.decoders import gpt2_decoder, llama_decoder
from benchmarks.dynamic_models import dynamic_bert, open_gpt2, open_llama, opened
from benchmarks.light import LIGHT_MODELS, light_model
from benchmarks.llama import llama
from benchmarks.onnx_writer import OnnxWriter
from benchmarks.plain import lstm, mlp
from benchmarks.quantized import LEAST_OPSET, dynamic_int8, weights_int4
from benchmarks.sweep_cases import SweepCase
from benchmarks.transformer import bert, deit, gpt2, whisper_encoder
from benchmarks.vision import convnext, pvt, segformer
from tests.integration.control_models import (
    choosing,
    collatz,
    converging,
    counting,
    nested,
    scanning,
)
from tests.integration.small_models import SMALL, perceptron
from tests.integration.test_segments import branches, chosen_rows, computed_shapes


@dataclass(frozen=True, slots=True)
class DigestModel:
    """A line of the digests file: one or more models, and sizes or ranges of their dimensions.

    Attributes:
        builds: functions that build the models, by name; several small models may share a line.
        dims: sizes or ranges of dynamic dimensions, by dimension name.
        share: the model is compiled for one in `share` targets on average; large models have a
            share above 1 to save time.
    """

    builds: Mapping[str, Callable[[], Any]]
    dims: Mapping[str, Sequence[int | str]] = field(default_factory=dict)
    share: int = 1


def _one(
    build: Callable[[], Any], dims: Mapping[str, Sequence[int | str]] | None = None
) -> DigestModel:
    return DigestModel({"": build}, dims or {})


EXPORTED_FOLDER = Path(__file__).parents[1] / "tests" / "models"


LARGE_SHARE = 8

WIDE, NARROW = 4096, 256


def _narrow(build: Callable[[], Any]) -> Any:
    """Build a model and reduce its layers of 4096 features, which have most weights, to 256."""
    model = build()
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if WIDE in array.shape:
            first = tuple(slice(NARROW if extent == WIDE else None) for extent in array.shape)
            tensor.CopyFrom(numpy_helper.from_array(array[first].copy(), tensor.name))
    return model


def _quantised(
    build: Callable[[], Any],
    form: str = "QDQ",
    activations: str = "QUInt8",
    weights: str = "QInt8",
    *,
    per_channel: bool = True,
) -> Any:
    """Build a model and quantise it with onnxruntime.quantization.

    The ranges are derived from the names of values. Calibrated ranges would differ between CPUs,
    because each CPU rounds differently.
    """
    model = build()
    if model.opset_import[0].version < LEAST_OPSET:
        model = onnx.version_converter.convert_version(model, LEAST_OPSET)
    model = onnx.shape_inference.infer_shapes(model)
    with tempfile.TemporaryDirectory() as folder:
        source, ranges, result = (Path(folder, name) for name in ("in.onnx", "ranges", "out.onnx"))
        onnx.save(model, source)
        save_tensors_data(TensorsData(CalibrationMethod.MinMax, _ranges(model.graph)), ranges)
        quantize_static(
            source,
            result,
            None,
            quant_format=QuantFormat[form],
            activation_type=QuantType[activations],
            weight_type=QuantType[weights],
            per_channel=per_channel,
            calibration_cache_path=ranges,
        )
        return onnx.load(result)


def _ranges(graph: Any) -> dict[str, Any]:
    """A pseudo-random range for each value of a graph.

    It starts at 0 after operators with nonnegative results.
    """
    made = {value: node.op_type for node in graph.node for value in node.output}
    found = {}
    for name in (*(info.name for info in graph.input), *made):
        high = np.float32(1 + crc32(name.encode()) % 16 / 4)
        low = np.float32(0) if made.get(name) in POSITIVE else np.float32(-high)
        found[name] = TensorData(lowest=np.array(low), highest=np.array(high))
    return found


POSITIVE = ("Relu", "Sigmoid", "Softmax", "Clip")


def dead_taps() -> Any:
    """A model for the pass `compiler.passes.dead_taps`.

    The outer taps of its dilated convolution read only padding. It reads one half of a Split; the
    other half is unused.
    """
    writer = OnnxWriter("dead_taps", 0)
    half, _ = writer.split(writer.input("x", (1, 32, 8, 10)), [16, 16], axis=1)
    weights = writer.constant(writer.normal((16, 16, 3, 3), 0.1), "weight")
    y = writer.node("Conv", half, weights, pads=[24] * 4, dilations=[24, 24])
    return writer.finish([(y, (1, 16, 8, 10))])


def layer_norm() -> Any:
    """A model for the pass `compiler.passes.layer_norm`: layer normalisation in primitive
    operators.
    """
    writer = OnnxWriter("layer_norm", 0)
    x = writer.input("x", (6, 48))
    centred = writer.node("Sub", x, writer.node("ReduceMean", x, axes=[-1]))
    square = writer.node("Mul", centred, centred)
    variance = writer.node("ReduceMean", square, axes=[-1])
    epsilon = writer.constant(np.float32(1e-5))
    deviation = writer.node("Sqrt", writer.node("Add", variance, epsilon))
    scale, bias = (writer.constant(writer.normal((48,), 1.0)) for _ in range(2))
    scaled = writer.node("Mul", writer.node("Div", centred, deviation), scale)
    return writer.finish([(writer.node("Add", scaled, bias), (6, 48))])


def byte_pairs() -> Any:
    """A model for the pass `compiler.passes.integer_activation_products`.

    It is a MatMulInteger whose operands are both inputs.
    """
    writer = OnnxWriter("byte_pairs", 0)
    left = writer.input("left", (6, 48), TensorProto.UINT8)
    right = writer.input("right", (48, 20), TensorProto.UINT8)
    zeros = [writer.constant(np.uint8(zero)) for zero in (3, 129)]
    y = writer.node("MatMulInteger", left, right, *zeros)
    return writer.finish([(writer.node("Cast", y, to=TensorProto.FLOAT), (6, 20))])


def _named(prefix: str, builds: Mapping[str, Callable[[], Any]]) -> dict[str, DigestModel]:
    return {f"{prefix}-{name}": _one(build) for name, build in builds.items()}


def _nodes() -> dict[str, DigestModel]:
    """Models with a single node each (`benchmarks.sweep_cases`).

    They are grouped into lines of the digests file by the first letter of the operator.
    """
    found: dict[str, dict[str, Callable[[], Any]]] = {}
    for case in sweep_cases.cases():
        (letters,) = (each for each in LETTERS if case.operator[0] in each)
        builds = found.setdefault(f"nodes-{letters}", {})
        builds[f"{case.domain} {case.identity}"] = partial(_of_case, case)
    return {name: DigestModel(found[name]) for name in sorted(found)}


LETTERS = ("AB", "C", "DEF", "GHI", "JKLM", "NOP", "Q", "R", "S", "TUVWXYZ")
"""Groups of first letters of operators, with about equal numbers of models."""


def _of_case(case: SweepCase) -> Any:
    return case.build()[0]


_SMALL = {n: b for n, b in SMALL.items() if n not in ("qdq", "dynamic")}

_PRODUCTS = {n: b for n, b in QUANTISED.items() if n.startswith(("dynamic", "int4"))}

_bert = partial(bert, layers=2, vocabulary=1000)
_minilm = partial(bert, layers=2, hidden=384, heads=12, intermediate=1536, vocabulary=1000)
_gpt2 = partial(gpt2, layers=2, vocabulary=1000)
_llama = partial(llama, layers=1, vocabulary=1000)
_tiny = {"layers": 1, "hidden": 256, "heads": 4, "vocabulary": 500}

_FLOATS: Mapping[str, Callable[[], Any]] = {
    **{name: partial(_narrow, partial(light_model, name)) for name in LIGHT_MODELS},
    "mobilenetv2": mobilenet_v2,
    "efficientnet-b0": efficientnet_b0,
    "efficientnet-lite0": efficientnet_lite0,
    "yolo-nano": yolo_nano,
    "vgg16-features-126x224": partial(vgg16_features, height=126),
    "bert": _bert,
    "deit-small": partial(deit, layers=2),
    "convnext-tiny": partial(convnext, depths=(1, 1, 2, 1)),
    "pvt-tiny": partial(pvt, depths=(1, 1, 1, 1)),
    "segformer-b0": partial(segformer, depths=(1, 1, 1, 1)),
    "c3d-small": c3d_small,
    "minilm": _minilm,
    "whisper-tiny-encoder": partial(whisper_encoder, layers=1),
    "gpt2-prefill-64": _gpt2,
    "gpt2-decode-64": partial(_gpt2, tokens=1, past=64),
    "llama-prefill-64": _llama,
    "llama-decode-64": partial(_llama, tokens=1, past=64),
    "gpt2-decoder-fixed": partial(gpt2_decoder, length=64, cache="fixed", **_tiny),
    "llama-decoder-growing": partial(
        llama_decoder, length=64, cache="growing", groups=2, intermediate=512, **_tiny
    ),
    "mlp": mlp,
    "lstm-2x256-64": lstm,
    "matmul-1024": partial(operators.matmul, 1024, 1024, 1024),
    "batched-products": partial(operators.matmul, 33, 65, 17, 4),
    "convolution": partial(operators.conv, 16, 24, (15, 14)),
    "pool": partial(operators.pool, "MaxPool", 16, (15, 14), (7, 7), (1, 1), (3, 3, 3, 3)),
    "softmax": partial(operators.softmax, (8, 100)),
    "layer-norm-operator": partial(operators.layer_norm, (8, 96)),
    "gelu": partial(operators.gelu, (8, 96)),
    "reduction": partial(operators.reduction, "ReduceMax", (8, 100)),
    "dead-taps": dead_taps,
    "layer-norm": layer_norm,
}

_IN_BYTES: Mapping[str, Callable[[], Any]] = {
    "network-qdq-tensors": partial(_quantised, partial(network, 13), per_channel=False),
    "network-qdq-channels": partial(_quantised, partial(network, 17)),
    "network-qdq-int8": partial(_quantised, partial(network, 19), activations="QInt8"),
    "network-qdq-16-bits": partial(
        _quantised, partial(network, 21), activations="QUInt16", per_channel=False
    ),
    "network-qoperator": partial(
        _quantised, partial(network, 13), "QOperator", weights="QUInt8", per_channel=False
    ),
    "network-qoperator-channels": partial(_quantised, partial(network, 15), "QOperator"),
    "squeezenet": partial(_quantised, partial(light_model, "squeezenet")),
    "mobilenetv2": partial(_quantised, mobilenet_v2),
    "yolo-nano": partial(_quantised, yolo_nano),
    "efficientnet-b0": partial(_quantised, partial(efficientnet_b0, size=96)),
    "minilm": partial(_quantised, _minilm),
    "minilm-dynamic": partial(dynamic_int8, _minilm),
    "gpt2-decode-int4": partial(weights_int4, partial(_gpt2, tokens=1, past=64), 0),
    "gpt2-prefill-int4-int8": partial(weights_int4, _gpt2, 4),
    "byte-pairs": byte_pairs,
    **_PRODUCTS,
}

_MODELS: Mapping[str, DigestModel] = {
    **{name: _one(build) for name, build in _FLOATS.items()},
    **_named("quantised", _IN_BYTES),
    **_named("small", _SMALL),
    **_named(
        "exported",
        {path.stem: partial(onnx.load, path) for path in sorted(EXPORTED_FOLDER.glob("*.onnx"))},
    ),
    "open-bert": _one(partial(dynamic_bert, intermediate=512, **_tiny)),
    "open-bert-batch-1": _one(
        partial(dynamic_bert, intermediate=512, **_tiny),
        {"batch": [1], "sequence": ["1..512@32,128"]},
    ),
    "open-gpt2": _one(partial(open_gpt2, **_tiny)),
    "open-llama": _one(partial(open_llama, intermediate=512, cached=2, **_tiny)),
    "open-mobilenetv2": _one(
        lambda: opened(mobilenet_v2(size=96), {"x": ("batch", 3, 96, 96)}), {"batch": ["1..64"]}
    ),
    "open-detector": _one(
        lambda: opened(yolo_nano(), {"x": (1, 3, "height", "width")}),
        {"height": ["160..640:32"], "width": ["160..640:32"]},
    ),
    "large-batch": _one(
        lambda: opened(vgg16_features(height=64, width=64), {"x": ("batch", 3, 64, 64)}),
        {"batch": [64]},
    ),
    "float16": _one(partial(perceptron, TensorProto.FLOAT16, np.float16), {"batch": [5]}),
    "control-converging": _one(converging),
    "control-counting": _one(counting),
    "control-collatz": _one(partial(collatz, None)),
    "control-collatz-100": _one(partial(collatz, 100)),
    "control-nested": _one(nested),
    "control-scan": _one(partial(scanning, 1500, (0, 1), (1, 0))),
    "control-choosing": _one(choosing),
    "stages-chosen-rows": _one(chosen_rows),
    "stages-computed-shapes": _one(computed_shapes),
    "stages-contradiction": _one(branches),
    **_nodes(),
}

LARGE = (
    *LIGHT_MODELS,
    *("mobilenetv2", "efficientnet-b0", "efficientnet-lite0", "yolo-nano"),
    *("vgg16-features-126x224", "bert", "deit-small", "convnext-tiny", "pvt-tiny", "segformer-b0"),
    *("llama-prefill-64", "llama-decoder-growing", "quantised-squeezenet"),
    *(
        "quantised-mobilenetv2",
        "quantised-yolo-nano",
        "quantised-minilm",
        "quantised-efficientnet-b0",
    ),
    *("exported-bert-eager", "exported-bert-sdpa", "exported-vit", "exported-llama-prefill"),
    *("open-gpt2", "open-llama", "open-mobilenetv2", "open-detector", "large-batch"),
    *("lstm-2x256-64", "quantised-gpt2-prefill-int4-int8"),
)
"""Models with many kernels, which are compiled for only some of the targets."""

DIGESTED: Mapping[str, DigestModel] = {
    name: replace(model, share=LARGE_SHARE) if name in LARGE else model
    for name, model in _MODELS.items()
}
