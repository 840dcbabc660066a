"""Decisions about a whole graph that differ from the rules: a value that plans are made from.

The rules (fusion, passes, concatenation in place, layouts by estimate) give one plan. Each entry of
a `GraphChoice` reverses one of these decisions at one place; the empty choice follows the rules.
"""

from __future__ import annotations

from dataclasses import dataclass

LayoutNames = tuple[str, ...]
"""How a group of nodes writes its output and reads its inputs: layouts as text, `any` for none."""


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """Decisions that differ from the rule's.

    Attributes:
        without: passes of the pipeline that do not run.
        including: passes that run though the rule leaves them out for the target.
        kept: values that the plan stores: fusion ends there. If the result of an anchor is kept,
            its epilogue becomes a kernel of its own, or joins the producer of another operand (a
            residual addition).
        copied: outputs of concatenations and slices that do not lie in place.
        layouts: by the output of a group of nodes, how it reads and writes.
    """

    without: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()
    layouts: tuple[tuple[str, LayoutNames], ...] = ()
    including: frozenset[str] = frozenset()


RULE = GraphChoice()
"""Every decision follows the rules."""
