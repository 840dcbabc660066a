"""Models that `onnxruntime.quantization` quantises to 8 and 4 bits, as users do.

`static_int8` calibrates with seeded inputs and inserts QuantizeLinear and DequantizeLinear around
every operator that it supports. `dynamic_int8` quantises weights ahead of time, and activations at
run time. `weights_int4` quantises the weights of matrix products in blocks.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from numpy.typing import NDArray
from onnx import numpy_helper

SAMPLES = 4
"""Number of calibration inputs. Few suffice, because activations of random inputs and weights are
all alike."""

LEAST_OPSET = 13
"""The first opset with scales per channel."""

Feeds = Callable[[Any, int], Mapping[str, NDArray[np.generic]]]


def static_int8(build: Callable[[], Any], feeds: Feeds, *, per_channel: bool = True) -> Any:
    """Quantise a model statically to uint8 activations and int8 weights.

    There is a scale per output channel, or per tensor without `per_channel`. `feeds` returns
    calibration inputs for a model and a seed.
    """
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter([dict(feeds(model, seed)) for seed in range(SAMPLES)])

        def get_next(self) -> dict[str, NDArray[np.generic]] | None:
            return next(self._left, None)

    model = build()
    with _files(model) as (source, result):
        quantize_static(
            source,
            result,
            Samples(),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=per_channel,
        )
        return onnx.load(result)


def dynamic_int8(build: Callable[[], Any]) -> Any:
    """Quantise a model's matrix products to int8 weights.

    Their activations are quantised at run time.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _files(build()) as (source, result):
        quantize_dynamic(source, result, weight_type=QuantType.QInt8)
        return onnx.load(result)


def weights_int4(build: Callable[[], Any], level: int, *, block: int = 32) -> Any:
    """Convert a model's matrix products to MatMulNBits with symmetric 4-bit weights.

    Each block of weights has a scale. `level` is the accuracy level: 0 lets the engine choose, 4
    allows it to quantise activations to int8.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer, logger

    logger.setLevel(logging.WARNING)  # it reports every node
    model = build()
    _fold_transposes(model.graph)
    quantizer = MatMulNBitsQuantizer(
        model,
        bits=4,
        block_size=block,
        is_symmetric=True,
        accuracy_level=level,
        op_types_to_quantize=("MatMul",),
    )
    quantizer.process()
    return quantizer.model.model


def _fold_transposes(graph: Any) -> None:
    """Replace Transpose nodes of constants (tied embeddings) by transposed constants."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type == "Transpose" and node.input[0] in constants:
            (order,) = (attribute.ints for attribute in node.attribute)
            array = numpy_helper.to_array(constants[node.input[0]]).transpose(order)
            turned = np.ascontiguousarray(array)
            graph.initializer.append(numpy_helper.from_array(turned, node.output[0]))
            graph.node.remove(node)


@contextmanager
def _files(model: Any) -> Iterator[tuple[Path, Path]]:
    """Save a preprocessed model to a temporary file.

    The context yields its path, and a path for the quantised model.
    """
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        written, source, result = (Path(folder, f"{n}.onnx") for n in ("written", "source", "out"))
        if model.opset_import[0].version < LEAST_OPSET:
            model = onnx.version_converter.convert_version(model, LEAST_OPSET)
        onnx.save(model, written)
        quant_pre_process(str(written), str(source), skip_symbolic_shape=True)
        yield source, result
