"""Tuned schedules are served only where they win end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.unit.db.test_races import add
from tests.unit.service.devices import FakeDevice
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder
from tilewright.compiler.runtime.artifact import read_artifact
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import untuned_schedules
from tilewright.db.engine import reading, writing
from tilewright.db.review_state import Attestation
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import claims, is_race
from tilewright.service.cli import run as run_cli
from tilewright.service.cli.view import selected_line
from tilewright.service.jobs.device.device import Device, DeviceError
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.evidence.end_to_end import (
    TAKEN_BACK,
    Served,
    Verdict,
    select_schedules,
)
from tilewright.service.jobs.evidence.verification import verify_artifact
from tilewright.service.jobs.knowledge.known_model import KnownModel
from tilewright.service.jobs.pipeline.tuning import build_artifact
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.planning import (
    ModelRequest,
    Planned,
    model_digest,
    plan_model,
    plan_sizes,
)
from tilewright.service.show.messages import verdict_text
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord
from tilewright.tuner.protocol.run_results import Race

ours = partial(FakeDevice, trusted=True)

pytestmark = pytest.mark.skipif(not linkers(), reason="no linker")

ROWS, INNER, COLUMNS = 64, 96, 128


@pytest.fixture(scope="module")
def planned() -> Planned:
    """Two products of different shapes, so two tasks."""
    shapes = {"v": (INNER, COLUMNS), "w": (COLUMNS, INNER)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "v"], ["h"], "first"),
            helper.make_node("MatMul", ["h", "w"], ["y"], "second"),
        ],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, INNER])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, INNER])],
        [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in shapes.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return plan_model(ModelRequest(model.SerializeToString()))


def _model(nodes: list[NodeProto], rows: int | str) -> bytes:
    """From x (rows, INNER) by a matrix w of ones to y (rows, COLUMNS)."""
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, INNER])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, COLUMNS])],
        [numpy_helper.from_array(np.ones((INNER, COLUMNS), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = model.SerializeToString()
    return data


def _default(planned: Planned, number: int) -> Schedule:
    workload = planned.workloads[number][0]
    return next(untuned_schedules(workload, Mode(planned.target)))


def _other(planned: Planned, number: int) -> Schedule:
    """The smallest register tile: a schedule that is right, and slow."""
    task = tasks_of(planned)[number]
    algorithm = task.space.default().algorithm
    tiled = [s for s in task.space.unconstrained() if s.algorithm == algorithm]
    return min(tiled, key=lambda s: s.integer("tile") * s.integer("vectors"))


def _record(
    storage: Storage, planned: Planned, number: int, schedule: Schedule, ratio: float
) -> None:
    """The database's record of a task; its time is invented."""
    key = RecordKey(planned.workloads[number][0].key, planned.target.key)
    measured = Measurement(
        Status.OK,
        samples_seconds=(1e-9, 1.1e-9),
        checks=3,
        comparison=Comparison("default", (ratio,) * 8),
    )
    storage.records.add_record(TuningRecord(key, schedule, measured))


@pytest.fixture(scope="module")
def here() -> Iterator[Device]:
    with LocalDevice() as device:
        yield device


def test_a_bad_record_is_not_served(
    storage: Storage, planned: Planned, tmp_path: Path, here: Device
) -> None:
    """A rigged store: its record claims a nanosecond for a schedule that is slow.

    The race is a real one. Whatever the machine does, the slow program does not win.
    """
    _record(storage, planned, 0, _other(planned, 0), ratio=0.1)
    found = select_schedules([planned], storage, here, job_id="j")
    verdict = found.verdict
    assert verdict.served is Served.DEFAULT
    assert verdict.comparison is not None and verdict.outcome in ("tie", "slower")
    key = planned.workloads[0][0].key
    assert verdict.dropped == (key,)
    (compiled,) = build_artifact(found.planned, found.schedules, tmp_path / "a")
    assert compiled.schedules[key] == _default(planned, 0) and not compiled.tuned
    assert verify_artifact(planned, read_artifact(tmp_path / "a"), here).complete
    assert storage.ledger.race_counts() == {"default": 1}


