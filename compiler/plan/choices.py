"""Decisions about a whole graph that differ from the rules: a value that plans are made from.

The rules (fusion, passes, concatenation in place, layouts by estimate) give one plan. Each entry of
a `GraphChoice` reverses one of these decisions at one place; the empty choice follows the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.compiler.errors import InvalidArgumentError

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

    def __or__(self, other: GraphChoice) -> GraphChoice:
        """The decisions of both; where both give a group a layout, that of `other` counts."""
        return GraphChoice(
            self.without | other.without,
            self.kept | other.kept,
            self.copied | other.copied,
            tuple(sorted({**dict(self.layouts), **dict(other.layouts)}.items())),
            self.including | other.including,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json`; equal choices give equal data."""
        return {
            "without": sorted(self.without),
            "kept": sorted(self.kept),
            "copied": sorted(self.copied),
            "layouts": {value: list(names) for value, names in sorted(self.layouts)},
            # Left out where it is empty: choices of earlier releases have none.
            **({"including": sorted(self.including)} if self.including else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> GraphChoice:
        """Read what `to_json` gives.

        Raises:
            InvalidArgumentError: if the data is incomplete.
        """
        try:
            return GraphChoice(
                frozenset(map(str, data["without"])),
                frozenset(map(str, data["kept"])),
                frozenset(map(str, data["copied"])),
                tuple(sorted((v, tuple(map(str, names))) for v, names in data["layouts"].items())),
                frozenset(map(str, data.get("including", ()))),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidArgumentError(f"graph choice: malformed: {error}") from error


RULE = GraphChoice()
"""Every decision follows the rules."""
