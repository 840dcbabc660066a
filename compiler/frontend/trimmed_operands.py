"""Import of nodes with operands that have an extent that is known only at run time.

Before:                                   After:
    %1 = trim(%0, %n) {axis=1}                %2 = transpose(%0) {perm=(1, 0)}
    %2 = transpose(%1) {perm=(1, 0)}          %3 = trim(%2, %n) {axis=0}

Such an operand is the result of a `trim`: it cuts a value of the largest possible extent to the
actual extent. If each element of a node's result depends only on its own position along that
dimension, the node is imported for the untrimmed value, and its result is trimmed. Trims thus move
to the outputs of the model. Other nodes are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod

from tilewright.compiler import ops
from tilewright.compiler.frontend.old_opsets import FIRST_NUMPY_BROADCASTING
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule, OpKind

_DIVIDES = frozenset(["Div", "Mod"])
"""Operators that cannot be applied to an untrimmed integer operand. Its memory after the last valid
element may be zero, and integers must not be divided by zero."""


def import_untrimmed(node: OnnxNode, rule: OnnxRule) -> Sequence[str]:
    """Import a node with trimmed operands: apply it to the untrimmed values, and trim the results.

    A trimmed operand is the result of a `trim` node. This node cuts a value of the largest possible
    extent to the actual extent, which is known only at run time. `rule` is the import rule of the
    node. Returns the names of the trimmed results.

    Raises:
        UnsupportedOperatorError: if trimming the results is not equivalent, for example because the
            node combines several positions along the trimmed dimension.
    """
    trims = [None if v is None else node.builder.trim(v) for v in node.inputs]
    found = [(i, trim) for i, trim in enumerate(trims) if trim is not None]
    (first, trim), counts = found[0], {trim.count for _, trim in found}
    if len(counts) > 1 or node.opset < FIRST_NUMPY_BROADCASTING:
        raise node.data_dependent(node.input(first))
    sources = tuple(v if t is None else t.source for v, t in zip(node.inputs, trims, strict=True))
    large = replace(node, inputs=sources)
    follow = _FOLLOW.get(node.op_type) if not node.domain else None
    axis: int | None = None
    axes = {i: t.axis for i, t in found}
    if (node.domain, node.op_type) in _elementwise():
        axis = _broadcast(large, axes)
    elif node.op_type == "Concat" and not node.domain:
        axis = _concat(large, axes)
    elif follow is not None and len(found) == 1:
        axis = follow(large, first, trim.axis)
    if axis is None:
        raise node.data_dependent(node.input(first))
    emitted = rule.emit(large)
    results = [emitted] if isinstance(emitted, str) else emitted
    return [node.emit("trim", [value, trim.count], axis=axis) for value in results]


@cache
def _elementwise() -> frozenset[tuple[str, str]]:
    """The domain and name of every ONNX operator that is imported as an elementwise operator."""
    return frozenset(
        (rule.domain, rule.op_type)
        for operator in ops.operators().values()
        if operator.kind is OpKind.ELEMENTWISE
        for rule in operator.onnx
    )


def _broadcast(node: OnnxNode, axes: Mapping[int, int]) -> int | None:
    """Return the dimension along which a `trim` must cut the result of a broadcasting node.

    The node is imported with the largest possible extent along this dimension, and the `trim` cuts
    its result to the actual extent. Returns None if the node cannot be imported in this way.

    `axes` maps the positions of trimmed operands to their trimmed dimensions. These must be the
    same dimension, counted from the last. Other operands must have extent 1 along it.
    """
    shapes = [None if v is None else node.shape(v) for v in node.inputs]
    rank = max(len(shape) for shape in shapes if shape is not None)
    behind = {len(shapes[i] or ()) - axis for i, axis in axes.items()}
    if len(behind) != 1 or (
        node.op_type in _DIVIDES and not node.type(node.input(0)).dtype.is_float
    ):
        return None
    (distance,) = behind
    for position, shape in enumerate(shapes):
        known = position not in axes and shape is not None and len(shape) >= distance
        if known and shape is not None and shape[-distance] != 1:
            return None
    return rank - distance


def _concat(node: OnnxNode, axes: Mapping[int, int]) -> int | None:
    """Return the dimension along which a `trim` must cut the result of a Concat.

    A `trim` node cuts a tensor of the largest possible extent to its actual extent. `axes` maps the
    positions of trimmed operands to their trimmed dimensions. Returns None unless all operands are
    trimmed along the same dimension, and the Concat joins them along another one.
    """
    along = node.integer("axis") % len(node.shape(node.input(0)))
    found = set(axes.values())
    whole = len(axes) == len(node.inputs) and len(found) == 1 and along not in found
    return found.pop() if whole else None


def _same(_node: OnnxNode, _position: int, axis: int) -> int | None:
    return axis


def _transpose(node: OnnxNode, _position: int, axis: int) -> int | None:
    rank = len(node.shape(node.input(0)))
    perm = node.ints("perm", tuple(reversed(range(rank)))) or ()
    return perm.index(axis) if axis in perm else None


def _gather(node: OnnxNode, position: int, axis: int) -> int | None:
    """Return the dimension along which a `trim` must cut the result of a Gather.

    A `trim` node cuts a tensor of the largest possible extent to its actual extent. The operand at
    `position` (0 for the data, 1 for the indices) is trimmed along `axis`. Returns None if the data
    are trimmed along the gathered dimension.
    """
    along = node.integer("axis", 0) % max(len(node.shape(node.input(0))), 1)
    if position == 1:
        return along + axis
    if axis == along:
        return None
    return axis if axis < along else axis - 1 + len(node.shape(node.input(1)))


def _squeeze(node: OnnxNode, _position: int, axis: int) -> int | None:
    rank = len(node.shape(node.input(0)))
    dropped = {dim % rank for dim in node.ints_or_input("axes", 1) or ()}
    if not dropped or axis in dropped:
        return None
    return axis - sum(dim < axis for dim in dropped)


def _unsqueeze(node: OnnxNode, _position: int, axis: int) -> int | None:
    axes = node.ints_or_input("axes", 1) or ()
    rank = len(node.shape(node.input(0))) + len(axes)
    kept = [dim for dim in range(rank) if dim not in {a % rank for a in axes}]
    return kept[axis]


def _reshape(node: OnnxNode, _position: int, axis: int) -> int | None:
    """Return the dimension along which a `trim` must cut the result of a Reshape.

    A `trim` node cuts a tensor of the largest possible extent to its actual extent. The operand is
    trimmed along `axis`. Returns None unless the new shape keeps this dimension: copied from the
    operand (0) or inferred (-1).
    """
    source, wanted = node.shape(node.input(0)), node.ints_or_input("shape", 1) or ()
    if node.integer("allowzero", 0) or axis >= len(source):
        return None
    shape = [source[dim] if size == 0 else size for dim, size in enumerate(wanted)]
    if -1 in shape:
        rest = prod(size for size in shape if size != -1)
        shape[shape.index(-1)] = prod(source) // max(rest, 1)
    for dim, size in enumerate(wanted):
        here = prod(shape[:dim]) == prod(source[:axis]) and shape[dim] == source[axis]
        if here and (size == -1 or (size == 0 and dim == axis)):
            return dim
    return None


def _slice(node: OnnxNode, _position: int, axis: int) -> int | None:
    rank = len(node.shape(node.input(0)))
    starts = node.ints_or_input("starts", 1) or ()
    axes = node.ints_or_input("axes", 3) or tuple(range(len(starts)))
    return None if axis in {dim % rank for dim in axes} else axis


def _split(node: OnnxNode, _position: int, axis: int) -> int | None:
    cut = node.integer("axis", 0) % len(node.shape(node.input(0)))
    return None if cut == axis else axis


_FOLLOW: Mapping[str, Callable[[OnnxNode, int, int], int | None]] = {
    "Identity": _same,
    "Transpose": _transpose,
    "Gather": _gather,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
}
"""Maps an operator to a function that returns the trimmed dimension of the results for a trimmed
operand. The function's arguments are the node, the operand's position and its trimmed dimension. It
returns None if the node does not support this operand."""