def test_what_wins_is_served_and_raced_once(storage: Storage, planned: Planned) -> None:
    device = ours([0.8])
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    for job_id in ("first", "second", "second"):
        found = select_schedules([planned], storage, device, job_id=job_id)
        assert (found.verdict.served, found.verdict.outcome) == (Served.TUNED, "faster")
        assert found.verdict.device == device.facts.model
        assert (found.known, found.workloads) == (1, 2)
        key = planned.workloads[0][0].key
        assert found.schedules.best(key, planned.mode) == _other(planned, 0)
    assert device.raced == [1] and storage.ledger.race_counts() == {"tuned": 2}
    # other schedules are another race
    _record(storage, planned, 1, _other(planned, 1), ratio=0.99)
    assert select_schedules([planned], storage, ours([1.0, 1.0])).verdict.served is Served.DEFAULT


LIAR, HONEST = "liar", "honest"


@pytest.fixture(autouse=True)
def registered(storage: Storage) -> None:
    """The worker of another owner."""
    storage.workers.register("honest", [], {}, owner="honest", worker_id="honest")


def board(*ratios: float, worker: str = LIAR, other: FakeDevice | None = None) -> FakeDevice:
    """A worker's device, together with the device of another owner."""
    return FakeDevice(list(ratios), worker=worker, other=other)


def honest(*ratios: float) -> FakeDevice:
    return FakeDevice(list(ratios), worker=HONEST, owner=HONEST)


@pytest.mark.parametrize(("lie", "truth"), [(0.5, 1.2), (1.3, 0.8)])
def test_two_workers_that_contradict_each_other_decide_nothing_for_others(
    storage: Storage, planned: Planned, lie: float, truth: float
) -> None:
    """Whether a liar reports slower schedules as faster, or the reverse."""
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    second = honest(truth)
    found = select_schedules([planned], storage, board(lie, other=second), job_id="lied to")
    assert found.verdict.served is Served.DEFAULT and second.raced == [1]
    assert LIAR in found.verdict.reason and HONEST in found.verdict.reason
    assert select_schedules([planned], storage).verdict.outcome == "not_run", "nobody believes it"
    # the next job decides from its own findings, and another owner confirms them
    again = board(truth, worker="third", other=honest(truth))
    verdict = select_schedules([planned], storage, again, job_id="next").verdict
    assert verdict.served is (Served.TUNED if truth < 1 else Served.DEFAULT)
    assert verdict.attestation is Attestation.TWO_OWNERS and again.raced == [1]
    assert select_schedules([planned], storage).verdict == verdict


def test_a_tie_contradicts_nobody(storage: Storage, planned: Planned) -> None:
    """The defaults are served, the reason names no worker, and the next job races anew."""
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    verdict = select_schedules(
        [planned], storage, board(1.0, other=honest(0.8)), job_id="first"
    ).verdict
    assert (verdict.served, verdict.attestation) == (Served.DEFAULT, Attestation.ONCE)
    assert HONEST not in verdict.reason
    assert select_schedules([planned], storage).verdict.outcome == "not_run"
    again = select_schedules(
        [planned], storage, board(0.8, other=honest(0.8)), job_id="next"
    ).verdict
    assert (again.served, again.attestation) == (Served.TUNED, Attestation.TWO_OWNERS)


