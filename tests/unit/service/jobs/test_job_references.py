"""References of jobs: they end with their job, and their failures do not affect other jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tests.unit.service.jobs.test_run_job import Notes, device, run, spec
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.runtime.artifact import read_artifact
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.service.jobs.pipeline import run_job as run_job_module
from tilewright.service.jobs.process.interrupts import JobCancelled
from tilewright.tuner.measure import reference_cost
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.references import ENDED, ReferenceCache
from tilewright.tuner.protocol.measurement import Status


def product() -> Workload:
    make = Maker()
    return as_workload(make.graph(make("matmul", make.input("x", 4, 8), make.input("w", 8, 16))))


pytestmark = pytest.mark.skipif(not linkers(), reason="no linker")


def test_a_job_without_any_reference_ends_with_an_artifact(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The untuned program; the trials give the reason."""
    monkeypatch.setattr(reference_cost, "MOST_BYTES", 1000)
    target = resolve_target("x86-64-v3")
    outcome = run(spec(target), device(), storage, builder, output=tmp_path / "a")
    assert read_artifact(tmp_path / "a").target["name"] == target.name
    assert outcome.verification is not None and outcome.verification.complete
    (status,) = outcome.finished.tasks
    assert status.failures > 0
    trials = storage.records.trials(status.key)
    assert {trial.measurement.status for trial in trials} == {Status.NO_REFERENCE}
    assert all("the reference of 'matmul" in trial.measurement.error for trial in trials)
    assert all("the limit is" in trial.measurement.error for trial in trials)
    monkeypatch.undo()
    again = run(spec(target), device(), storage, builder, job_id="later")
    assert again.finished.records[0] is not None, "a later job tries again"


@pytest.mark.parametrize("stops", ["ends", "cancelled", "interrupted"])
def test_references_are_closed_however_a_job_ends(
    storage: Storage, builder: ProcessBuilder, monkeypatch: pytest.MonkeyPatch, stops: str
) -> None:
    made: list[ReferenceCache] = []

    def cache(**given: Any) -> ReferenceCache:
        made.append(ReferenceCache(**given))
        return made[-1]

    tune_tasks = run_job_module.tune_tasks

    def tune(tasks: Any, *arguments: Any, **more: Any) -> Any:
        (references,) = made
        assert more["references"] is references
        if stops == "interrupted":
            references.begin(tasks[0].workload, 0)
            raise JobCancelled
        return tune_tasks(tasks, *arguments, **more)

    monkeypatch.setattr(run_job_module, "ReferenceCache", cache)
    monkeypatch.setattr(run_job_module, "tune_tasks", tune)
    watcher = Notes(cancel_at="tuning" if stops == "cancelled" else "")
    wanted = spec(resolve_target("x86-64-v3"))
    if stops == "interrupted":
        with pytest.raises(JobCancelled):
            run(wanted, device(), storage, builder, watcher)
    else:
        run(wanted, device(), storage, builder, watcher)
    (references,) = made
    assert references.get(product()) is ENDED


def test_each_job_has_references_of_its_own(
    storage: Storage, builder: ProcessBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ReferenceCache] = []

    def cache(**given: Any) -> ReferenceCache:
        made.append(ReferenceCache(**given))
        return made[-1]

    monkeypatch.setattr(run_job_module, "ReferenceCache", cache)
    for name in ("one", "two"):
        run(spec(resolve_target("x86-64-v3")), device(), storage, builder, job_id=name)
    assert len({id(each) for each in made}) == 2
