"""ONNX sequences of tensors, as lists of graph values at import.

No value of the graph is a sequence. The import evaluates operators that create, change and read
sequences. The length of each sequence must be known at import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.shapes import show


def sequence_operand(node: OnnxNode, position: int) -> tuple[str, ...]:
    """Return the elements of a sequence operand, as values of the graph.

    Raises:
        InvalidModelError: if the operand at `position` is not a sequence.
    """
    found = node.builder.sequences.get(node.input(position))
    if found is None:
        raise node.invalid(f"input {position} is not a sequence")
    return found


def _tensor(node: OnnxNode, position: int) -> str:
    value = node.input(position)
    if value in node.builder.sequences:
        raise node.invalid(f"input {position} is a sequence")
    node.refuse_trimmed([value])
    return value


def _place(node: OnnxNode, position: int, count: int, default: int) -> int:
    """The index into a sequence that operand `position` of a node states, as 0 to `count` - 1.

    A negative index counts from the end. `default` is returned if the node omits the operand.

    Raises:
        InvalidModelError: if the index is out of range for `count` elements.
    """
    given = node.static_ints(position, "position")
    if given is None:
        return default
    if len(given) != 1 or not -count <= given[0] < max(count, 1):
        raise node.invalid(
            f"position {list(given)} is out of range for a sequence of {count} elements"
        )
    return given[0] + count if given[0] < 0 else given[0]


def _construct(node: OnnxNode) -> str:
    return node.builder.sequence([_tensor(node, i) for i in range(len(node.inputs))])


def _empty(node: OnnxNode) -> str:
    return node.builder.sequence([])


def _insert(node: OnnxNode) -> str:
    values, new = sequence_operand(node, 0), _tensor(node, 1)
    place = len(values)
    if node.optional(2) is not None and node.static_ints(2, "position") != (len(values),):
        place = _place(node, 2, len(values), len(values))
    return node.builder.sequence([*values[:place], new, *values[place:]])


def _erase(node: OnnxNode) -> str:
    values = sequence_operand(node, 0)
    if not values:
        raise node.invalid("the sequence is empty")
    place = _place(node, 1, len(values), len(values) - 1)
    return node.builder.sequence([*values[:place], *values[place + 1 :]])


def _at(node: OnnxNode) -> str:
    """Import SequenceAt: returns the element of a sequence at a position.

    If the position is known only at run time, all elements must have the same type and shape.
    """
    values = sequence_operand(node, 0)
    position = node.input(1)
    if node.builder.known(position) is not None:
        if not values:
            raise node.invalid("the sequence is empty")
        return values[_place(node, 1, len(values), 0)]
    types = {node.type(value) for value in values}
    if len(types) != 1:
        raise node.unsupported("a position known only at run time, among values of several types")
    rows = [node.reshape(value, (1, *node.shape(value))) for value in values]
    whole = node.emit("concat", rows, axis=0) if len(rows) > 1 else rows[0]
    return node.call("Gather", whole, node.reshape(position, ()), axis=0)


def _length(node: OnnxNode) -> str:
    return node.constant(np.array(len(sequence_operand(node, 0)), np.int64), DType.INT64)


def _split(node: OnnxNode) -> str:
    """Import SplitToSequence: returns a sequence of parts of a tensor along one axis.

    The operand `split` states the extent of each part, or one extent for all. Without it, each part
    has extent 1.
    """
    x = _tensor(node, 0)
    shape = node.shape(x)
    axis = node.integer("axis", 0)
    if not -len(shape) <= axis < len(shape):
        raise node.invalid(f"axis {axis} is out of range for {show(shape)}")
    dim = axis % len(shape)
    given = node.static(1, "split")
    if given is None:
        sizes = [1] * shape[dim]
    elif given.ndim == 0:
        size = int(given)
        if size < 1:
            raise node.invalid(f"attribute or input 'split' is {size}, expected at least 1")
        sizes = [min(size, shape[dim] - start) for start in range(0, shape[dim], size)]
    else:
        sizes = [int(size) for size in given.reshape(-1)]
    if sum(sizes) != shape[dim] or min(sizes, default=0) < 0:
        raise node.invalid(
            f"split is {sizes}, expected sizes that add up to dimension {dim} of {show(shape)}"
        )
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    parts = [part(node, x, dim, *each) for each in zip(starts, sizes, strict=True)]
    if given is None and not node.integer("keepdims", 1):
        parts = [node.reshape(each, (*shape[:dim], *shape[dim + 1 :])) for each in parts]
    return node.builder.sequence(parts)


def _concat(node: OnnxNode) -> str:
    values = sequence_operand(node, 0)
    if not values:
        raise node.invalid("the sequence is empty")
    axis = node.integer("axis")
    if node.integer("new_axis", 0):
        rank = len(node.shape(values[0])) + 1
        if not -rank <= axis < rank:
            raise node.invalid(f"axis {axis} is out of range for rank {rank}")
        axes = node.constant(np.array([axis], np.int64))
        values = tuple(node.call("Unsqueeze", value, axes) for value in values)
    return node.call("Concat", *values, axis=axis)


def _identity(node: OnnxNode) -> str:
    return node.input(0)


SEQUENCES: Mapping[str, Callable[[OnnxNode], str]] = {
    "ConcatFromSequence": _concat,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
"""Import rules of the ONNX operators that create or read sequences, by operator name."""


def on_sequences(node: OnnxNode) -> Callable[[OnnxNode], str] | None:
    """Return the function that imports a node with sequences; None if all operands are tensors.

    Raises:
        UnsupportedOperatorError: if an unsupported operator takes a sequence.
    """
    rule = None if node.domain else SEQUENCES.get(node.op_type)
    if rule is not None or node.builder.sequences.keys().isdisjoint(v for v in node.inputs if v):
        return rule
    if (node.domain, node.op_type) == ("", "Identity"):
        return _identity
    raise node.unsupported("an operand that is a sequence")
