"""Decisions about a whole graph that differ from the rules: a value that plans are made from.

The rules (fusion, passes, concatenation in place, layouts by estimate) give one plan. Each entry of
a `GraphChoice` reverses one of these decisions at one place; the empty choice follows the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import JsonForm, Via

LayoutNames = tuple[str, ...]
"""How a group of nodes writes its output and reads its inputs: layouts as text, `any` for none."""


@dataclass(frozen=True, slots=True)
class GraphChoice(JsonValue):
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

    json_form: ClassVar[JsonForm] = JsonForm(
        "graph choice", InvalidArgumentError, sparse=("including",)
    )

    without: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()
    layouts: Annotated[
        tuple[tuple[str, LayoutNames], ...],
        Via(
            Mapping[str, LayoutNames],
            lambda found, _: tuple(sorted(found.items())),
            lambda layouts: dict(sorted(layouts)),
        ),
    ] = ()
    including: frozenset[str] = frozenset()

    def __or__(self, other: GraphChoice) -> GraphChoice:
        """The decisions of both; where both give a group a layout, that of `other` counts."""
        return GraphChoice(
            self.without | other.without,
            self.kept | other.kept,
            self.copied | other.copied,
            tuple(sorted({**dict(self.layouts), **dict(other.layouts)}.items())),
            self.including | other.including,
        )


RULE = GraphChoice()
"""Every decision follows the rules."""
