"""Ten small quantised models, each from a different configuration of onnxruntime.quantization."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.onnx_writer import OnnxWriter

SAMPLES = 4
SIDE, CLASSES, WIDTH = 24, 10, 64


def network(opset: int) -> Any:
    """A small float32 convolutional network in ONNX with pooling and a final matrix product.

    `opset` is 13 to 21. The input has shape (1, 3, 24, 24).
    """
    writer = OnnxWriter("network", 0, opset)
    x = writer.input("x", (1, 3, SIDE, SIDE))
    for channels, filters in ((3, 16), (16, 32)):
        weights = writer.normal((filters, channels, 3, 3), (2 / (9 * channels)) ** 0.5)
        bias = writer.constant(writer.normal((filters,), 0.05), "bias")
        x = writer.node("Conv", x, writer.constant(weights, "weight"), bias, pads=[1, 1, 1, 1])
        x = writer.node("MaxPool", writer.node("Relu", x), kernel_shape=[2, 2], strides=[2, 2])
    x = writer.node("Flatten", writer.node("GlobalAveragePool", x))
    return writer.finish([(writer.gemm(x, 32, CLASSES, gain=2.0), (1, CLASSES))])


def products(opset: int) -> Any:
    """A float32 ONNX model with two matrix products, each followed by a softmax.

    The input has shape (8, 64).
    """
    writer = OnnxWriter("products", 0, opset)
    x = writer.input("x", (8, WIDTH))
    for _ in range(2):
        weights = writer.constant(writer.normal((WIDTH, WIDTH), WIDTH**-0.5), "weight")
        x = writer.node("Softmax", writer.node("MatMul", x, weights), axis=-1)
    return writer.finish([(x, (8, WIDTH))])


def static(opset: int, form: str, activations: str, weights: str, per_channel: bool) -> Any:
    """Quantise `network` statically, with ranges calibrated on random inputs.

    `form` is "QDQ" or "QOperator". `activations` and `weights` are names of QuantType, such as
    "QInt8".
    """
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    random = np.random.default_rng(1)

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            shape = (1, 3, SIDE, SIDE)
            drawn = [random.standard_normal(shape).astype(np.float32) for _ in range(SAMPLES)]
            self._left = iter([{"x": each} for each in drawn])

        def get_next(self) -> Mapping[str, Any] | None:
            return next(self._left, None)

    with _files(network(opset)) as (source, result):
        quantize_static(
            source,
            result,
            Samples(),
            quant_format=QuantFormat[form],
            activation_type=QuantType[activations],
            weight_type=QuantType[weights],
            per_channel=per_channel,
        )
        return onnx.load(result)


def dynamic(opset: int, weights: str) -> Any:
    """Quantise `products` dynamically: scales of activations are computed at run time.

    `weights` is a name of QuantType, such as "QInt8".
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _files(products(opset)) as (source, result):
        quantize_dynamic(source, result, weight_type=QuantType[weights])
        return onnx.load(result)


@contextmanager
def _files(model: Any) -> Iterator[tuple[Path, Path]]:
    """Save a model to a temporary file; yield its path, and the path for the quantised model.

    Log messages up to warnings are disabled in the block.
    """
    logging.disable(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(model, Path(folder, "float.onnx"))
            yield Path(folder, "float.onnx"), Path(folder, "out.onnx")
    finally:
        logging.disable(logging.NOTSET)


def four_bits(opset: int, form: str) -> Any:
    """Quantise the weights of `products` to 4 bits in blocks of 32.

    With `form` "QOperator" the result has MatMulNBits nodes; with "QDQ" it has DequantizeLinear
    before each MatMul.
    """
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    options = DefaultWeightOnlyQuantConfig(
        block_size=32, is_symmetric=True, quant_format=QuantFormat[form]
    )
    quantizer = MatMulNBitsQuantizer(products(opset), algo_config=options)
    quantizer.process()
    return quantizer.model.model


QUANTISED: Mapping[str, Callable[[], Any]] = {
    "qdq-13": lambda: static(13, "QDQ", "QUInt8", "QInt8", False),
    "qdq-channels-17": lambda: static(17, "QDQ", "QUInt8", "QInt8", True),
    "qdq-int8-19": lambda: static(19, "QDQ", "QInt8", "QInt8", True),
    "qdq-16-bits-21": lambda: static(21, "QDQ", "QUInt16", "QInt8", False),
    "qoperator-13": lambda: static(13, "QOperator", "QUInt8", "QUInt8", False),
    "qoperator-channels-15": lambda: static(15, "QOperator", "QUInt8", "QInt8", True),
    "dynamic-int8-13": lambda: dynamic(13, "QInt8"),
    "dynamic-uint8-18": lambda: dynamic(18, "QUInt8"),
    "int4-blocks-17": lambda: four_bits(17, "QOperator"),
    "int4-qdq-21": lambda: four_bits(21, "QDQ"),
}
