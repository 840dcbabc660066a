"""Function bodies by which ONNX schemas define operators in terms of simpler ones.

Such a body is imported in place of a node if the node's operator has no import rule, or if the rule
does not support the node's attributes or operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no types
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, TypeProto, helper
from onnx.defs import OpSchema, SchemaError, get_schema

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.cast import ONNX_TYPES
from tilewright.compiler.sizes import is_dynamic

_NUMBERS: Mapping[DType, int] = {dtype: number for number, dtype in ONNX_TYPES.items()}


@dataclass(frozen=True, slots=True)
class SchemaFunction:
    """The function body of a node's ONNX schema, and the attributes of the node.

    Attributes that the node omits have the default values of the schema.
    """

    body: FunctionProto
    attributes: Mapping[str, AttributeProto]


def schema_function(
    node: NodeProto, opset: int, types: Sequence[TensorType | None]
) -> SchemaFunction | None:
    """Return the function body of a node's ONNX schema; None if the schema has none.

    Args:
        node: the node, of the domain ai.onnx.
        opset: the version of the domain.
        types: the types of the node's operands; None for an omitted operand.

    Raises:
        InvalidModelError: if the schema generates its body for the node, and the node is malformed.
    """
    try:
        schema = get_schema(node.op_type, opset, "")
    except (SchemaError, TypeError):
        return None  # the opset has no such operator, or the node's type is not a string
    try:
        body = _body(schema, node, opset, types)
    except (RuntimeError, ValueError, DecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise InvalidModelError(f"{node.op_type} '{node.name}': {reason}") from error
    if body is None:
        return None
    defaults = {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type != AttributeProto.UNDEFINED
    }
    given = {attribute.name: attribute for attribute in node.attribute}
    opsets = {entry.domain: entry.version for entry in body.opset_import}
    return SchemaFunction(
        _with_fitting_constants(body, opsets.get("", opset)), {**defaults, **given}
    )


def _with_fitting_constants(body: FunctionProto, opset: int) -> FunctionProto:
    """The body, with float32 constants cast to the type of the operands they are combined with.

    Some bodies combine a float32 constant with operands of any float type. For example,
    MeanVarianceNormalization adds its epsilon, a float32 constant, to a deviation of type float16.
    """
    numbers = {node.output[0] for node in body.node if _is_float32(node)}
    nodes: list[NodeProto] = []
    for node in body.node:
        fitted = NodeProto()
        fitted.CopyFrom(node)
        for position, like in _partners(node, opset, numbers):
            name = f"{node.output[0]}//{position}"
            nodes.append(helper.make_node("CastLike", [node.input[position], like], [name]))
            fitted.input[position] = name
        nodes.append(fitted)
    del body.node[:]
    body.node.extend(nodes)
    return body


def _is_float32(node: NodeProto) -> bool:
    """Whether a node is a float32 constant."""
    return node.op_type == "Constant" and any(
        attribute.type == AttributeProto.FLOAT
        or (attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT)
        for attribute in node.attribute
    )


def _partners(node: NodeProto, opset: int, numbers: set[str]) -> list[tuple[int, str]]:
    """The float32 constants among a node's operands that must have the type of another operand.

    `numbers` has the names of all float32 constants of the body. Each pair is the position of such
    an operand and the name of the other operand.
    """
    if node.domain or numbers.isdisjoint(node.input):
        return []
    formal = get_schema(node.op_type, opset, "").inputs
    kinds = [formal[min(i, len(formal) - 1)].type_str for i in range(len(node.input))]
    found = []
    for position, name in enumerate(node.input):
        others = (
            other
            for other, kind in zip(node.input, kinds, strict=True)
            if other and other not in numbers and kind == kinds[position]
        )
        like = next(others, None) if name in numbers else None
        if like is not None:
            found.append((position, like))
    return found


def _body(
    schema: OpSchema, node: NodeProto, opset: int, types: Sequence[TensorType | None]
) -> FunctionProto | None:
    """The function body of a schema for one node; None if the schema has none.

    If the schema has bodies for several opsets, the newest one up to `opset` is returned. Some
    bodies are generated for the node and the types of its operands.
    """
    function = FunctionProto()
    if schema.has_context_dependent_function:
        version = _newest(schema.context_dependent_function_opset_versions, opset)
        kinds = [_type_proto(kind).SerializeToString() for kind in types]
        function.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), kinds
            )
        )
    elif schema.has_function:
        version = _newest(schema.function_opset_versions, opset)
        function.ParseFromString(schema.get_function_with_opset_version(version))
    return function if function.node else None


def _newest(versions: Sequence[int], opset: int) -> int:
    return max((version for version in versions if version <= opset), default=min(versions))


def _type_proto(kind: TensorType | None) -> TypeProto:
    proto = TypeProto()
    if kind is not None:
        proto.tensor_type.elem_type = _NUMBERS[kind.dtype]
        for extent in kind.shape:
            dim = proto.tensor_type.shape.dim.add()
            if not is_dynamic(extent):
                dim.dim_value = extent
    return proto
