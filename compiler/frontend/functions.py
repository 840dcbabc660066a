"""Inlining of model-local functions."""

from __future__ import annotations

import onnx.checker
import onnx.inliner
from onnx import ModelProto, NodeProto

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.frontend.order import DEPTH_LIMIT

_CALL_LIMIT = 100
NODE_LIMIT = 200_000
"""Maximum number of nodes after a model's functions are inlined. A few nested functions can expand
to any number of nodes."""

_Key = tuple[str, str]


def inline_functions(model: ModelProto) -> ModelProto:
    """Inline all calls of model-local functions; a model without functions is returned unchanged.

    Raises:
        InvalidModelError: if functions call each other in a cycle, or expand to too many nodes.
    """
    if not model.functions:
        return model
    _check_expansion(model)
    try:
        inlined: ModelProto = onnx.inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise InvalidModelError(f"the model's functions cannot be inlined: {reason}") from error
    return inlined


def _check_expansion(model: ModelProto) -> None:
    bodies = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[_Key, int] = {}
    active: set[_Key] = set()

    def size(node: NodeProto, depth: int = 0) -> int:
        """Return the number of nodes to which a node expands when all functions are inlined.

        The nodes of subgraphs count too. `depth` is the number of subgraphs around the node.

        Raises:
            InvalidModelError: if subgraphs are nested too deeply.
        """
        if depth > DEPTH_LIMIT:
            raise InvalidModelError(
                f"{node.op_type} '{node.name}': subgraphs are nested in more than {DEPTH_LIMIT} "
                "levels"
            )
        return called(node) + sum(
            size(inner, depth + 1) for attribute in node.attribute for inner in attribute.g.node
        )

    def called(node: NodeProto) -> int:
        key = node.domain, node.op_type
        if key not in bodies:
            return 1
        if key in active:
            raise InvalidModelError(f"function '{node.op_type}' calls itself")
        if len(active) > _CALL_LIMIT:
            raise InvalidModelError(
                f"function '{node.op_type}': calls are nested in more than {_CALL_LIMIT} levels"
            )
        if key not in sizes:
            active.add(key)
            sizes[key] = sum(size(inner) for inner in bodies[key])
            active.remove(key)
        return sizes[key]

    total = sum(size(node) for node in model.graph.node)
    if total > NODE_LIMIT:
        raise InvalidModelError(
            f"the model's functions expand to {total} nodes, the limit is {NODE_LIMIT}"
        )
