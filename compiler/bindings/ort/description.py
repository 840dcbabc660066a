"""Inputs, outputs and metadata of a model, in the form in which ONNX Runtime reports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError, suggestion
from tilewright.compiler.runtime.packing import bfloat16_type

if TYPE_CHECKING:
    from tilewright.compiler.frontend.model_file import ReadModel
    from tilewright.compiler.runtime.artifact import Artifact
    from tilewright.compiler.runtime.ports import Dims
    from tilewright.compiler.runtime.program import Port, Program, Result

ELEMENT_TYPES = {
    1: "float",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "double",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
}
"""ONNX Runtime's names of the element types, by their number in `TensorProto.DataType`."""

_DTYPES = {"float": "float32", "double": "float64"}
_NUMPY = {"float": "float32", "double": "float64", "string": "O"}


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output of a session.

    Attributes:
        name: the name of the value.
        type: its type, such as `tensor(float)`, `seq(tensor(int64))` or
            `map(string,tensor(float))`.
        shape: the size of each fixed dimension; the name of each dynamic dimension, or None if it
            has no name.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The producer of a model, and the metadata in its file.

    A field that the file does not state is empty, or 0 for the version.
    """

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionDescription:
    """The inputs and outputs of a session, in order, and the metadata of its model."""

    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    metadata: ModelMetadata

    def at(self, sizes: Mapping[str, int]) -> SessionDescription:
        """Return a copy of the description in which the dimensions named in `sizes` have these
        sizes."""
        if not sizes:
            return self
        inputs, outputs = (
            tuple(
                replace(each, shape=[sizes.get(str(dim), dim) for dim in each.shape])
                for each in ports
            )
            for ports in (self.inputs, self.outputs)
        )
        return replace(self, inputs=inputs, outputs=outputs)


def denoted(source: Path | bytes, sizes: Mapping[str, int]) -> dict[str, int]:
    """Convert sizes by ONNX denotation to sizes by the name of the dimension.

    A denotation states the meaning of a dimension, such as `DATA_BATCH`. If several dimensions have
    the same denotation, each of them gets the size stated for that denotation.

    Args:
        source: the model's path, or its bytes.
        sizes: the size for each denotation.
    """
    from tilewright.compiler.frontend.model_file import read_model

    return {
        dim.dim_param: sizes[dim.denotation]
        for info in read_model(source).proto.graph.input
        for dim in info.type.tensor_type.shape.dim
        if dim.dim_param and dim.denotation in sizes
    }


def with_initializers(source: Path | bytes, arrays: Mapping[str, np.ndarray]) -> ReadModel:
    """Read a model, and replace the initializers named in `arrays`.

    Raises:
        InvalidArgumentError: if the model lacks an initializer, or an initializer and its array
            differ in type or shape.
    """
    from tilewright.compiler.frontend.model_file import read_model
    from tilewright.compiler.ops.onnx_node import OnnxTensor

    model = read_model(source)
    known = {tensor.name: tensor for tensor in model.proto.graph.initializer}
    tensors: dict[str, Any] = {}
    for name, array in arrays.items():
        if name not in known:
            raise InvalidArgumentError(
                f"the model has no initializer '{name}'{suggestion(name, known)}"
            )
        kind, dims = ELEMENT_TYPES.get(known[name].data_type), tuple(known[name].dims)
        if (
            kind in (None, "string")
            or array.dtype
            != (np.uint16 if kind == DType.BFLOAT16 else numpy_type(f"tensor({kind})"))
            or array.shape != dims
        ):
            raise InvalidArgumentError(
                f"initializer '{name}' is {kind} {list(dims)}, given is {array.dtype} "
                f"{list(array.shape)}"
            )
        tensors[name] = OnnxTensor(array, DType(_DTYPES.get(kind, kind)))
    return replace(model, tensors={**model.tensors, **tensors})


def of_model(source: Path | bytes) -> SessionDescription:
    """Return the description of a model.

    Raises:
        InvalidModelError: if `source` is not a model.
    """
    from tilewright.compiler.frontend.model_file import read_model

    model = read_model(source).proto
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    return SessionDescription(
        tuple(_of_info(info) for info in graph.input if info.name not in constants),
        tuple(_of_info(info) for info in graph.output),
        ModelMetadata(
            model.producer_name,
            graph.name,
            model.domain,
            model.doc_string,
            graph.doc_string,
            model.model_version,
            {prop.key: prop.value for prop in model.metadata_props},
        ),
    )


def of_artifact(artifact: Artifact) -> SessionDescription:
    """Return the description of an artifact: its inputs, outputs and metadata."""

    def described(names: Mapping[str, Dims], types: Mapping[str, str]) -> tuple[NodeArg, ...]:
        return tuple(
            NodeArg(name, types[name], [None if dim == -1 else dim for dim in dims])
            for name, dims in names.items()
        )

    return SessionDescription(
        described(artifact.ports.inputs, _input_types(artifact)),
        described(artifact.ports.outputs, _output_types(artifact)),
        ModelMetadata(graph_name=artifact.programs[0].program.name),
    )


def _input_types(artifact: Artifact) -> dict[str, str]:
    if artifact.stages is None:
        return {port.name: _port_type(port) for port in artifact.programs[0].program.inputs}
    crossings = artifact.stages.reads.crossings
    return {c.name: "tensor(string)" if c.text else _dtype_name(c.dtype) for c in crossings}


def _output_types(artifact: Artifact) -> dict[str, str]:
    if artifact.stages is None:
        program = artifact.programs[0].program
        return {result.name: _result_type(result, program) for result in program.results}
    return {
        name: _result_type(result, program)
        for cut in artifact.stages.walk()
        for stage in cut.made.values()
        if stage.program is not None and (program := artifact.programs[stage.program].program)
        for name, result in zip(stage.makes, program.results, strict=True)
    }


def _result_type(result: Result, program: Program) -> str:
    kind = _port_type(program.outputs[result.places[0]])
    return f"seq({kind})" if result.is_list else kind


def _port_type(port: Port) -> str:
    return "tensor(string)" if port.labels is not None else _dtype_name(port.dtype)


def tensor_type(dtype: np.dtype) -> str:
    """Return ONNX Runtime's name of a tensor type, such as `tensor(float)` for float32."""
    if dtype.kind in "OUT":
        return "tensor(string)"
    return f"tensor({_ours(dtype.name)})"


