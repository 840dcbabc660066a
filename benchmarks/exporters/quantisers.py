"""One small network with convolutions and attention, quantised by common tools.

The tools are onnxruntime.quantization (per tensor and per channel, symmetric and asymmetric, 8 and
16 bits), NNCF, AMD Quark, and PyTorch's own quantisation with its ONNX exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.exporters.written import Feeds, Maker, make_all

Floats = NDArray[np.float32]

SAMPLES = 4
OPSET = 17


class Network(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A small network with convolutions, a residual, a parallel pool and attention.

    With `plain`, it contains only what PyTorch's quantiser can convert: Relu as the only
    activation, no scaling of attention scores, and no concatenation.
    """

    def __init__(self, *, plain: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.plain = plain
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.depthwise = nn.Conv2d(16, 16, 3, 1, 1, groups=16)
        self.wide = nn.Conv2d(16, 32, 1)
        self.residual = nn.Conv2d(32, 32, 1)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.head = nn.Linear(32, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.wide(torch.relu(self.depthwise(torch.relu(self.stem(x)))))
        active = torch.relu(y) if self.plain else nn.functional.silu(y)
        y = y + self.residual(active)
        if not self.plain:
            y = torch.cat([y, nn.functional.max_pool2d(y, 3, 1, 1)], 1)[:, :32]
        tokens = y.flatten(2).transpose(1, 2)
        scores = self.query(tokens) @ self.key(tokens).transpose(1, 2)
        weights = torch.softmax(scores if self.plain else scores * 0.2, -1)
        return self.head((weights @ self.value(tokens)).mean(1))


def image(seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((1, 3, 16, 16)).astype(np.float32)


def runs() -> Sequence[Feeds]:
    return [{"x": image(SAMPLES)}, {"x": image(SAMPLES + 1)}]


def write(model: nn.Module, path: Path) -> None:
    torch.onnx.export(
        model, (torch.tensor(image(0)),), path, dynamo=False, opset_version=OPSET, input_names=["x"]
    )


class Samples:
    """Calibration inputs with onnxruntime.quantization's interface CalibrationDataReader."""

    def __init__(self) -> None:
        self._left: Iterator[Mapping[str, Floats]] = iter(
            [{"x": image(seed)} for seed in range(SAMPLES)]
        )

    def get_next(self) -> Mapping[str, Floats] | None:
        return next(self._left, None)


Quantise = Callable[[Path, Path], None]
"""Converts a file with a float32 model to a file with a quantised model."""


def quantised(path: Path, quantise: Quantise) -> Sequence[Feeds]:
    with TemporaryDirectory() as folder:
        source = Path(folder, "float.onnx")
        write(Network().eval(), source)
        quantise(source, path)
    return runs()


def onnxruntime_static(
    source: Path, path: Path, *, activations: str, weights: str, each: bool, symmetric: bool
) -> None:
    from onnxruntime.quantization import QuantType, quantize_static

    quantize_static(
        source,
        path,
        Samples(),
        activation_type=QuantType[activations],
        weight_type=QuantType[weights],
        per_channel=each,
        extra_options={"ActivationSymmetric": symmetric, "WeightSymmetric": symmetric},
    )


def nncf_quantised(source: Path, path: Path, **options: str) -> None:
    """Quantise the model file `source` by NNCF and write it to `path`.

    The options `model_type` and `preset` are names of `nncf.ModelType` and
    `nncf.QuantizationPreset`.
    """
    import nncf

    chosen: dict[str, Any] = {}
    if "model_type" in options:
        chosen["model_type"] = nncf.ModelType[options["model_type"]]
    if "preset" in options:
        chosen["preset"] = nncf.QuantizationPreset[options["preset"]]
    data = nncf.Dataset([image(seed) for seed in range(SAMPLES)], lambda x: {"x": x})
    onnx.save(nncf.quantize(onnx.load(source), data, subset_size=SAMPLES, **chosen), path)


def quark_quantised(source: Path, path: Path, *, config: str) -> None:
    import quark.onnx
    from quark.onnx.quantization.config import custom_config

    found = getattr(custom_config, config)
    if not config.endswith("QCONFIG"):
        found = quark.onnx.Config(global_quant_config=found)
    quark.onnx.ModelQuantizer(found).quantize_model(str(source), str(path), Samples())


def torch_quantised(path: Path, *, backend: str) -> Sequence[Feeds]:
    from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx

    example = (torch.tensor(image(0)),)
    mapping = get_default_qconfig_mapping(backend)
    observed = quantize_fx.prepare_fx(Network(plain=True).eval(), mapping, example)
    for seed in range(SAMPLES):
        observed(torch.tensor(image(seed)))
    write(quantize_fx.convert_fx(observed), path)
    return runs()


def _by(quantise: Callable[..., None], **options: Any) -> Maker:
    return partial(quantised, quantise=partial(quantise, **options))


def _static(activations: str, weights: str, *, each: bool, symmetric: bool) -> Maker:
    return _by(
        onnxruntime_static,
        activations=activations,
        weights=weights,
        each=each,
        symmetric=symmetric,
    )


MAKERS: dict[str, Maker] = {
    "q-ort-tensor": _static("QUInt8", "QInt8", each=False, symmetric=False),
    "q-ort-tensor-symmetric": _static("QInt8", "QInt8", each=False, symmetric=True),
    "q-ort-channel": _static("QUInt8", "QInt8", each=True, symmetric=False),
    "q-ort-channel-symmetric": _static("QInt8", "QInt8", each=True, symmetric=True),
    "q-ort-unsigned": _static("QUInt8", "QUInt8", each=False, symmetric=False),
    "q-ort-16": _static("QUInt16", "QInt8", each=True, symmetric=False),
    "q-nncf": _by(nncf_quantised),
    "q-nncf-mixed": _by(nncf_quantised, preset="MIXED"),
    "q-nncf-transformer": _by(nncf_quantised, model_type="TRANSFORMER"),
    "q-quark-cnn": _by(quark_quantised, config="INT8_CNN_DEFAULT_CONFIG"),
    "q-quark-transformer": _by(quark_quantised, config="INT8_TRANSFORMER_DEFAULT_CONFIG"),
    "q-quark-powers": _by(quark_quantised, config="XINT8_QCONFIG"),
    "q-quark-a8w8": _by(quark_quantised, config="A8W8_QCONFIG"),
    "q-quark-a16w8": _by(quark_quantised, config="A16W8_QCONFIG"),
    "q-torch-x86": partial(torch_quantised, backend="x86"),
    "q-torch-qnnpack": partial(torch_quantised, backend="qnnpack"),
}

if __name__ == "__main__":
    make_all(MAKERS)
