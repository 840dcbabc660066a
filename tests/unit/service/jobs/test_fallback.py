"""A program that its verification refuses: the kernel at fault falls back to its default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.service.devices import FakeDevice
from tilewright.compiler.errors import ArtifactError
from tilewright.db.review_state import ReviewState
from tilewright.db.storage import Storage
from tilewright.service.jobs.evidence.certificate import WrongProgramError
from tilewright.service.jobs.evidence.end_to_end import SelectedSchedules, Served, select_schedules
from tilewright.service.jobs.evidence.verification import Verification
from tilewright.service.jobs.pipeline import fallback
from tilewright.service.jobs.pipeline.fallback import deliver_verified
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_model
from tilewright.service.show.messages import verdict_text
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord


@pytest.fixture(scope="module")
def planned() -> Planned:
    """Two products of different shapes, whose values are h and y."""
    shapes = {"v": (32, 48), "w": (48, 32)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "v"], ["h"], "first"),
            helper.make_node("MatMul", ["h", "w"], ["y"], "second"),
        ],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 32])],
        [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in shapes.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return plan_model(ModelRequest(model.SerializeToString()))


def tuned(storage: Storage, planned: Planned, device: FakeDevice) -> SelectedSchedules:
    """Both products have a record of another schedule than the default."""
    for task in tasks_of(planned):
        other = next(s for s in task.space.unconstrained() if s != task.space.default())
        measured = Measurement(
            Status.OK,
            samples_seconds=(1e-9, 1.1e-9),
            checks=3,
            comparison=Comparison("default", (0.5,) * 8),
        )
        key = RecordKey(task.workload.key, planned.target.key)
        storage.records.add_record(TuningRecord(key, other, measured))
    selected = select_schedules([planned], storage, device, job_id="j")
    assert len(selected.schedules.schedules) == len(selected.records) == 2
    return selected


@dataclass
class Judge:
    """A verifier that finds a value wrong while its kernel is tuned."""

    wrong: Callable[[SelectedSchedules], str | None]
    served: list[SelectedSchedules] = field(default_factory=list)

    def deliver(self, selected: SelectedSchedules, check: Callable[[Any], object]) -> None:
        self.served.append(selected)
        check(None)

    def verify(self) -> None:
        value = self.wrong(self.served[-1])
        if value is not None:
            raise WrongProgramError(f"value '{value}' is wrong", value)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[SelectedSchedules, Verification]]:
    def run(selected: SelectedSchedules, device: FakeDevice, storage: Storage, judge: Judge) -> Any:
        class Fake:
            found = Verification(1e-6)

            def __init__(self, planned: Any, device: Any, more_seconds: float) -> None:
                pass

            def __enter__(self) -> Fake:
                return self

            def __exit__(self, *error: object) -> None:
                pass

            def verify(self, made: Any) -> None:
                judge.verify()

        monkeypatch.setattr(fallback, "Verifier", Fake)
        return deliver_verified(
            selected, device, storage, judge.deliver, job_id="j", more_seconds=10.0
        )

    return run


def key_of(planned: Planned, value: str) -> str:
    return next(s.workload.key for s in planned.plan.kernels if s.output == value)


ours = partial(FakeDevice, trusted=True)


def test_a_kernel_at_fault_falls_back_alone_and_its_record_is_withdrawn(
    storage: Storage, planned: Planned, run: Callable[..., tuple[SelectedSchedules, Verification]]
) -> None:
    device = ours([0.5])
    selected = tuned(storage, planned, device)
    bad, good = key_of(planned, "h"), key_of(planned, "y")
    assert storage.ledger.use(tuple(selected.records.values()), "j")
    judge = Judge(lambda served: "h" if bad in served.schedules.schedules else None)
    found, checked = run(selected, device, storage, judge)
    used = {key: storage.ledger.uses(one) for key, one in selected.records.items()}
    assert used == {bad: [], good: ["j"]}, "the job is not told of a record that it does not serve"
    assert checked.complete and len(judge.served) == 2
    assert found.schedules.schedules.keys() == found.records.keys() == {good}
    assert found.verdict.served is Served.PARTLY and found.verdict.dropped == (bad,)
    assert verdict_text(found.verdict.to_json()) == (
        "1 task falls back to its default; tuned, value 'h' is wrong"
    )
    states = {one.record.key.workload_key: one.state for one in storage.ledger.list()}
    assert states[bad] is ReviewState.WITHDRAWN and states[good] is not ReviewState.WITHDRAWN


def test_what_is_right_is_delivered_once(
    storage: Storage, planned: Planned, run: Callable[..., tuple[SelectedSchedules, Verification]]
) -> None:
    device = ours([0.5])
    selected = tuned(storage, planned, device)
    judge = Judge(lambda served: None)
    found, checked = run(selected, device, storage, judge)
    assert found is selected and checked.complete and judge.served == [selected]


def test_a_workers_word_takes_no_record_from_others(
    storage: Storage, planned: Planned, run: Callable[..., tuple[SelectedSchedules, Verification]]
) -> None:
    """A worker that reports a wrong value may lie: the job does without the kernel, and no more."""
    selected = tuned(storage, planned, ours([0.5]))
    bad = key_of(planned, "h")
    judge = Judge(lambda served: "h" if bad in served.schedules.schedules else None)
    run(selected, FakeDevice([]), storage, judge)
    assert all(one.state is not ReviewState.WITHDRAWN for one in storage.ledger.list())


def test_all_fall_back_where_nobody_knows_which_one_is_wrong(
    storage: Storage, planned: Planned, run: Callable[..., tuple[SelectedSchedules, Verification]]
) -> None:
    device = ours([0.5])
    selected = tuned(storage, planned, device)
    judge = Judge(lambda served: "elsewhere" if served.schedules.schedules else None)
    found, checked = run(selected, device, storage, judge)
    assert checked.complete and not found.schedules.schedules
    assert found.verdict.served is Served.DEFAULT and len(found.verdict.dropped) == 2
    assert all(one.state is not ReviewState.WITHDRAWN for one in storage.ledger.list())


def test_a_wrong_untuned_program_is_an_error(
    storage: Storage, planned: Planned, run: Callable[..., tuple[SelectedSchedules, Verification]]
) -> None:
    device = ours([0.5])
    selected = tuned(storage, planned, device)
    judge = Judge(lambda served: "y")
    with pytest.raises(WrongProgramError, match="value 'y'"):
        run(selected, device, storage, judge)
    assert not judge.served[-1].schedules.schedules
    assert all(one.state is not ReviewState.WITHDRAWN for one in storage.ledger.list())


def test_what_is_no_matter_of_the_program_is_not_tried_again(
    storage: Storage, planned: Planned, run: Callable[..., tuple[SelectedSchedules, Verification]]
) -> None:
    device = ours([0.5])
    selected = tuned(storage, planned, device)

    def full(selected: SelectedSchedules, check: Callable[[Any], object]) -> None:
        raise ArtifactError("the disk is full")

    judge = Judge(lambda served: None)
    judge.deliver = full  # type: ignore[method-assign]
    with pytest.raises(ArtifactError, match="full"):
        run(selected, device, storage, judge)
