"""Recognise GELU in its two decomposed forms.

Before:                                             After:
    %1 = mul(%0, 0.70710678)   (or div by sqrt 2)       %5 = gelu(%0) {approximate="none"}
    %2 = erf(%1)
    %3 = add(%2, 1)
    %4 = mul(%0, %3)
    %5 = mul(%4, 0.5)

and `0.5 x (1 + tanh(0.79788456 (x + 0.044715 x^3)))` with approximate="tanh". The factors may be
multiplied in any order. Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
"""

from __future__ import annotations

from math import pi, sqrt

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.passes.match import Any_, Apply, Number, Pattern, match
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

_X = Any_("x")
_CUBES: tuple[Pattern, ...] = (
    Apply("pow", (_X, Number(3.0))),
    Apply("mul", (_X, Apply("mul", (_X, _X)))),
    Apply("mul", (_X, Apply("pow", (_X, Number(2.0))))),
)
_GATES: tuple[tuple[str, Pattern], ...] = (
    ("none", Apply("add", (Apply("erf", (Apply("div", (_X, Number(sqrt(2)))),)), Number(1.0)))),
    ("none", Apply("add", (Apply("erf", (Apply("mul", (_X, Number(sqrt(0.5)))),)), Number(1.0)))),
    *(
        (
            "tanh",
            Apply(
                "add",
                (
                    Apply(
                        "tanh",
                        (
                            Apply(
                                "mul",
                                (
                                    Apply("add", (_X, Apply("mul", (cube, Number(0.044715))))),
                                    Number(sqrt(2 / pi)),
                                ),
                            ),
                        ),
                    ),
                    Number(1.0),
                ),
            ),
        )
        for cube in _CUBES
    ),
)


def gelu(graph: Graph) -> Graph:
    """Replace decomposed GELUs by the operator `gelu`."""
    return rewrite(graph, _recognise)


def _recognise(rewriter: Rewriter, node: Node) -> str | None:
    if node.op != "mul":
        return None
    factors = _factors(rewriter, node)
    if len(factors) != 3:
        return None
    halves = [v for v in factors if (s := rewriter.scalar(v)) is not None and abs(s - 0.5) < 1e-6]
    if len(halves) != 1:
        return None
    rest = [v for v in factors if v != halves[0]]
    for x, gate in (rest, rest[::-1]):
        for approximate, pattern in _GATES:
            found = match(rewriter, gate, pattern)
            if found is not None and found["x"] == x:
                return rewriter.emit("gelu", [x], {"approximate": approximate})
    return None


def _factors(rewriter: Rewriter, node: Node) -> list[str]:
    """The three factors of `(a * b) * c`, if at least one of them is a constant number.

    For any other node, its two operands.
    """
    left, right = node.inputs
    for value, other in ((left, right), (right, left)):
        inner = rewriter.producer(value, "mul")
        if inner is not None and rewriter.used_once(value):
            factors = [*inner.inputs, other]
            if any(rewriter.scalar(v) is not None for v in factors):
                return factors
    return [left, right]
