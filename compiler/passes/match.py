"""Matching of patterns of operators; commutative operands match in either order.

A name that occurs several times in a pattern must match the same value each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Node
from tilewright.compiler.passes.rewrite import Rewriter

Bindings = dict[str, str]
"""Variables of a pattern -> the values of the graph that they match."""


@dataclass(frozen=True, slots=True)
class Any_:
    """A pattern that matches every value, which is bound to `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A pattern that matches a floating-point constant of one element.

    Attributes:
        value: the number to match; None matches any number.
        name: the name to which the constant is bound; empty for none.
        tolerance: the maximum relative difference from `value`.
    """

    value: float | None = None
    name: str = ""
    tolerance: float = 1e-3


@dataclass(frozen=True, slots=True)
class Apply:
    """A pattern that matches the result of the operator `op` on operands that match `args`.

    The result is bound to `name`, unless it is empty.
    """

    op: str
    args: tuple[Pattern, ...]
    name: str = ""


Pattern = Any_ | Number | Apply


def match(rewriter: Rewriter, value: str, pattern: Pattern) -> Bindings | None:
    """Match a pattern with a value.

    Returns the values that the names of the pattern are bound to; None if the pattern does not
    match.
    """
    return next(_match(rewriter, value, pattern, {}), None)


def match_node(rewriter: Rewriter, node: Node, pattern: Apply) -> Bindings | None:
    """Match a pattern with a node.

    Returns the values that the names of the pattern are bound to; None if the pattern does not
    match. The node may still be under construction, without a value in the graph.
    """
    if node.op != pattern.op or len(node.inputs) != len(pattern.args):
        return None
    swapped = (node.inputs[::-1],) if ops.get(node.op).commutative else ()
    for inputs in (node.inputs, *swapped):
        found = next(_match_all(rewriter, inputs, pattern.args, {}), None)
        if found is not None:
            return found
    return None


def _match(rewriter: Rewriter, value: str, pattern: Pattern, found: Bindings) -> Iterator[Bindings]:
    if pattern.name:
        if found.get(pattern.name, value) != value:
            return
        found = found | {pattern.name: value}
    match pattern:
        case Any_():
            yield found
        case Number():
            number = rewriter.scalar(value)
            if number is None:
                return
            expected = pattern.value
            if expected is None or abs(number - expected) <= pattern.tolerance * abs(expected):
                yield found
        case Apply():
            node = rewriter.producer(value, pattern.op)
            if node is None or len(node.inputs) != len(pattern.args):
                return
            yield from _match_all(rewriter, node.inputs, pattern.args, found)
            if ops.get(pattern.op).commutative:
                yield from _match_all(rewriter, node.inputs[::-1], pattern.args, found)


def _match_all(
    rewriter: Rewriter, values: tuple[str, ...], patterns: tuple[Pattern, ...], found: Bindings
) -> Iterator[Bindings]:
    if not values:
        yield found
        return
    for first in _match(rewriter, values[0], patterns[0], found):
        yield from _match_all(rewriter, values[1:], patterns[1:], first)
