"""Quantises models with `onnxruntime.quantization`. Only this module imports that package."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import onnx
import onnx.version_converter

from tilewright.compiler.frontend.order import reads
from tilewright.compiler.runtime.packing import Array
from tilewright.service.quantize.biases import expand_biases
from tilewright.service.quantize.errors import NothingToQuantizeError, QuantizeError, require
from tilewright.service.quantize.messages import kept_in_log, log
from tilewright.service.quantize.names import fresh, graphs, rename, temporary_names

LEAST_OPSET = 13
"""The first ONNX opset in which a quantised tensor can have a scale per channel."""

FIRST_SEPARATE_IR = 4
"""The first ONNX IR version in which initializers need not be graph inputs."""

LARGEST_BYTES = 1 << 31
"""Size in bytes that the weights of a model for the quantiser must not reach. It is the limit of
one protobuf message, and onnxruntime stores a model as one message."""

QUANTISED = frozenset(
    {
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        *("MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul"),
        *("QGemm", "QAttention", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
        *("MatMulNBits", "GatherBlockQuantized", "QLinearAdd", "QLinearMul", "QLinearConcat"),
    }
)
"""ONNX operators that occur only in quantised models."""

DYNAMIC_OPERATORS = ("Conv", "Gather", "MatMul")
"""ONNX operators that the dynamic method quantises.

