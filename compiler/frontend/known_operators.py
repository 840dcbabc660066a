"""Early check for unsupported operators in nodes whose import needs results of a run.

Such nodes are imported during a run, but they are checked when the model is compiled. The types of
their operands are not yet known, so the check finds only operators that are unsupported for all
types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import NodeProto
from onnx.defs import SchemaError, get_schema

from tilewright.compiler import ops
from tilewright.compiler.errors import NOT_IMPLEMENTED, UnsupportedOperatorError, suggestion
from tilewright.compiler.frontend.old_opsets import domain_of
from tilewright.compiler.frontend.sequences import SEQUENCES

_BODIES = ("If", "Loop", "Scan")


def check_known(nodes: Iterable[NodeProto], opsets: Mapping[str, int]) -> None:
    """Check that the operators of all nodes, and of the nodes in their bodies, are implemented.

    `opsets` has the opset version of each domain.

    Raises:
        UnsupportedOperatorError: if an operator has neither an import rule nor a function body. The
            message names the first such node.
    """
    for node in nodes:
        domain = domain_of(node.domain)
        opset = opsets.get(domain, 0)
        reason = _refusal(node, domain, opset)
        if reason is not None:
            name = node.name or next(iter(node.output), "")
            raise UnsupportedOperatorError(name, node.op_type, domain, opset, reason)
        for attribute in node.attribute:
            check_known(attribute.g.node, opsets)


def not_implemented(op_type: str, domain: str) -> str:
    """Return the reason in the error message for an operator that is not implemented.

    For an operator of the domain ai.onnx, the reason suggests implemented operators with similar
    names.
    """
    known = [] if domain else [name for own, name in ops.onnx_rules() if not own]
    return f"{NOT_IMPLEMENTED}{suggestion(op_type, known)}"


def _refusal(node: NodeProto, domain: str, opset: int) -> str | None:
    """The reason why a node's operator is not implemented; None if it is.

    An operator is implemented if it has an import rule, or if its ONNX schema has a function body.
    """
    if (domain, node.op_type) in ops.onnx_rules():
        return None
    if not domain and (node.op_type in _BODIES or node.op_type in SEQUENCES):
        return None
    try:
        schema = get_schema(node.op_type, opset, domain)
    except SchemaError:
        return not_implemented(node.op_type, domain)
    if domain or not (schema.has_function or schema.has_context_dependent_function):
        return NOT_IMPLEMENTED
    return None
