"""Helpers of com.microsoft's attention operators: splitting and merging heads, masks, caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import sqrt

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.computed import filled
from tilewright.compiler.ops.moves import transposed, window
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import same_extents


def split_heads(node: OnnxNode, value: str, heads: int, what: str) -> str:
    """Split into heads: (batch, rows, heads * size) -> (batch, heads, rows, size).

    `what` names the value in errors.
    """
    shape = node.shape(value)
    if len(shape) != 3 or heads < 1 or shape[2] % heads:
        raise node.invalid(f"{what} is {show(shape)}, not three dimensions of {heads} heads")
    batch, rows, width = shape
    split = node.reshape(value, (batch, rows, heads, width // heads))
    return transposed(node, split, (0, 2, 1, 3))


def merge_heads(node: OnnxNode, value: str) -> str:
    """Merge the heads: (batch, heads, rows, size) -> (batch, rows, heads * size)."""
    batch, heads, rows, size = node.shape(value)
    return node.reshape(transposed(node, value, (0, 2, 1, 3)), (batch, rows, heads * size))


@dataclass(frozen=True, slots=True)
class MaskedAttention:
    """The operands of an attention: query, key and value, each (batch, heads, rows, size).

    `masks` are values that are added to the scores. If `causal`, query i does not attend to keys
    after `past + i`.
    """

    node: OnnxNode
    query: str
    key: str
    value: str
    masks: tuple[str, ...] = ()
    causal: bool = False
    past: int = 0

    @property
    def keys(self) -> int:
        return self.node.shape(self.key)[2]

    def masked(self, mask: str | None) -> MaskedAttention:
        return self if mask is None else replace(self, masks=(*self.masks, mask))

    def with_sink(self, sink: str) -> MaskedAttention:
        """Return the attention with an attention sink: an additional key before all others.

        The score of this key is `sink` (heads,), and its value is zero. It therefore only adds to
        the denominator of the softmax.
        """
        node, (batch, heads, _, size) = self.node, self.node.shape(self.key)
        dtype = node.type(self.key).dtype
        column = node.reshape(sink, (1, node.type(sink).elements, 1, 1))
        mask = window(node, column, {3: (0, self.keys + 1)})
        zeros = (
            filled(node, 0, (batch, heads, 1, width), dtype)
            for width in (size, node.shape(self.value)[3])
        )
        key, value = (
            node.emit("concat", [zero, rows], axis=2)
            for zero, rows in zip(zeros, (self.key, self.value), strict=True)
        )
        moved = (window(node, mask, {3: (-1, self.keys + 1)}) for mask in self.masks)
        return replace(self, key=key, value=value, masks=(*moved, mask), past=self.past + 1)

    def emit(self) -> str:
        """Emit the attention and merge its heads; returns (batch, queries, heads * value size)."""
        node = self.node
        operands = [self.query, self.key, self.value]
        if self.masks:
            operands.append(reduce(partial(node.call, "Add"), self.masks))
        scale = node.number("scale", 0.0) or 1 / sqrt(max(node.shape(self.query)[3], 1))
        mixed = node.emit(
            "attention",
            operands,
            scale=scale,
            softcap=node.number("softcap", 0.0) or None,
            causal=int(self.causal),
            past=self.past if self.causal else None,
        )
        return merge_heads(node, mixed)


def hidden(node: OnnxNode, seen: str, dtype: DType, score: float) -> str:
    """Emit an additive mask that is `score` where the boolean `seen` is false, and 0 elsewhere."""
    return node.emit("where", [seen, node.scalar(0.0, dtype), node.scalar(score, dtype)])


def refuse(node: OnnxNode, inputs: Mapping[int, str], attrs: tuple[str, ...] = ()) -> None:
    """Raise UnsupportedOperatorError if an unsupported operand or attribute is present.

    Args:
        node: the node to check.
        inputs: the positions of unsupported operands, and the operands' names in the error.
        attrs: unsupported attributes; the values 0 and "NONE" are allowed.
    """
    for position, what in inputs.items():
        if node.optional(position) is not None:
            raise node.unsupported(f"{what} (input {position}) is not implemented")
    for key in attrs:
        if node.attrs.get(key) not in (None, 0, "NONE"):
            raise node.unsupported(f"attribute '{key}' with the value {node.attrs[key]}")


def joined(node: OnnxNode, past: str | None, rows: str, what: str) -> str:
    """Append `rows` to the cache `past` along dimension 2; if `past` is None, return `rows`.

    `what` names the cache in errors.
    """
    if past is None:
        return rows
    shape, new = node.shape(past), node.shape(rows)
    if len(shape) != 4 or not same_extents((*shape[:2], shape[3]), (*new[:2], new[3])):
        raise node.invalid(
            f"{what} is {show(shape)}, expected the batch, heads and head size of the new rows "
            f"{show(new)}"
        )
    return rows if shape[2] == 0 else node.emit("concat", [past, rows], axis=2)


def both(node: OnnxNode, first: int, second: int, what: str) -> tuple[str | None, str | None]:
    """Return the operands at positions `first` and `second`; both are None if both are omitted.

    `what` names them in errors.

    Raises:
        InvalidModelError: if only one of them is present.
    """
    found = node.optional(first), node.optional(second)
    if (found[0] is None) != (found[1] is None):
        raise node.invalid(f"{what} (inputs {first} and {second}): one of them is missing")
    return found


def kept_outputs(node: OnnxNode, *made: str) -> list[str]:
    if any(node.outputs[len(made) :]):
        raise node.unsupported(
            f"the output '{node.outputs[len(made)]}' of scores is not implemented"
        )
    return list(made[: max(len(node.outputs), 1)])
