"""Selection of results that must stay float32 when `mixed_precision` stores values in 16 bits.

Graph:                                      Type in memory, if the value is stored:
    %1 = matmul(%0, w)                          %1 may have 16 bits
    %2 = mul(%1, %1)                            %2 is float32: a square
    %3 = reduce_sum(%2)                         %3 is float32: a sum
    %4 = div(%1, sqrt(%3))                      %4 may have 16 bits

These results stay float32:

- squares and other powers, except powers with a constant exponent of at most 1;
- sums and means over axes, with the operators that are fused with them;
- results that may be as large as a square or a sum from which they are computed;
- products of two computed values that only sums, means and average pools read.

A norm consists of several operators, and kernels may end between them. Its squares and sums may
exceed float16, whose largest number is 65504, even if the norm itself is of ordinary size.
Moreover, the deviations from a rounded mean no longer add up to zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan.fusion import Group

_SUMS = ("reduce_sum", "reduce_mean", "average_pool")

_TAME = (
    *("sqrt", "log", "sigmoid", "tanh", "erf", "clip", "hard_sigmoid", "reciprocal", "softplus"),
    *("sin", "cos", "atan", "sign", "is_inf", "is_nan", "cast"),
)
"""Elementwise operators whose result is small enough for float16 even if an operand is a large sum
or square."""

_BOUNDED = ("sigmoid", "hard_sigmoid", "tanh", "erf", "clip", "softmax", "sin", "cos")
"""Operators whose result is bounded by a constant for all operands."""

_SPREADS = (
    *(OpKind.ELEMENTWISE, OpKind.MOVEMENT, OpKind.VIEW, OpKind.PIECES, OpKind.GATHER),
    *(OpKind.REDUCTION, OpKind.WINDOW),
)
"""Kinds of operators whose result may have the magnitude of their operand."""


def float32_sums(graph: Graph, groups: Sequence[Group]) -> set[str]:
    """Return the outputs of `groups` that must be stored as float32.

    Each group has the nodes of one kernel. Its output must be float32 in these cases:

    - The output is a square or a sum, or may be as large because it is computed from one. Roots,
      quotients of two large values, and functions such as `log` and `tanh` have results of ordinary
      size.
    - The group has a sum or a mean as its main operator.
    - The output is a product of two values, neither of which is a constant or bounded (such as a
      sigmoid), and all groups that read the product compute sums, means or average pools.
    """
    large = _large(graph)
    summed = {group.output for group in groups if _sums(group)}
    readers: dict[str, list[Group]] = {}
    for group in groups:
        for value in group.inputs:
            readers.setdefault(value, []).append(group)
    return {
        group.output
        for group in groups
        if group.output in large
        or (group.anchor is not None and group.anchor.op in ("reduce_sum", "reduce_mean"))
        or (
            _is_product(graph, group.nodes[-1])
            and all(reader.output in summed for reader in readers.get(group.output, []))
        )
    }


def _is_product(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies two values, neither of which is a constant or bounded."""
    return node.op == "mul" and not any(_is_bounded(graph, value) for value in node.inputs)


def _is_bounded(graph: Graph, value: str) -> bool:
    """Whether a value is a constant, or a bounded activation such as a sigmoid.

    The activation may be multiplied or divided by constants.
    """
    node = graph.producer(value)
    while node is not None and node.op in ("mul", "div"):
        varying = [operand for operand in node.inputs if operand not in graph.constants]
        if len(varying) != 1:
            return False
        node = graph.producer(varying[0])
    return value in graph.constants or (node is not None and node.op in _BOUNDED)


def _sums(group: Group) -> bool:
    return group.anchor is not None and group.anchor.op in _SUMS


def _large(graph: Graph) -> set[str]:
    """Values that may exceed float16 because they are squares or sums, or computed from these.

    Roots, and quotients of two such values, are not included.
    """
    large: set[str] = set()
    for node in graph.nodes:
        operands = [value in large for value in node.inputs]
        if node.op in ("div", "pow"):  # the quotient of two is of ordinary size
            spreads = operands[0] and not operands[-1] and not _is_root(graph, node)
        else:
            kind = ops.get(node.op).kind
            spreads = any(operands) and kind in _SPREADS and node.op not in _TAME
        if spreads or _is_square(graph, node) or node.op == "reduce_sum":
            large.add(node.output)
    return large


def _is_square(graph: Graph, node: Node) -> bool:
    if node.op == "mul":
        return node.inputs[0] == node.inputs[1]
    return node.op == "pow" and not _is_root(graph, node)


def _is_root(graph: Graph, node: Node) -> bool:
    """Whether a node is a power with a constant exponent of at most 1."""
    exponent = graph.constants.get(node.inputs[1]) if node.op == "pow" else None
    return exponent is not None and bool((exponent <= 1).all())