Attention and LSTM are left out, because they would become operators that only onnxruntime has.
"""


class Ranges(StrEnum):
    """The calibration method that computes the range of a value from its observed elements."""

    MINMAX = "minmax"
    ENTROPY = "entropy"
    PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True)
class StaticInt8:
    """The static int8 method: uint8 activations with scales from calibration, and int8 weights.

    Attributes:
        per_channel: whether weights have a scale per channel; otherwise one per tensor.
        ranges: the method by which calibration computes the ranges of activations.
    """

    per_channel: bool = True
    ranges: Ranges = Ranges.MINMAX

    def __str__(self) -> str:
        return f"int8, {self.ranges} ranges, weights {_scales(self.per_channel)}"


@dataclass(frozen=True, slots=True)
class DynamicInt8:
    """The dynamic int8 method: int8 weights, and activations that are quantised at run time.

    Attributes:
        per_channel: whether weights have a scale per channel; otherwise one per tensor.
    """

    per_channel: bool = True

    def __str__(self) -> str:
        return f"dynamic int8, weights {_scales(self.per_channel)}"


@dataclass(frozen=True, slots=True)
class Int4:
    """The int4 method: weights of 4 bits with a scale per block of weights.

    All else stays in float32.

    Attributes:
        block: the number of weights per block, along the reduction dimension.
        accuracy_level: the attribute `accuracy_level` of MatMulNBits; 4 quantises activations to
            int8 at run time.

    Raises:
        QuantizeError: if no operator supports this block or accuracy level.
    """

    block: int = 32
    accuracy_level: int = 0

    def __post_init__(self) -> None:
        if self.block not in BLOCKS:
            listed = ", ".join(map(str, BLOCKS))
            raise QuantizeError(f"--block {self.block}: blocks are of {listed} weights")
        if not 0 <= self.accuracy_level <= 4:
            raise QuantizeError(f"--accuracy-level {self.accuracy_level}: levels are 0 to 4")

    def __str__(self) -> str:
        return f"int4 weights in blocks of {self.block}, accuracy level {self.accuracy_level}"


BLOCKS = (16, 32, 64, 128, 256)

Method = StaticInt8 | DynamicInt8 | Int4


@dataclass(slots=True)
class Quantiser:
    """Quantises a prepared float32 model, repeatedly with different nodes kept in float32.

    Attributes:
        model: the model after onnxruntime's constant folding; all its nodes, also in bodies, have
            unique names.
        method: the quantisation method.
        calibration: samples that determine value ranges, for a static method. They are read once.
        folder: a folder for temporary files, which must exist as long as the quantiser.
        operators: the ONNX operators that the method quantises.
        enclosed: the number of weights that these operators read inside bodies of If, Loop and
            Scan, where they stay in float32.
        wild: the names of nodes that stay in float32 because their values are NaN or infinite for
            some samples, so that no finite range exists.
    """

    model: onnx.ModelProto
    method: Method
    calibration: Sequence[Mapping[str, Array]]
    folder: Path
    operators: frozenset[str] = field(init=False)
    enclosed: int = field(init=False)
    wild: frozenset[str] = field(init=False, default=frozenset())
    _left: frozenset[str] = field(init=False)
    """Names of the nodes that stay in float32 with every method."""
    _source: onnx.ModelProto = field(init=False)
    """The model with temporary names, which is quantised."""
    _stand_ins: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._stand_ins = temporary_names(self.model.graph)
        self._source = onnx.ModelProto()
        self._source.CopyFrom(self.model)
        rename(self._source.graph, self._stand_ins)
        main, *bodies = graphs(self._source.graph)
        self._left = frozenset(node.name for body in bodies for node in body.node) | _untyped(main)
        self.operators = frozenset(_operators(self.method))
        self.enclosed = len(_weights_in_bodies(self.model.graph, self.operators))
        onnx.save(self._source, self._file)

    @property
    def _file(self) -> str:
        return str(self.folder / "prepared.onnx")

    @property
    def _ranges(self) -> Path:
        return self.folder / "ranges.json"

    def quantise(self, keep: Collection[str] = ()) -> onnx.ModelProto:
        """Quantise the model, and return the result.

        Nodes in bodies of If, Loop and Scan always stay in float32. The int8 methods do not support
        them, and int4 would change them without listing them as layers.

        Args:
            keep: the names of nodes that stay in float32.

        Raises:
            QuantizeError: if onnxruntime cannot quantise the model.
        """
        made = self._quantised({self._stand_ins.get(name, name) for name in keep})
        rename(made.graph, {other: name for name, other in self._stand_ins.items()})
        return made

    def _quantised(self, keep: Collection[str]) -> onnx.ModelProto:
        from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

        result = str(self.folder / "quantised.onnx")
        kept = sorted({*keep, *self._left})
        per_channel = not isinstance(self.method, Int4) and self.method.per_channel
        failure = f"onnxruntime cannot quantise the model to {self.method}"
        with _border(failure, hints=per_channel):
            match self.method:
                case StaticInt8(per_channel, ranges):

                    def static(kept: Sequence[str]) -> None:
                        quantize_static(
                            self._file,
                            result,
                            _reader(self.calibration, self._stand_ins),
                            activation_type=QuantType.QUInt8,
                            weight_type=QuantType.QInt8,
                            per_channel=per_channel,
                            nodes_to_exclude=kept,
                            calibrate_method=_calibration_method(ranges),
                            calibration_cache_path=self._ranges,
                        )

                    try:
                        static(kept)
                    except AssertionError:  # onnxruntime asserts that scales are numbers
                        self.wild = _wild(self._source.graph, self._ranges)
                        if not self.wild:
                            raise
                        static(sorted({*kept, *self.wild}))
                    return onnx.load(result)
                case DynamicInt8(per_channel):
                    quantize_dynamic(
                        self._file,
                        result,
                        op_types_to_quantize=list(DYNAMIC_OPERATORS),
                        weight_type=QuantType.QInt8,
                        per_channel=per_channel,
                        nodes_to_exclude=kept,
                    )
                    return onnx.load(result)
                case Int4(block, level):
                    return self._int4(block, level, kept)
                case _:
                    assert_never(self.method)

    def _int4(self, block: int, level: int, kept: Sequence[str]) -> onnx.ModelProto:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        model = onnx.ModelProto()
        model.CopyFrom(self._source)
        quantiser = MatMulNBitsQuantizer(
            model, block_size=block, accuracy_level=level, nodes_to_exclude=list(kept)
        )
        quantiser.process()
        made: onnx.ModelProto = quantiser.model.model
        return made


def prepare(path: Path, method: Method, folder: Path) -> onnx.ModelProto:
    """Read a float32 model, and prepare it for quantisation.

    The preparation removes initializers from the graph inputs, raises the opset to at least 13,
    folds constants, expands Gemm biases, and names all nodes.

    Args:
        path: the ONNX file.
        method: the quantisation method. For a method other than static int8, a Gemm becomes a
            MatMul and an Add if onnxruntime supports this for its attributes.
        folder: an existing folder for temporary files.

    Raises:
        NothingToQuantizeError: if the model is already quantised, or has no standard ONNX operator.
        QuantizeError: if the model is too large, or onnxruntime cannot read it.
    """
    check_installed(method)
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = load_whole(path)
    _check_float(model)
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), None)
    if opset is None:
        domains = ", ".join(f"'{one.domain}'" for one in model.opset_import)
        raise NothingToQuantizeError(f"'{path}' has operators of {domains} alone, and none of ONNX")
    written, source = str(folder / "written.onnx"), str(folder / "source.onnx")
    with _border(f"'{path}' cannot be prepared for quantising"):
        _list_opsets_once(model)
        _separate_initializers(model)
        if opset < LEAST_OPSET:
            model = onnx.version_converter.convert_version(model, LEAST_OPSET)
        onnx.save(model, written)
        quant_pre_process(written, source, skip_symbolic_shape=True)
        model = onnx.load(source)
        if not isinstance(method, StaticInt8):
            wrapped = ONNXModel(model)
            wrapped.replace_gemm_with_matmul()
            model = wrapped.model
    _name_nodes(model.graph)
    expand_biases(model.graph)
    return model


def load_whole(path: Path) -> onnx.ModelProto:
    """Read a model, including the external weights in files next to it.

    Raises:
        QuantizeError: if the weights are missing, or too large for one protobuf message.
    """
    try:
        plain = onnx.load(path, load_external_data=False)
        size = sum(_bytes(weight) for graph in graphs(plain.graph) for weight in graph.initializer)
        if size >= LARGEST_BYTES:
            raise QuantizeError(
                f"'{path}' has weights of {size} bytes; onnxruntime.quantization is given models "
                f"of less than {LARGEST_BYTES}"
            )
        onnx.load_external_data_for_model(plain, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise QuantizeError(f"'{path}': weights next to it cannot be read: {error}") from error
    return plain


def check_installed(method: Method) -> None:
    """Check that the libraries of a quantisation method are installed.

    Raises QuantizeError otherwise; the message names the extra of the package to install.
    """
    require("onnxruntime.quantization")
    if isinstance(method, Int4):
        require("onnx_ir")


def _operators(method: Method) -> Collection[str]:
    match method:
        case StaticInt8():
            from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

            return {*QDQRegistry, *QLinearOpsRegistry}
        case DynamicInt8():
            return DYNAMIC_OPERATORS
        case Int4():
            return ("MatMul",)
        case _:
            assert_never(method)


def _reader(samples: Sequence[Mapping[str, Array]], names: Mapping[str, str]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # it has no types
        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> dict[str, Array] | None:
            sample = next(self._left, None)
            if sample is None:
                return None
            return {names.get(name, name): array for name, array in sample.items()}

    return Reader()


def _calibration_method(ranges: Ranges) -> Any:
    from onnxruntime.quantization import CalibrationMethod

    match ranges:
        case Ranges.MINMAX:
            return CalibrationMethod.MinMax
        case Ranges.ENTROPY:
            return CalibrationMethod.Entropy
        case Ranges.PERCENTILE:
            return CalibrationMethod.Percentile
        case _:
            assert_never(ranges)


def _check_float(model: onnx.ModelProto) -> None:
    """Check that a model is not quantised yet.

    Raises NothingToQuantizeError if it has an operator that only quantised models have.
    """
    for node in (node for graph in graphs(model.graph) for node in graph.node):
        if node.op_type in QUANTISED:
            raise NothingToQuantizeError(
                f"the model is quantised already: node '{node.name or node.output[0]}' is a "
                f"{node.op_type}"
            )


def _untyped(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the names of Softmax nodes whose output has no type in the file.

    Such nodes must stay in float32: onnxruntime calibrates only values with a type, but requires a
    range for the output of each Softmax.
    """
    known = {info.name for info in (*graph.value_info, *graph.output)}
    softmaxes = (node for node in graph.node if node.op_type == "Softmax")
    return frozenset(node.name for node in softmaxes if node.output[0] not in known)


