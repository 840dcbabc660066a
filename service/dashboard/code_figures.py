"""Comparison of two schedules of a task: their knobs, statistics of their code, and the code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.service.api.schemas.jobs import CodeView
from tilewright.service.show.table import Cell, CellKind, Column, Table, table
from tilewright.service.show.tables.kernels import LOOPS

ALGORITHM = "algorithm"


@dataclass(frozen=True, slots=True)
class CodeSide:
    """One of the compared schedules, with the title of its column on the page.

    Attributes:
        title: the title of the column.
        code: the schedule and its code; None if the code could not be computed.
        refusal: the reason why the code is missing, or "".
    """

    title: str
    code: CodeView | None
    refusal: str

    @property
    def loops(self) -> Table:
        """A table of the innermost loops; empty without code."""
        return table(LOOPS, () if self.code is None else self.code.loops)


@dataclass(frozen=True, slots=True)
class CodeFigures:
    """The comparison of a task's best schedule with its untuned schedule.

    Attributes:
        sides: the best and the untuned schedule; only one element if both are the same.
        knobs: a table with a row per knob, and a column per schedule.
        counts: a table with a row per statistic of the code, such as an instruction count, and a
            column per schedule.
    """

    sides: tuple[CodeSide, ...]
    knobs: Table
    counts: Table

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
        """Compare the best and the untuned schedule of a task.

        Args:
            best: the best schedule and its code; None if missing.
            best_refusal: the reason why `best` is missing, or "".
            untuned: the untuned schedule and its code; None if missing.
            untuned_refusal: the reason why `untuned` is missing, or "".
            chosen: whether tuning of the task has finished with this best schedule. Otherwise
                `best` is the fastest trial so far.
        """
        sides: tuple[CodeSide, ...] = (
            CodeSide("Best" if chosen else "Fastest trial", best, best_refusal),
            CodeSide("Untuned", untuned, untuned_refusal),
        )
        if best is not None and untuned is not None and best.schedule == untuned.schedule:
            title = "Best, which is the untuned one" if chosen else "Untuned; no trial is faster"
            sides = (CodeSide(title, best, ""),)
        return cls(sides, _table("knob", sides, _knobs), _table("in the code", sides, _counts))


def _table(
    title: str, sides: Sequence[CodeSide], facts: Callable[[CodeView | None], Mapping[str, str]]
) -> Table:
    """Return a table that compares schedules: a row per property, a column per schedule.

    Properties that differ between the schedules come first, in bold.

    Args:
        title: the title of the column of names.
        sides: the schedules.
        facts: returns the properties of a schedule by name, such as the values of its knobs. Its
            argument is None for a schedule without code.
    """
    found = [facts(side.code) for side in sides]

    def differs(name: str) -> bool:
        return len({each.get(name) for each in found}) > 1

    def column(side: CodeSide, values: Mapping[str, str]) -> Column[str]:
        return Column(
            side.title, lambda name: Cell(values.get(name, "-"), bold=differs(name)), CellKind.TEXT
        )

    names = sorted(
        dict.fromkeys(name for each in found for name in each), key=lambda n: not differs(n)
    )
    columns = (Column[str](title, str, CellKind.NAME), *map(column, sides, found))
    return table(columns, names)


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
        "vector registers of the busiest loop": f"{used} of {code.all_registers}",
    }
