"""Typed reading of attributes, and shapes that several families share."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.errors import InvalidModelError
from compiler.graph.ir import Attrs, attr
from compiler.graph.types import TensorType
from compiler.loops.index import Affine
from compiler.ops.registry import Index


def ints(attrs: Attrs, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """A tuple of integers; raises InvalidModelError if it is missing and has no default."""
    value = attr(attrs, name)
    if isinstance(value, tuple):
        return tuple(int(item) for item in value)
    if default is None or value is not None:
        raise InvalidModelError(f"attribute '{name}' is not a tuple of integers")
    return default


def number(attrs: Attrs, name: str, default: float | None = None) -> float:
    """A number; raises InvalidModelError if it is missing and has no default."""
    value = attr(attrs, name, default)
    if not isinstance(value, int | float):
        raise InvalidModelError(f"attribute '{name}' is not a number")
    return value


def integer(attrs: Attrs, name: str, default: int | None = None) -> int:
    """An integer; raises InvalidModelError if it is missing and has no default."""
    return int(number(attrs, name, default))


def word(attrs: Attrs, name: str, default: str) -> str:
    """A text."""
    return str(attr(attrs, name, default))


def normalise_axis(axis: int, rank: int, what: str) -> int:
    """An axis counted from the front; raises InvalidModelError if there is no such axis."""
    if not -rank <= axis < rank:
        raise InvalidModelError(f"{what}: axis {axis} of a tensor of rank {rank}")
    return axis % rank


def broadcast_shapes(shapes: Sequence[tuple[int, ...]], what: str) -> tuple[int, ...]:
    """The common shape by NumPy's rules; raises InvalidModelError if there is none."""
    rank = max(map(len, shapes))
    result = []
    for position in range(-rank, 0):
        sizes = {s[position] for s in shapes if len(s) >= -position}
        wide = sizes - {1}
        if len(wide) > 1:
            texts = " and ".join(str(list(s)) for s in shapes)
            raise InvalidModelError(f"{what}: shapes {texts} do not broadcast")
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def broadcast_index(index: Index, shape: tuple[int, ...]) -> Index:
    """Where an operand of this shape is read for an output index."""
    own = index[len(index) - len(shape) :]
    return tuple(Affine() if size == 1 else i for i, size in zip(own, shape, strict=True))


def require(condition: bool, message: str) -> None:
    """Raise InvalidModelError with the message unless the condition holds."""
    if not condition:
        raise InvalidModelError(message)


def ranks(types: Sequence[TensorType]) -> list[int]:
    return [len(t.shape) for t in types]
