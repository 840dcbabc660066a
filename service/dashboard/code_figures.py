"""Comparison of two schedules of a task: knobs, counts in their code, and the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.service.api.schemas.jobs import CodeView
from tilewright.service.show.table import Table, table
from tilewright.service.show.tables.kernels import LOOPS

ALGORITHM = "algorithm"


@dataclass(frozen=True, slots=True)
class CodeSide:
    """One schedule with its code, or the reason why its code is missing (`refusal`)."""

    title: str
    code: CodeView | None
    refusal: str

    @property
    def loops(self) -> Table:
        """The innermost loops of the code."""
        return table(LOOPS, () if self.code is None else self.code.loops)


@dataclass(frozen=True, slots=True)
class CodeFigures:
    """The best and the untuned schedule, in this order, or one side if both are the same.

    `knobs` are rows (name, value per side, whether the values differ), differing rows first.
    `counts` has the same form, with formatted values.
    """

    sides: tuple[CodeSide, ...]
    knobs: tuple[tuple[str, tuple[str, ...], bool], ...]
    counts: tuple[tuple[str, tuple[str, ...], bool], ...]

    @classmethod
    def of(
        cls,
        best: CodeView | None,
        best_refusal: str,
        untuned: CodeView | None,
        untuned_refusal: str,
        *,
        chosen: bool = True,
    ) -> CodeFigures:
        """Return the figures of two schedules.

        `chosen` is whether the task's schedule is final. Otherwise `best` is its fastest trial.
        """
        sides: tuple[CodeSide, ...] = (
            CodeSide("Best" if chosen else "Fastest trial", best, best_refusal),
            CodeSide("Untuned", untuned, untuned_refusal),
        )
        if best is not None and untuned is not None and best.schedule == untuned.schedule:
            title = "Best, which is the untuned one" if chosen else "Untuned; no trial is faster"
            sides = (CodeSide(title, best, ""),)
        knobs = [_knobs(side.code) for side in sides]
        rows = [_row(name, knobs) for name in dict.fromkeys(n for each in knobs for n in each)]
        counts = [_counts(side.code) for side in sides]
        numbers = [_row(name, counts) for name in dict.fromkeys(n for c in counts for n in c)]
        return cls(sides, tuple(sorted(rows, key=lambda row: not row[2])), tuple(numbers))


def _row(name: str, sides: Sequence[Mapping[str, str]]) -> tuple[str, tuple[str, ...], bool]:
    values = tuple(side.get(name, "-") for side in sides)
    return name, values, len(set(values)) > 1


def _knobs(code: CodeView | None) -> dict[str, str]:
    if code is None:
        return {}
    schedule: Mapping[str, Any] = code.schedule
    choices = {ALGORITHM: schedule.get(ALGORITHM), **schedule.get("choices", {})}
    return {name: str(value) for name, value in choices.items()}


def _counts(code: CodeView | None) -> dict[str, str]:
    if code is None:
        return {}
    worst = max((loop.spills for loop in code.loops), default=0)
    used = max((loop.registers for loop in code.loops), default=0)
    return {
        "instructions": f"{code.instructions:,}",
        "multiply-adds": f"{code.fmas:,}",
        "spills": f"{code.spills:,}",
        "spills of the worst loop": f"{worst:,}",
        "vector registers": f"{code.registers} of {code.all_registers}",
        "of the busiest loop": f"{used} of {code.all_registers}",
    }
