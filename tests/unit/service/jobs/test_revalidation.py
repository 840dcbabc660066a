"""Only kernels that a new code generation changes are measured again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.service.jobs.test_schedule_reviews import TARGET, model
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.service.jobs.knowledge.revalidation import revalidate
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_model
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.protocol.measurement import Measurement, Status, TuningRecord
from tilewright.tuner.tasks import Task


@pytest.fixture(scope="module")
def planned() -> Planned:
    return plan_model(ModelRequest(model(), Mode(TARGET)))


@pytest.fixture(scope="module")
def task(planned: Planned) -> Task:
    (made,) = tasks_of(planned)
    return made


def record(task: Task, object_digest: str, checks: int = 3) -> TuningRecord:
    measurement = Measurement(
        Status.OK, samples_seconds=(1e-3,), object_digest=object_digest, checks=checks
    )
    return TuningRecord(
        task.key, task.space.default(), measurement, "trial", "an earlier one", "0.0"
    )


def digest_of(task: Task, builder: ProcessBuilder) -> str:
    (built,) = builder.submit(task, [task.space.default()]).results()
    return built.object_digest


def test_a_record_whose_code_comes_out_the_same_holds(
    storage: Storage, builder: ProcessBuilder, planned: Planned, task: Task
) -> None:
    old = record(task, digest_of(task, builder))
    storage.records.add_record(old)
    assert not old.holds(CODEGEN_VERSION)
    assert revalidate([planned], storage, builder) == 1
    found = storage.records.best_record(task.key)
    assert found is not None and found.holds(CODEGEN_VERSION)
    assert replace(found, codegen_version="", compiler_version="") == replace(
        old, codegen_version="", compiler_version=""
    )
    assert revalidate([planned], storage, builder) == 0, "there is nothing left to carry over"


def test_a_record_whose_code_differs_is_left_to_the_tuner(
    storage: Storage, builder: ProcessBuilder, planned: Planned, task: Task
) -> None:
    storage.records.add_record(record(task, "d" * 64))
    assert revalidate([planned], storage, builder) == 0
    found = storage.records.best_record(task.key)
    assert found is not None and found.codegen_version == "an earlier one"


def test_without_a_certificate_nothing_is_carried_over(
    storage: Storage, builder: ProcessBuilder, planned: Planned, task: Task
) -> None:
    storage.records.add_record(record(task, digest_of(task, builder), checks=1))
    assert revalidate([planned], storage, builder) == 0


def test_a_schedule_that_the_space_has_no_more_is_left(
    storage: Storage, builder: ProcessBuilder, planned: Planned, task: Task
) -> None:
    gone = replace(task.space.default(), algorithm="gone")
    storage.records.add_record(replace(record(task, "d" * 64), schedule=gone))
    assert revalidate([planned], storage, builder) == 0


def test_targets_are_told_apart(
    storage: Storage, builder: ProcessBuilder, planned: Planned, task: Task
) -> None:
    other = replace(task.key, target_key=resolve_target("x86-64-v4").key)
    storage.records.add_record(replace(record(task, digest_of(task, builder)), key=other))
    assert revalidate([planned], storage, builder) == 0
