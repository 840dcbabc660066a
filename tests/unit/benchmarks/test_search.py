"""Tables on disk, the result of a search of one, and the report."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from benchmarks.report import Origin
from benchmarks.search import CONSTRAINED, UNCONSTRAINED, Run, report, search, write_csv
from benchmarks.search_tables import JOB, WORKLOADS, TableFile, path_of, read_table, workload_of
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.targets.host import resolve_target
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, Trial, trial_id
from tilewright.tuner.tasks import Task, make_task

NAME = "mean 384x1030"
METHODS = (
    "evolutionary+xgboost",
    "evolutionary+xgboost-estimate",
    "evolutionary+none-estimate",
)


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(workload_of(NAME), Mode(), name=NAME)


def _trials(task: Task, seconds: float = 1e-5, phase: Phase = Phase.SCREEN) -> list[Trial]:
    """The default first, each next schedule a tenth faster; one fails."""
    default = task.space.default()
    schedules = [default, *(s for s in task.space.points if s != default)][:12]
    found = []
    for number, schedule in enumerate(schedules):
        status = Status.WRONG_ANSWER if number == 5 else Status.OK
        samples = (seconds * 0.9**number,) if status is Status.OK else ()
        measurement = Measurement(status, samples_seconds=samples, object_digest=schedule.digest)
        name = trial_id(task.key, schedule.digest, phase, JOB)
        found.append(Trial(name, task.key, schedule, measurement, phase, JOB, CODEGEN_VERSION))
    return found


def test_a_table_is_read_as_it_was_written_and_goes_on(tmp_path: Path, task: Task) -> None:
    path = path_of(tmp_path / "tables", NAME, False)
    trials = _trials(task)
    TableFile(path, task).add_trials(trials[:7])
    again = TableFile(path, task)
    assert [t.id for t in again.trials(task.key)] == [t.id for t in trials[:7]]
    again.add_trials(trials[7:])
    again.add_trials([t for t in _trials(task, 2e-5, Phase.FINAL) if t.measurement.ok][-3:])
    table = read_table(path, NAME)
    assert set(table.known) == {t.schedule for t in trials}
    # The finalists took twice as long as when they were screened: so would have the others.
    assert table.best_seconds == pytest.approx(2e-5 * 0.9**11, rel=1e-5)
    assert table.known[trials[0].schedule].run_seconds == pytest.approx(2e-5, rel=1e-5)
    assert table.known[trials[5].schedule].status is Status.WRONG_ANSWER


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path, task: Task) -> None:
    path = path_of(tmp_path, NAME, True)
    TableFile(path, task).add_trials(_trials(task))
    path.write_bytes(path.read_bytes() + gzip.compress(b'{"schedule": {"algo'))
    assert len(read_table(path, NAME).known) == 12


def test_a_search_of_a_table_says_its_regret(tmp_path: Path, task: Task) -> None:
    path = path_of(tmp_path, NAME, False)
    TableFile(path, task).add_trials(_trials(task))
    run = search(read_table(path, NAME), "random+none", 1, 24)
    assert len(run.regrets) == 12, "every candidate of the table, none twice"
    assert run.regrets[0] == pytest.approx(1 / 0.9**11 - 1, rel=1e-4), "the default comes first"
    assert run.regrets[-1] == 0 and list(run.regrets) == sorted(run.regrets, reverse=True)
    assert search(read_table(path, NAME), "random+none", 1, 24) == run


def test_a_method_without_estimates_starts_from_nothing(tmp_path: Path, task: Task) -> None:
    """Estimates rank the first candidates of one, chance those of the other."""
    path = path_of(tmp_path, NAME, False)
    TableFile(path, task).add_trials(_trials(task))
    table = read_table(path, NAME)
    found = {m: [search(table, m, seed, 6).regrets for seed in range(4)] for m in METHODS}
    assert found[METHODS[0]] != found[METHODS[1]]
    assert found[METHODS[1]] == found["evolutionary+none-estimate"], "untrained, it is chance"


def test_regrets_and_trials_to_the_best(tmp_path: Path) -> None:
    run = Run("a+b", "w", 0, (0.5, 0.1, 0.1, 0.005), None)
    assert (run.at(1), run.at(3), run.at(24)) == (0.5, 0.1, 0.005)
    assert (run.until(0.01), run.until(0.001)) == (4, float("inf"))
    chance = Run("random+none", "w", 0, (0.5, 0.5, 0.4, 0.4), None)
    text = report([run, chance], Origin(), "how", CONSTRAINED)
    assert "| w | 0.5% | 0.5% | 40.0% | 40.0% | 4 | - |" in text
    assert "a+b over that of random+none: 0.01 at 8" in text
    assert "of the seeds, mean over the workloads: a+b 4.0 (0 of 1 not in 4 trials);" in text
    assert "random+none 4.0 (1 of 1 not in 4 trials)." in text
    assert "| 0.5% | 0.5% | 40.0% | 40.0% | 40.0% | 4 | - |" in report(
        [run, chance], Origin(), "how", UNCONSTRAINED
    )
    write_csv([run], tmp_path / "c.csv")
    rows = list(
        csv.reader(gzip.decompress((tmp_path / "c.csv").read_bytes()).decode().splitlines())
    )
    assert rows[0] == ["method", "workload", "seed", "trial", "regret"]
    assert rows[-1] == ["a+b", "w", "0", "4", "0.005000"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_has_something_to_search(name: str) -> None:
    task = make_task(workload_of(name), Mode(resolve_target("x86-64-v4")))
    assert len(task.space) >= 24
