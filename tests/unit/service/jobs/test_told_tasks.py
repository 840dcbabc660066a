"""Which tasks of a job a user sees."""

from __future__ import annotations

from rich.table import Table

from tilewright.service.api.schemas.jobs import TaskView
from tilewright.service.cli.view import listed_tasks, sizes_note


def task(name: str, best: float | None) -> TaskView:
    return TaskView.model_validate(
        {
            "name": name,
            "workload_key": "a" * 64,
            "count": 1,
            "weight": 1.0,
            "status": "tuned",
            "trials": 0,
            "default_seconds": best,
            "best_seconds": best,
            "facts": {"origins": {"random": 3}},
        }
    )


TASKS = [*(task(f"t{number}", 1e-6 * (number + 1)) for number in range(12)), task("unknown", None)]


def names(table: object) -> list[str]:
    assert isinstance(table, Table)
    return [str(cell) for cell in table.columns[0].cells]


def test_ten_tasks_matter_and_none_of_which_nothing_is_known() -> None:
    table, more = listed_tasks(TASKS, verbose=False)
    assert names(table) == [f"t{number}" for number in range(11, 1, -1)]
    assert more == "and 3 more tasks: -v shows all"
    assert listed_tasks(TASKS[-1:], verbose=False) == ["and 1 more task: -v shows all"]
    assert listed_tasks([], verbose=False) == []


def test_all_are_shown_to_who_asks() -> None:
    table, suggested = listed_tasks(TASKS, verbose=True)
    assert len(names(table)) == 13 and str(suggested).startswith("suggested by random 39")


def test_tasks_of_one_name_are_told_apart_by_their_keys() -> None:
    other = task("conv", 1e-6).model_copy(update={"workload_key": "b" * 64})
    (table,) = listed_tasks([task("conv", 2e-6), other, task("add", 3e-6)], verbose=False)
    assert names(table) == ["add", "conv aaaaaa", "conv bbbbbb"]


def test_sizes_that_a_run_decides_are_explained() -> None:
    _, note = listed_tasks([task("conv s0x64", 2e-6), task("add s1xs0", 1e-6)], verbose=False)
    assert note == "s0, s1: sizes of their workload that each run decides"
    assert sizes_note(["pad s0"]) == "s0: a size of its workload that each run decides"
    assert sizes_note(["tanh3 64"]) == ""
