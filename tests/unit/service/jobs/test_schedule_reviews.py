"""Results of another owner's device are measured again before other jobs are served with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.service.devices import FakeDevice
from tests.unit.tuner.fakes import FakeQueue
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.review_state import Attestation, ClaimReporter, ReviewState
from tilewright.db.storage import Storage
from tilewright.service.jobs.evidence.schedule_reviews import DEVICES_DIFFER, SLOWER, contradiction
from tilewright.service.jobs.pipeline import run_job as run_job_module
from tilewright.service.jobs.pipeline.incomplete import untuned
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.pipeline.run_job import JobContext, JobOutcome, JobWatcher, run_job
from tilewright.service.options import JobBudget, JobOptions
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.batches import MeasureResult
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, trial_id

pytestmark = pytest.mark.usefixtures("references_here")

needs_linker = pytest.mark.skipif(not linkers(), reason="no linker")
TARGET = resolve_target("x86-64-v3")


def ok(seconds: float, worker: str = "a") -> Measurement:
    return Measurement(Status.OK, samples_seconds=(seconds,), worker=worker, checks=3)


class TestContradiction:
    def test_the_same_time_agrees(self) -> None:
        assert contradiction(ok(1e-3), ok(1e-3, "b"), 1.0) == ""
        assert contradiction(ok(1e-3), ok(0.99 * SLOWER * 1e-3, "b"), None) == ""

    def test_a_time_that_nobody_sees_again_is_told_with_both_workers(self) -> None:
        found = contradiction(ok(1e-12), ok(3e-3, "b"), 1.0)
        assert found == "1e-12 s on worker 'a', 0.003 s on worker 'b'"

    def test_a_slower_device_is_no_contradiction(self) -> None:
        assert contradiction(ok(1e-3), ok(5e-3, "b"), 5.0) == ""
        assert contradiction(ok(1e-3), ok(5e-3, "b"), 1.0) != ""

    def test_a_device_that_lies_about_its_default_as_well_is_not_believed(self) -> None:
        assert contradiction(ok(1e-12), ok(1e-3, "b"), 1e9) != ""
        limit = SLOWER * DEVICES_DIFFER
        assert contradiction(ok(1e-3), ok(1.01 * limit * 1e-3, "b"), 1e9) != ""

    def test_one_that_was_disturbed_when_it_became_a_record_is_still_the_best(self) -> None:
        assert contradiction(ok(1e-3), ok(1e-4, "b"), 1.0) == ""

    @pytest.mark.parametrize(
        "status", [Status.WRONG_ANSWER, Status.CRASH, Status.RUN_ERROR, Status.RUN_TIMEOUT]
    )
    def test_what_fails_elsewhere_is_no_record(self, status: Status) -> None:
        failed = Measurement(status, "why", worker="b")
        found = contradiction(ok(1e-3), failed, None)
        assert found == f"worker 'a' found it right, on worker 'b' it ended as {status}: why"

    def test_what_is_slower_than_the_default_elsewhere_is_no_record(self) -> None:
        """Also if both times of a liar could come from a faster device."""
        slower = replace(ok(1e-3, "b"), comparison=Comparison("default", (1.5,) * 8))
        assert "slower than the default" in contradiction(ok(1e-3 / 16), slower, 8.0)
        as_fast = replace(slower, comparison=Comparison("default", (1.0,) * 8))
        assert contradiction(ok(1e-3 / 16), as_fast, 8.0) == ""

    @pytest.mark.parametrize("status", [Status.WORKER_LOST, Status.CANCELLED])
    def test_a_worker_that_was_lost_says_nothing(self, status: Status) -> None:
        assert contradiction(ok(1e-3), Measurement(status, worker="b"), None) == ""


def honest(schedule: Schedule) -> float:
    return 1e-3 * (1 + int(schedule.digest[4:8], 16) / 65536)


def lying(schedule: Schedule) -> float:
    """The slower a schedule, the faster its report."""
    return 1e-15 / honest(schedule)


def model() -> bytes:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 64])],
        [numpy_helper.from_array(np.ones((32, 64), np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return made.SerializeToString()


def tuned(storage: Storage, builder: ProcessBuilder, device: Any, job_id: str) -> JobOutcome:
    spec = JobSpec(model(), Mode(TARGET), options=JobOptions(12, strategy="random"))
    job_context = JobContext(storage, builder)
    return run_job(spec, device, job_context, JobWatcher(), job_id=job_id, token=CancelToken())


def states(storage: Storage) -> list[ReviewState]:
    return [one.state for one in storage.ledger.list()]


@needs_linker
def test_a_lie_is_measured_again_disputed_and_not_served(
    storage: Storage, builder: ProcessBuilder
) -> None:
    board = FakeDevice([0.9] * 8, runner=FakeQueue(lying), second=FakeQueue(honest))
    outcome = tuned(storage, builder, board, "first")
    (record,) = storage.ledger.list()
    assert record.state is ReviewState.DISPUTED
    assert storage.records.best_record(record.record.key) is None
    assert outcome.confirmed.confirmed == 0 and outcome.confirmed.open == 0
    (told,) = outcome.confirmed.disputed
    assert record.reason in told
    assert outcome.report()["records"]["disputed"] == [told]
    assert outcome.selected is not None and outcome.selected.known == 0 == len(
        outcome.selected.records
    )
    reason = untuned(outcome, JobBudget(12), storage, "first")
    assert reason is not None and not reason.is_failure
    assert reason.reason == f"measured again, 1 of the new records did not hold: {told}"

    # the wrong result trains no cost model: a later job with honest workers finds a record
    board = FakeDevice([0.9] * 8, runner=FakeQueue(honest), second=FakeQueue(honest))
    later = tuned(storage, builder, board, "second")
    (task,) = later.finished.tasks
    assert task.best_seconds is not None and task.best_seconds >= 1e-3
    assert storage.records.best_record(record.record.key) is not None
    assert untuned(later, JobBudget(12), storage, "second") is None


@needs_linker
def test_a_record_that_holds_is_served_and_remembers_who_used_it(
    storage: Storage, builder: ProcessBuilder
) -> None:
    board = FakeDevice([0.9] * 8, runner=FakeQueue(honest), second=FakeQueue(honest))
    outcome = tuned(storage, builder, board, "first")
    (record,) = storage.ledger.list()
    assert record.state is ReviewState.CONFIRMED and record.job_id == "first"
    assert record.confirmation is not None and record.confirmation.certified
    assert storage.records.best_record(record.record.key) == record.record
    (again,) = board.second.submitted
    assert again.phase is Phase.CONFIRM and len(again.cases) > 1
    found = (record.record.key, record.record.schedule.digest)
    named = trial_id(*found, Phase.CONFIRM, "first", record.id)
    assert named in {candidate.trial_id for candidate in again.candidates}
    assert storage.ledger.uses(record.id) == ["first"]
    assert outcome.confirmed.confirmed == 1


@needs_linker
def test_a_record_that_nobody_could_measure_again_stays_provisional(
    storage: Storage, builder: ProcessBuilder
) -> None:
    second = FakeQueue(honest, fails=lambda candidate, attempt: Status.WORKER_LOST)
    board = FakeDevice([0.9] * 8, runner=FakeQueue(honest), second=second)
    outcome = tuned(storage, builder, board, "first")
    assert states(storage) == [ReviewState.PROVISIONAL] and outcome.confirmed.open == 1
    reason = untuned(outcome, JobBudget(12), storage, "first")
    assert reason is not None
    assert reason.note == ("nothing was tuned: 1 of the new records could not be measured again")
    assert outcome.selected is not None and outcome.selected.known == 0

    # the next job finds the trials, compares their best once more, and has it confirmed
    board = FakeDevice([0.9] * 8, runner=FakeQueue(honest), second=FakeQueue(honest))
    later = tuned(storage, builder, board, "second")
    assert later.selected is not None and later.selected.known == 1
    assert ReviewState.CONFIRMED in states(storage)


@dataclass
class Leaving(FakeDevice):
    """A device whose worker leaves with a measurement unfinished; another worker comes, or none."""

    next: FakeDevice | None = None
    asked: int = 0

    def second_opinion(self, first: ClaimReporter) -> FakeDevice:
        self.asked += 1
        if self.asked == 1:
            return replace(self, runner=Away(honest), other=None)
        return super().second_opinion(first)

    def worth(self, first: ClaimReporter) -> Attestation:
        return Attestation.TWO_OWNERS if self.asked == 0 or self.next else Attestation.ONE_WORKER


class Away(FakeQueue):
    """The runner of a worker that is gone: its requests are cancelled."""

    def submit(self, request: Any, blobs: Any) -> None:
        super().submit(request, blobs)
        self.cancel()


@needs_linker
@pytest.mark.parametrize("another", [True, False])
def test_where_who_was_asked_goes_away_others_are_asked_who_tell_as_much(
    storage: Storage, builder: ProcessBuilder, another: bool
) -> None:
    board = Leaving([0.9] * 8, runner=FakeQueue(honest), second=FakeQueue(honest))
    board.next = board if another else None
    outcome = tuned(storage, builder, board, "first")
    assert states(storage) == [ReviewState.CONFIRMED if another else ReviewState.PROVISIONAL]
    assert outcome.confirmed.open == (not another)


@needs_linker
def test_what_the_only_worker_confirmed_is_measured_again_when_another_owner_has_one(
    storage: Storage, builder: ProcessBuilder
) -> None:
    """A single dishonest owner can only confirm himself, and the record says so. Then an honest
    owner comes."""
    liar = storage.workers.register("liar", [], {}, owner="mean").id
    alone = FakeDevice([0.9] * 8, runner=FakeQueue(lying, worker=liar), worker=liar, owner="mean")
    tuned(storage, builder, alone, "first")
    (record,) = storage.ledger.list()
    assert (record.state, record.attestation) == (ReviewState.CONFIRMED, Attestation.ONE_WORKER)
    model = storage.models.add(b"model", "m").digest
    user = storage.jobs.create(model, "host", "host-key").id
    storage.ledger.use([record.id], user)

    honest_one = storage.workers.register("honest", [], {}, owner="honest").id
    second = FakeDevice(
        [0.9] * 8, runner=FakeQueue(honest, worker=honest_one), worker=honest_one, owner="honest"
    )
    board = FakeDevice([0.9] * 8, runner=FakeQueue(honest), other=second)
    outcome = tuned(storage, builder, board, "second")
    assert storage.ledger.get(record.id).state is ReviewState.DISPUTED
    (told,) = [event for event in storage.events.since(user) if event.kind == "withdrawn"]
    assert told.data["records"] == [record.id]
    assert len(outcome.confirmed.disputed) == 1 and outcome.confirmed.confirmed == 1
    served = storage.ledger.served([record.record.key])[record.record.key]
    assert served.attestation is Attestation.TWO_OWNERS
    assert served.record.run_seconds >= 1e-3

    # and a true result is confirmed once, not by every job
    count = len(second.runner.submitted)
    tuned(storage, builder, board, "third")
    assert len(second.runner.submitted) == count


@needs_linker
def test_a_job_does_not_build_with_what_was_withdrawn_while_it_settled(
    storage: Storage, builder: ProcessBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    select_schedules = run_job_module.select_schedules

    def slow(*arguments: Any, **options: Any) -> Any:
        found = select_schedules(*arguments, **options)
        storage.ledger.withdraw("sick", record_ids=list(found.records.values()))
        return found

    monkeypatch.setattr(run_job_module, "select_schedules", slow)
    board = FakeDevice([0.9] * 8, runner=FakeQueue(honest), second=FakeQueue(honest))
    outcome = tuned(storage, builder, board, "first")
    assert states(storage) == [ReviewState.WITHDRAWN]
    assert outcome.selected is not None and outcome.selected.records == {}
    (record,) = storage.ledger.list()
    assert storage.ledger.uses(record.id) == []


@needs_linker
def test_our_own_device_needs_no_second_measurement(
    storage: Storage, builder: ProcessBuilder
) -> None:
    ours = FakeDevice([0.9] * 8, runner=FakeQueue(honest), trusted=True)
    outcome = tuned(storage, builder, ours, "first")
    assert states(storage) == [ReviewState.CONFIRMED]
    assert all(request.phase is not Phase.CONFIRM for request in ours.runner.submitted)
    assert outcome.selected is not None and outcome.selected.known == 1


@needs_linker
def test_a_second_measurement_without_a_certificate_confirms_nothing(
    storage: Storage, builder: ProcessBuilder
) -> None:
    """It took the same time, but its output was not compared on every random input."""

    @dataclass
    class Careless(FakeQueue):
        def poll(self, timeout_seconds: float) -> list[MeasureResult]:
            return [
                replace(
                    result,
                    measurements=tuple((n, replace(m, checks=1)) for n, m in result.measurements),
                )
                for result in super().poll(timeout_seconds)
            ]

    board = FakeDevice([0.9] * 8, runner=FakeQueue(honest), second=Careless(honest))
    outcome = tuned(storage, builder, board, "first")
    assert states(storage) == [ReviewState.PROVISIONAL]
    assert (outcome.confirmed.confirmed, outcome.confirmed.open) == (0, 1)