def test_the_word_of_one_worker_serves_the_job_that_asked_and_no_other(
    storage: Storage, planned: Planned
) -> None:
    """The second race ends in a tie: it neither confirms nor contradicts the first."""
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    first = select_schedules([planned], storage, board(0.9, other=honest(1.0)), job_id="first")
    assert (first.verdict.served, first.verdict.attestation) == (Served.TUNED, Attestation.ONCE)
    text = verdict_text(first.verdict.to_json())
    assert text.endswith("measured once, by one worker")
    restarted = board(other=honest(1.0))
    assert select_schedules([planned], storage, restarted, job_id="first").verdict == first.verdict
    assert not restarted.raced
    another = board(0.9, other=honest(0.9))
    assert (
        select_schedules([planned], storage, another, job_id="another").verdict.served
        is Served.TUNED
    )
    assert another.raced == [1]


def test_the_only_worker_confirms_itself_until_another_owner_has_one(
    storage: Storage, planned: Planned
) -> None:
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    alone = board(0.9, 0.9)
    verdict = select_schedules([planned], storage, alone, job_id="first").verdict
    assert verdict.attestation is Attestation.ONE_WORKER and alone.raced == [1, 1]
    assert select_schedules([planned], storage, board(), job_id="second").verdict == verdict
    # another owner's worker comes, and contradicts it
    second = honest(1.2)
    found = select_schedules([planned], storage, board(other=second), job_id="third")
    assert found.verdict.served is Served.DEFAULT and second.raced == [1]
    assert select_schedules([planned], storage).verdict.outcome == "not_run"


def test_what_several_workers_raced_by_turns_is_nobodys_word(
    storage: Storage, planned: Planned
) -> None:
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    found = select_schedules([planned], storage, board(0.9, worker=""), job_id="job")
    assert found.verdict.served is Served.TUNED and storage.ledger.race_counts() == {}


def withdrawing(storage: Storage, ratio: float, *workers: str) -> FakeDevice:
    """Another owner's device; while it runs its first races, an operator withdraws a worker each.

    Before each of them, the verdict must be noted as used by job `job`.
    """

    @dataclass
    class Withdrawing(FakeDevice):
        def race(self, *arguments: Any, **more: Any) -> Race:
            newest = sa.select(claims.c.id).where(is_race).order_by(claims.c.serial.desc())
            with reading(storage.engine) as connection:
                claim_id = connection.execute(newest.limit(1)).scalar_one()
            assert storage.ledger.uses(claim_id) == ["job"]
            if left:
                storage.ledger.withdraw("faulty", workers=[left.pop(0)])
            return super().race(*arguments, **more)

    left = list(workers)
    return Withdrawing([ratio] * (1 + len(workers)), worker=HONEST, owner=HONEST)


def test_a_race_that_is_withdrawn_during_its_review_is_run_once_more(
    storage: Storage, planned: Planned
) -> None:
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    device = board(0.9, 0.95, other=withdrawing(storage, 0.95, LIAR))
    verdict = select_schedules([planned], storage, device, job_id="job").verdict
    assert device.raced == [1, 1] and verdict.attestation is Attestation.TWO_OWNERS
    assert verdict.comparison is not None and verdict.comparison.ratio == pytest.approx(0.95)
    assert select_schedules([planned], storage).verdict == verdict


def test_no_verdict_is_used_if_every_race_is_withdrawn(storage: Storage, planned: Planned) -> None:
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    device = board(0.9, 0.9, other=withdrawing(storage, 0.9, LIAR, LIAR))
    verdict = select_schedules([planned], storage, device, job_id="job").verdict
    assert (verdict.served, verdict.outcome, verdict.reason) == (
        Served.TUNED,
        "not_run",
        TAKEN_BACK,
    )
    assert verdict.attestation is None and device.raced == [1, 1]
    assert select_schedules([planned], storage).verdict.outcome == "not_run"


