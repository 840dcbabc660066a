"""Run-time checks of conditions on dynamic sizes; a run that violates one ends with an error.

    %1 = less_or_equal(iota() {start=<past+tokens>}, 1024)
    %2 = branch(%1) {then: 0, otherwise: refuse {message="past+tokens is more than 1024 ..."}}
    %3 = add(positions, field(%2))

`%3` equals `positions`. Nodes that read `%3` run after the check.
"""

from __future__ import annotations

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.computed import number, table
from tilewright.compiler.ops.enclosed import Enclosure
from tilewright.compiler.ops.loops import branch_of
from tilewright.compiler.ops.onnx_node import OnnxNode


def at_most(node: OnnxNode, positions: str, size: int, limit: int, what: str) -> str:
    """Emit a check that `size` is at most `limit`, and return a value equal to `positions`.

    Nodes that read the returned value run after the check. A run with a larger `size` ends with an
    error such as "Gather 'words': past+tokens is more than 1024 elements of a table". In this
    example, `what` is "elements of a table". Equal checks are emitted once, before all other nodes,
    so that a failed run has not changed any state.
    """
    zero = node.builder.limits.get((size, limit))
    if zero is None:
        with node.builder.ahead():
            message = f"{node.label}: {size} is more than {limit} {what}"
            zero = node.builder.limits[size, limit] = _zero(node, size, limit, message)
    return node.emit("add", [positions, cast_to(node, zero, node.type(positions).dtype)])


def _zero(node: OnnxNode, size: int, limit: int, message: str) -> str:
    holds = table(node, np.less_equal(number(node, size), limit), DType.BOOL)
    kept, refused = Enclosure(node), Enclosure(node)
    kind = DType.INT64
    none = refused.node.emit(
        "refuse", [refused.capture(holds)], message=message, dtype=kind.value, shape=()
    )
    bodies = [
        (kept, kept.graph([kept.node.scalar(0, kind)])),
        (refused, refused.graph([none])),
    ]
    (zero,) = branch_of(node, holds, bodies)
    return zero