def _wild(graph: onnx.GraphProto, ranges: Path) -> frozenset[str]:
    """Return the names of nodes that read or write a value whose range is not finite.

    `ranges` is the file in which onnxruntime has stored the range of each value. The function
    removes the ranges that are not finite from it. The result is empty if the file does not exist.
    """
    if not ranges.is_file():
        return frozenset()
    written = json.loads(ranges.read_text())
    values = {
        name
        for name, each in written["data"].items()
        if not all(np.isfinite(each[end]["data"]).all() for end in ("lowest", "highest"))
    }
    written["data"] = {n: each for n, each in written["data"].items() if n not in values}
    ranges.write_text(json.dumps(written))
    return frozenset(node.name for node in graph.node if values & {*node.input, *node.output})


def _weights_in_bodies(graph: onnx.GraphProto, operators: Collection[str]) -> frozenset[str]:
    """Return the names of float32 weights that are read in bodies of If, Loop and Scan.

    Only nodes of the given `operators` count as readers. Weights are constants with at least two
    dimensions, defined in the body or outside of it.
    """
    constants = set()
    for one in graphs(graph):
        made = [
            (node.output[0], each.t)
            for node in one.node
            if node.op_type == "Constant"
            for each in node.attribute
            if each.name == "value"
        ]
        made += [(tensor.name, tensor) for tensor in one.initializer]
        constants |= {
            name
            for name, tensor in made
            if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) > 1
        }
    _, *bodies = graphs(graph)
    nodes = (node for body in bodies for node in body.node if node.op_type in operators)
    return frozenset(value for node in nodes for value in node.input if value in constants)