@pytest.mark.parametrize("gone", ["withdrawn", "disputed"])
def test_a_verdict_that_goes_between_look_up_and_use_is_not_used(
    storage: Storage, planned: Planned, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    select_schedules([planned], storage, board(0.9, other=honest(0.9)), job_id="first")
    use = storage.ledger.use

    def late(claim_ids: Sequence[str], job_id: str) -> bool:
        monkeypatch.setattr(storage.ledger, "use", use)
        if gone == "withdrawn":
            storage.ledger.withdraw("faulty", workers=[LIAR])
        else:
            (claim_id,) = claim_ids
            state = sa.update(claims).where(claims.c.id == claim_id).values(state="disputed")
            with writing(storage.engine) as connection:
                connection.execute(state)
        return use(claim_ids, job_id)

    monkeypatch.setattr(storage.ledger, "use", late)
    device = board(0.95, worker="third", other=honest(0.95))
    verdict = select_schedules([planned], storage, device, job_id="second").verdict
    assert device.raced == [1]
    assert verdict.comparison is not None and verdict.comparison.ratio == pytest.approx(0.95)


def test_a_job_does_not_use_a_verdict_that_its_own_review_disputes(
    storage: Storage, planned: Planned
) -> None:
    """The jobs that used it before get an event. This one does not: it serves the defaults."""
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    model = storage.models.add(b"model", "m").digest
    before, reviewer = (storage.jobs.create(model, "host", "host-key").id for _ in range(2))
    select_schedules([planned], storage, board(0.9, 0.9), job_id="first")
    select_schedules([planned], storage, board(), job_id=before)
    select_schedules([planned], storage, board(other=honest(1.2)), job_id=reviewer)
    assert storage.ledger.race_counts() == {"tuned": 2}, "of the first job and the one after it"
    for job, told in ((before, 1), (reviewer, 0)):
        kinds = [event.kind for event in storage.events.since(job)]
        assert kinds.count("withdrawn") == told


class Turns(FakeDevice):
    """Each race goes to the next of some workers."""

    turns: tuple[str, ...] = ()

    def race(self, *arguments: Any, **more: Any) -> Race:
        self.worker, *rest = self.turns
        self.turns = tuple(rest)
        return super().race(*arguments, **more)


@pytest.mark.parametrize("turns", [("a", "a"), ("a", "b")])
def test_the_races_of_the_whole_and_of_its_sure_part_are_one_word(
    storage: Storage, planned: Planned, turns: tuple[str, ...]
) -> None:
    """Races that two workers ran belong to no single worker."""
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    _record(storage, planned, 1, _other(planned, 1), ratio=0.99)
    device = Turns([1.01, 0.9], other=honest(0.9))
    device.turns = turns
    assert (
        select_schedules([planned], storage, device, job_id="job").verdict.served is Served.PARTLY
    )
    assert device.turns == () and storage.ledger.race_counts() == (
        {"partly": 1} if turns[0] == turns[1] else {}
    )


def test_a_second_device_that_fails_leaves_it_open(storage: Storage, planned: Planned) -> None:
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    away = FakeDevice(worker=HONEST, error=DeviceError("board 'b' does not answer"))
    found = select_schedules([planned], storage, board(0.9, other=away), job_id="job")
    assert (found.verdict.served, found.verdict.attestation) == (Served.TUNED, Attestation.ONCE)
    assert select_schedules([planned], storage).verdict.outcome == "not_run"


def test_tasks_of_doubtful_gain_fall_back_first(storage: Storage, planned: Planned) -> None:
    device = ours([1.01, 0.9])
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    _record(storage, planned, 1, _other(planned, 1), ratio=0.99)
    found = select_schedules([planned], storage, device)
    schedules, verdict = found.schedules, found.verdict
    sure, doubtful = (workload.key for workload, _ in planned.workloads)
    assert verdict.served is Served.PARTLY and verdict.dropped == (doubtful,)
    assert schedules.best(sure, planned.mode) and not schedules.best(doubtful, planned.mode)
    assert not device.ratios and verdict.reason.startswith("all tuned schedules together: slower")


def test_a_record_of_the_default_is_no_matter_of_a_race(storage: Storage, planned: Planned) -> None:
    _record(storage, planned, 0, _default(planned, 0), ratio=1.0)
    found = select_schedules([planned], storage, ours())
    assert (found.verdict.served, found.verdict.outcome) == (Served.DEFAULT, "same")
    assert found.known == 1 and storage.ledger.race_counts() == {}


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (ours(runnable=False), "the fake does not run target"),
        (ours(error=DeviceError("board 'b' does not answer")), "board 'b' does not answer"),
    ],
)
def test_what_a_device_cannot_race_is_decided_by_its_kernels(
    storage: Storage, planned: Planned, device: FakeDevice, why: str
) -> None:
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    verdict = select_schedules([planned], storage, device).verdict
    assert (verdict.served, verdict.outcome) == (Served.TUNED, "not_run") and why in verdict.reason
    assert storage.ledger.race_counts() == {}, "the next job asks again"


