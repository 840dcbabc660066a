"""The models that are benchmarked and tested, by name, with seeded parameters and inputs.

`build(name)` returns a ModelProto, and `feeds(name, model)` its inputs. `check_spread` rejects
outputs that are too uniform for a meaningful comparison. No model needs a file or the network.

`python -m benchmarks.models mobilenetv2 -o model.onnx` writes a model to a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from benchmarks import operators
from benchmarks.convolutional import (
    c3d_small,
    efficientnet_b0,
    efficientnet_lite0,
    mobilenet_v2,
    vgg16_features,
    yolo_nano,
)
from benchmarks.light import LIGHT_MODELS, light_model
from benchmarks.llama import LLAMA_VOCABULARY, llama
from benchmarks.plain import lstm, mlp
from benchmarks.quantized import dynamic_int8, static_int8, weights_int4
from benchmarks.transformer import (
    BERT_VOCABULARY,
    GPT2_VOCABULARY,
    bert,
    deit,
    gpt2,
    whisper_encoder,
)
from benchmarks.vision import convnext, pvt, segformer


@dataclass(frozen=True, slots=True)
class ModelCase:
    """A named model, its builder, and exclusive upper bounds for its integer inputs by name.

    `largest_error` is the accepted difference between engines, relative to the largest output.
    """

    name: str
    build: Callable[[], Any]
    integer_bounds: Mapping[str, int] = field(default_factory=dict)
    largest_error: float = 1e-3  # float32 engines differ by 1e-5 at most, 16-bit ones by 1e-2

    def feeds(self, model: Any, seed: int = 1) -> dict[str, NDArray[Any]]:
        """Seeded random inputs: standard normal floats, and integers uniform in [0, bound).

        The default bound is 2.
        """
        random = np.random.default_rng(seed)
        bounds = self.integer_bounds
        constants = {tensor.name for tensor in model.graph.initializer}
        arrays: dict[str, NDArray[Any]] = {}
        for info in model.graph.input:
            if info.name in constants:
                continue
            tensor = info.type.tensor_type
            shape = tuple(dim.dim_value or 1 for dim in tensor.shape.dim)
            if tensor.elem_type == TensorProto.FLOAT:
                arrays[info.name] = random.standard_normal(shape, np.float32)
            else:
                bound = bounds.get(info.name, 2)
                arrays[info.name] = random.integers(0, bound, shape, dtype=np.int64)
        return arrays


minilm = partial(bert, layers=6, hidden=384, heads=12, intermediate=1536)


STATIC_INT8 = (
    *("resnet50", "mobilenetv2", "efficientnet-b0", "efficientnet-lite0", "yolo-nano"),
    *("bert-base-128", "minilm-l6-128", "deit-small"),
)
DYNAMIC_INT8 = ("bert-base-128", "minilm-l6-128")
WEIGHTS_INT4 = ("gpt2-prefill-64", "gpt2-decode-64", "llama-prefill-64", "llama-decode-64")
INT8_ERROR = 0.2
"""Accepted error of int8 models. A value that is rounded differently changes all later values by a
step of 1/255."""


def _quantized(case: ModelCase) -> Iterator[ModelCase]:
    if case.name in STATIC_INT8:
        build = partial(static_int8, case.build, case.feeds)
        yield replace(case, name=f"{case.name}-qdq", build=build, largest_error=INT8_ERROR)
    if case.name in DYNAMIC_INT8:
        build = partial(dynamic_int8, case.build)
        yield replace(case, name=f"{case.name}-dynamic", build=build, largest_error=INT8_ERROR)
    if case.name in WEIGHTS_INT4:
        for level, suffix in ((0, "int4"), (4, "int4-int8")):
            build = partial(weights_int4, case.build, level)
            error = INT8_ERROR if level else case.largest_error
            yield replace(case, name=f"{case.name}-{suffix}", build=build, largest_error=error)


def _cases() -> dict[str, ModelCase]:
    cases = [ModelCase(name, partial(light_model, name)) for name in LIGHT_MODELS]
    cases += [
        ModelCase("mobilenetv2", mobilenet_v2),
        ModelCase("efficientnet-b0", efficientnet_b0),
        ModelCase("efficientnet-lite0", efficientnet_lite0),
        ModelCase("yolo-nano", yolo_nano),
        ModelCase("c3d-small", c3d_small),
        ModelCase("bert-base-128", bert, {"input_ids": BERT_VOCABULARY}),
        ModelCase("minilm-l6-128", minilm, {"input_ids": BERT_VOCABULARY}),
        ModelCase("deit-small", deit),
        ModelCase("convnext-tiny", convnext),
        ModelCase("pvt-tiny", pvt),
        ModelCase("segformer-b0", segformer),
        ModelCase("whisper-tiny-encoder", whisper_encoder),
        ModelCase("gpt2-prefill-64", gpt2, {"input_ids": GPT2_VOCABULARY}),
        ModelCase(
            "gpt2-decode-64", partial(gpt2, tokens=1, past=64), {"input_ids": GPT2_VOCABULARY}
        ),
        ModelCase("llama-prefill-64", llama, {"input_ids": LLAMA_VOCABULARY}),
        ModelCase(
            "llama-decode-64", partial(llama, tokens=1, past=64), {"input_ids": LLAMA_VOCABULARY}
        ),
        ModelCase("mlp", mlp),
        ModelCase("lstm-2x256-64", lstm),
        ModelCase("vgg16-features", vgg16_features),
        ModelCase("vgg16-features-126x224", partial(vgg16_features, height=126)),
    ]
    cases += [case for each in cases for case in _quantized(each)]
    return {case.name: case for case in cases}


MODELS = _cases()

SINGLE = {
    case.name: case
    for case in (
        ModelCase("matmul-1024", partial(operators.matmul, 1024, 1024, 1024)),
        ModelCase("conv3x3-128x28", partial(operators.conv, 128, 128, (28, 28))),
    )
}
"""Single operators on which tuners are compared. They do not take part in races."""


def case(name: str) -> ModelCase:
    """The entry of the benchmark model with this name, in MODELS or SINGLE.

    Raises KeyError for other names.
    """
    return (MODELS | SINGLE)[name]


def build(name: str) -> Any:
    """Build the ModelProto of a name in MODELS or SINGLE. Raises KeyError for other names."""
    return case(name).build()


def feeds(name: str, model: Any, seed: int = 1) -> dict[str, NDArray[Any]]:
    """Seeded random inputs for the model with this name."""
    return case(name).feeds(model, seed)


def check_spread(outputs: NDArray[Any]) -> None:
    """Raise ValueError if outputs are not finite, or too uniform for a comparison to be meaningful.

    They are too uniform if the standard deviation is below 1 % of the largest absolute value.
    """
    if not np.isfinite(outputs).all():
        raise ValueError("the outputs are not finite")
    spread = float(np.std(outputs)) / max(float(np.max(np.abs(outputs))), 1e-30)
    if spread < 0.01:
        raise ValueError(f"the outputs are nearly equal: deviation {spread:.1e} of the largest")


def main() -> None:
    """Command line: write a model to an ONNX file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models")
    parser.add_argument("model", choices=sorted(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("-o", "--output", type=Path, required=True, help="the ONNX file")
    given = parser.parse_args()
    given.output.write_bytes(build(given.model).SerializeToString())
    print(f"{given.output}: {given.output.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