def stored_type(dtype: np.dtype) -> np.dtype:
    """Return the NumPy type in which elements are stored: uint16 for bfloat16, else `dtype`."""
    return np.dtype(np.uint16) if dtype.name == DType.BFLOAT16 else dtype


def numpy_type(kind: str) -> np.dtype | None:
    """Return NumPy's element type for a type in ONNX Runtime's notation, such as `tensor(float)`.

    Return None if `kind` is not the type of a tensor, such as `seq(tensor(int64))`. The result is
    also None for bfloat16 if the package ml_dtypes, which defines the type for NumPy, is not
    installed.
    """
    name = kind.removeprefix("tensor(").removesuffix(")")
    if name not in ELEMENT_TYPES.values():
        return None
    if name == DType.BFLOAT16:
        return bfloat16_type()
    return np.dtype(_NUMPY.get(name, name))


def _dtype_name(dtype: DType) -> str:
    return f"tensor({_ours(dtype.value)})"


def _ours(name: str) -> str:
    return {"float32": "float", "float64": "double"}.get(name, name)


def _of_info(info: Any) -> NodeArg:
    shape = info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ()
    dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape]
    return NodeArg(info.name, _type_text(info.type), dims)


def _type_text(kind: Any) -> str:
    match kind.WhichOneof("value"):
        case "sequence_type":
            return f"seq({_type_text(kind.sequence_type.elem_type)})"
        case "optional_type":
            return f"optional({_type_text(kind.optional_type.elem_type)})"
        case "map_type":
            key = ELEMENT_TYPES.get(kind.map_type.key_type, "undefined")
            return f"map({key},{_type_text(kind.map_type.value_type)})"
        case _:
            return f"tensor({ELEMENT_TYPES.get(kind.tensor_type.elem_type, 'undefined')})"
