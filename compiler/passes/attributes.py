"""Typed reading of node attributes."""

from __future__ import annotations

from compiler.errors import InvalidModelError
from compiler.graph.ir import Node


def ints(node: Node, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """A tuple of integers; raises InvalidModelError if it is missing and has no default."""
    value = node.attr(key)
    if isinstance(value, tuple):
        return tuple(int(item) for item in value)
    if value is None and default is not None:
        return default
    raise InvalidModelError(f"{node.op} '{node.name}': attribute '{key}' is not a tuple")


def number(node: Node, key: str, default: float | None = None) -> float:
    """A number; raises InvalidModelError if it is missing and has no default."""
    value = node.attr(key)
    if isinstance(value, int | float):
        return value
    if value is None and default is not None:
        return default
    raise InvalidModelError(f"{node.op} '{node.name}': attribute '{key}' is not a number")


def optional(node: Node, key: str) -> float | None:
    """A number, or None where the attribute is absent."""
    return None if node.attr(key) is None else number(node, key)


def word(node: Node, key: str, default: str) -> str:
    """A string."""
    value = node.attr(key, default)
    if not isinstance(value, str):
        raise InvalidModelError(f"{node.op} '{node.name}': attribute '{key}' is not a string")
    return value