def test_without_a_race_records_are_served_and_said_to_be_unraced(
    storage: Storage, planned: Planned
) -> None:
    """Records that come from other models: each kernel was faster alone, and no race compared
    them."""
    _record(storage, planned, 0, _other(planned, 0), ratio=0.8)
    found = select_schedules([planned], storage)
    assert (found.verdict.served, found.verdict.outcome) == (Served.TUNED, "not_run")
    assert found.schedules.best(planned.workloads[0][0].key, planned.mode) == _other(planned, 0)
    text = selected_line(found)
    assert "1 of 2 workloads known" in text and "not raced end to end" in text
    assert storage.ledger.race_counts() == {}, "what nobody raced is no verdict"


def _reloaded(
    storage: Storage, planned: Planned, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The model in a file, and command lines that see the database of this test."""
    path = folder / "two.onnx"
    assert isinstance(planned.request.model, bytes)
    path.write_bytes(planned.request.model)
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(storage.blobs.place.folder.parent))
    return path


WAYS: list[tuple[str, ...]] = [
    ("compile", "{model}", "-o", "{folder}/artifact"),
    ("run", "{model}", "--inputs", "{folder}/in.npz", "--outputs", "{folder}/out.npz"),
    ("bench", "{model}", "--rounds", "1", "--seconds", "0.01"),
    ("show", "kernels", "{model}"),
]


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("outcome", ["default", "faster", "not raced"])
def test_every_way_to_serve_records_follows_the_verdict(
    storage: Storage,
    planned: Planned,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    way: tuple[str, ...],
    outcome: str,
) -> None:
    path = _reloaded(storage, planned, tmp_path, monkeypatch)
    np.savez(tmp_path / "in.npz", x=np.ones((ROWS, INNER), np.float32))
    other = _other(planned, 0)
    _record(storage, planned, 0, other, ratio=0.99)
    if outcome != "not raced":
        select_schedules([planned], storage, ours([1.0 if outcome == "default" else 0.9]))
    compiled: list[Schedule] = []
    build = ProgramBuilder.build

    def spy(self: ProgramBuilder, plan: GraphPlan, spare: int = 1) -> CompiledProgram:
        program = build(self, plan, spare)
        compiled.extend(program.schedules.values())
        return program

    monkeypatch.setattr(ProgramBuilder, "build", spy)
    arguments = [part.format(model=path, folder=tmp_path) for part in way]
    assert run_cli(arguments) == 0
    out = capsys.readouterr().out
    expected = _default(planned, 0) if outcome == "default" else other
    assert expected in compiled and (other in compiled) is (outcome != "default")
    says = {"default": "the defaults are served", "faster": "faster", "not raced": "not raced"}
    assert "1 of 2 workloads known" in out and says[outcome] in out


def test_sizes_that_jobs_tuned_are_settled_when_they_are_met(
    storage: Storage, tmp_path: Path
) -> None:
    """Two sizes of one model: a race found one of them not to win. All others have one program."""
    model = _model([helper.make_node("MatMul", ["x", "w"], ["y"])], "rows")
    plans = {rows: plan_model(ModelRequest(model, dims={"rows": rows})) for rows in (32, 64)}
    for rows, planned in plans.items():
        _record(storage, planned, 0, _other(planned, 0), ratio=0.99)
        storage.tuned_sizes.add(model_digest(model), planned.mode, {"rows": rows})
    select_schedules([plans[64]], storage, ours([1.0]))
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    known = KnownModel(str(path), storage)
    executable = known.compile()
    for rows in (7, *plans, 50, 1, 33):
        (y,) = executable.run({"x": np.ones((rows, INNER), np.float32)})
        np.testing.assert_array_equal(y, np.full((rows, COLUMNS), INNER, np.float32))
    assert [s.verdict.outcome for s in known.selected] == ["same", "not_run", "tie"]
    assert [s.verdict.served for s in known.selected[1:]] == [Served.TUNED, Served.DEFAULT]
    keys = [plans[rows].workloads[0][0].key for rows in plans]
    assert known.best(keys[0], plans[32].mode) == _other(plans[32], 0)
    assert known.best(keys[1], plans[32].mode) is None


def test_a_tuned_range_is_served_and_no_size_of_its_own(storage: Storage) -> None:
    model = _model([helper.make_node("MatMul", ["x", "w"], ["y"])], "rows")
    (planned,) = plan_sizes(ModelRequest(model), {"rows": ("1..64",)})
    _record(storage, planned, 0, _other(planned, 0), ratio=0.99)
    known = KnownModel(model, storage)
    executable = known.compile({"rows": "1..64"})
    (workload, _), *_ = planned.workloads
    assert known.best(workload.key, planned.mode) == _other(planned, 0)
    size = dict(planned.sizes)["rows"]  # the typical one, at which it is planned
    for rows in (size, 64, 3):
        (y,) = executable.run({"x": np.ones((rows, INNER), np.float32)})
        np.testing.assert_array_equal(y, np.full((rows, COLUMNS), INNER, np.float32))
    assert [s.verdict.outcome for s in known.selected] == ["not_run"]
    with pytest.raises(InvalidInputError, match=r"'rows'\) is 65, expected 1\.\.64"):
        executable.run({"x": np.ones((65, INNER), np.float32)})


def test_records_of_another_target_are_not_served(storage: Storage, planned: Planned) -> None:
    from tilewright.compiler.targets.host import resolve_target

    other = resolve_target("x86-64-v3" if planned.target.name != "x86-64-v3" else "x86-64-v4")
    key = RecordKey(planned.workloads[0][0].key, other.key)
    measured = Measurement(Status.OK, samples_seconds=(1e-9,))
    storage.records.add_record(TuningRecord(key, _other(planned, 0), measured))
    for more in ({"threads": 2}, {"numerics": "strict"}):
        here = replace(RecordKey(key.workload_key, planned.target.key), **more)  # type: ignore[arg-type]
        storage.records.add_record(TuningRecord(here, _other(planned, 0), measured))
    found = select_schedules([planned], storage, ours())
    assert found.known == 0 and found.verdict.outcome == "same"
    assert found.schedules.best(key.workload_key, planned.mode) is None


def test_verdicts_read_back_and_speak() -> None:
    verdict = Verdict(Served.PARTLY, "faster", Comparison("untuned", (0.9, 0.91)), ("k",), "why")
    assert Verdict.from_json(verdict.to_json()) == verdict
    text = verdict_text(verdict.to_json())
    assert "1 task falls back to its default; tuned: 1.10x untuned (1.10x to 1.11x), faster" in text


def test_metrics_count_what_fell_back(storage: Storage, client: TestClient) -> None:
    for served in ("tuned", "default", "partly", "default"):
        add(storage.ledger, "i", "j", served, {})
    text = client.get("/v1/metrics").text
    assert "tilewright_fallbacks_total 3.0" in text
    assert 'tilewright_served_total{served="default"} 2.0' in text
