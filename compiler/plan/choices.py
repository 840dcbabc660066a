"""Exceptions from the default rules by which a graph is planned.

By default, rules decide on fusion, passes, in-place concatenation and layouts. A `GraphChoice`
lists the decisions that differ from the rules, for example a value that must not be fused. The
empty choice follows all rules.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupLayouts:
    """The layouts that a group of nodes writes and reads, as text.

    Attributes:
        output: the layout of the group's output.
        inputs: pairs of an input's name and the layout that the group reads, sorted by name. The
            layout is `any` if the group takes every layout.
    """

    output: str
    inputs: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        read = ", ".join(f"'{value}' as {layout}" for value, layout in self.inputs)
        return f"written as {self.output}" + (f" and read {read}" if read else "")


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """Graph-level decisions that override the default rules.

    Attributes:
        without: passes of the pipeline that do not run.
        including: passes that run although the default rules disable them for the target.
        kept: values that are stored in memory, so that their producer is not fused with their
            readers. For example, if the result of a convolution is kept, the operators after the
            convolution become a separate kernel. If they also read the result of another
            convolution or product, they may be fused with that one instead.
        copied: outputs of concatenations and slices that are copies, not views.
        layouts: by the name of a group's output, the layouts that the group writes and reads.
    """

    without: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()
    layouts: tuple[tuple[str, GroupLayouts], ...] = ()
    including: frozenset[str] = frozenset()


RULE = GraphChoice()
"""The choice that leaves every decision to the planner's rules."""