def _list_opsets_once(model: onnx.ModelProto) -> None:
    """Remove duplicate domains from the model's opset list.

    Some exporters list a domain twice, and onnxruntime's tools reject such models.
    """
    listed = {"" if o.domain == "ai.onnx" else o.domain: o for o in model.opset_import}
    kept = [onnx.helper.make_opsetid(one.domain, one.version) for one in listed.values()]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _separate_initializers(model: onnx.ModelProto) -> None:
    """Remove the initializers from the graph inputs, and set the IR version to at least 4.

    In IR versions below 4, each initializer is also a graph input. onnxruntime's tools would
    require a value of this input in each sample, and would not fold it as a constant.
    """
    model.ir_version = max(model.ir_version, FIRST_SEPARATE_IR)
    weights = {tensor.name for tensor in model.graph.initializer}
    kept = [info for info in model.graph.input if info.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Give each node a unique name, also in bodies of If, Loop and Scan.

    Nodes to keep in float32 are selected by name.
    """
    taken: set[str] = set()
    for node in (node for one in graphs(graph) for node in one.node):
        node.name = fresh(node.name or f"{node.op_type}.{node.output[0]}", taken)
        taken.add(node.name)


def tensor_names(graph: onnx.GraphProto) -> frozenset[str]:
    """Return the names of a graph's values: inputs, initializers, and node inputs and outputs."""
    names = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        names.update(reads(node))
        names.update(value for value in node.output if value)
    return frozenset(names)


def _bytes(tensor: onnx.TensorProto) -> int:
    size = 1
    for extent in tensor.dims:
        size *= extent
    return int(size * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _scales(per_channel: bool) -> str:
    return "per channel" if per_channel else "per tensor"


@contextlib.contextmanager
def _border(failure: str, *, hints: bool = False) -> Iterator[None]:
    """Log the messages of onnxruntime, and convert its exceptions, while the context is open.

    onnxruntime raises exceptions of any type for models that it does not support. Each becomes a
    QuantizeError of one sentence that begins with `failure`. If `hints` is true and the error is
    about channels or scales, the sentence suggests `--per-tensor`.
    """
    try:
        with kept_in_log():
            yield
    except MemoryError:
        raise
    except Exception as error:  # see above
        log.info("%s", failure, exc_info=error)
        hint = "; one scale for each tensor may work: --per-tensor"
        shown = hint if hints and _is_about_scales(error) else ""
        raise QuantizeError(f"{failure}: {_said(error)}{shown}") from error


def _is_about_scales(error: Exception) -> bool:
    """Return whether an error message is about channels or scales. Quoted names do not count.

    NumPy's error "The truth value of an array ... is ambiguous" counts, too: it occurs in code of
    onnxruntime that expects one scale and gets an array of scales, one per channel.
    """
    text = re.sub(r"'[^']*'", "", str(error))
    return bool(
        re.search(r"truth value of an array|\b(channels?|scales?|zero[-_ ]points?)\b", text, re.I)
    )


def _said(error: Exception) -> str:
    """Return the message of an exception of onnxruntime, with its type, for users."""
    if "truth value of an array" in str(error):
        return "its code takes an array for a single number"
    return ": ".join(each for each in (type(error).__name__, str(error)) if each)
