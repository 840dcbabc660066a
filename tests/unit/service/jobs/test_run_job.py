"""The column from a job to an artifact: its stages, on any host, for any device."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.service.devices import FakeDevice
from tests.unit.tuner.fakes import FakeQueue
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.errors import CompilerError, UnknownTargetError
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.runtime.artifact import read_artifact
from tilewright.compiler.targets.device import find_device
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.db.storage import Storage
from tilewright.service.jobs.device.device import DeviceError
from tilewright.service.jobs.evidence.certificate import WrongProgramError
from tilewright.service.jobs.evidence.end_to_end import Served
from tilewright.service.jobs.evidence.verification import Verification
from tilewright.service.jobs.pipeline import run_job as run_jobs
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.pipeline.run_job import JobContext, JobOutcome, JobWatcher, run_job
from tilewright.service.jobs.pipeline.tracker import Tracker
from tilewright.service.options import JobBudget, JobOptions
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.events import Event, Finished, Started
from tilewright.tuner.measure.builder import ProcessBuilder

pytestmark = [
    pytest.mark.skipif(not linkers(), reason="no linker"),
    pytest.mark.usefixtures("references_here"),
]


def model_bytes() -> bytes:
    """A product whose number of rows is open."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 64])],
        [numpy_helper.from_array(np.ones((32, 64), np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = made.SerializeToString()
    return data


@dataclass
class Notes(JobWatcher):
    """Remembers the stages; `cancel_at` cancels the job when a phase begins."""

    token: CancelToken = field(default_factory=CancelToken)
    cancel_at: str = ""
    phases: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    tracker: Tracker | None = None
    told: JobOutcome | None = None

    def tuned(self, outcome: JobOutcome) -> None:
        self.told = outcome

    def phase(self, name: str) -> None:
        self.phases.append(name)
        if name == self.cancel_at:
            self.token.cancel("enough")

    def tasks(self, tracker: Tracker) -> None:
        self.phases.append("tuning")
        self.tracker = tracker

    def event(self, event: Event, tracker: Tracker) -> None:
        tracker.take(event)
        self.events.append(type(event).__name__)
        if isinstance(event, Started) and self.cancel_at == "tuning":
            self.token.cancel("enough")


def device(**more: Any) -> FakeDevice:
    """Every schedule has a different time; in races, each challenger takes 0.9 of the incumbent's
    time."""
    queue = FakeQueue(lambda schedule: 1e-6 * (1 + int(schedule.digest[:4], 16) / 65536))
    return FakeDevice([0.9] * 8, runner=queue, **more)


def spec(target: Target, **more: Any) -> JobSpec:
    """A job that draws its candidates at random: other strategies take seconds to choose."""
    dims = {"rows": (16,)} | more.pop("dims", {})
    options = {"trials": 12, "strategy": "random"}
    return JobSpec(model_bytes(), Mode(target), JobOptions(**{**options, "dims": dims, **more}))


def run(
    wanted: JobSpec,
    on: FakeDevice,
    storage: Storage,
    builder: ProcessBuilder,
    watcher: Notes | None = None,
    **more: Any,
) -> JobOutcome:
    watcher = watcher or Notes()
    job_context, job_id = JobContext(storage, builder), more.pop("job_id", "j")
    return run_job(wanted, on, job_context, watcher, job_id=job_id, token=watcher.token, **more)


STAGES = ["importing", "planning", "tuning", "choosing", "building", "verifying"]


@pytest.fixture
def nobody_knows_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuner's machine that no target family describes."""

    def detect() -> Target:
        raise UnknownTargetError("no target family describes this machine")

    monkeypatch.setattr("tilewright.compiler.targets.host.host_target", detect)


@pytest.mark.usefixtures("nobody_knows_the_host")
@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_the_tuners_machine_need_not_run_anything(
    storage: Storage,
    builder: ProcessBuilder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """All stages, with a device of the target that is not this machine."""
    watcher, board = Notes(), device()
    target = resolve_target(name)
    wanted = spec(target, strategy=None)  # the default one
    outcome = run(wanted, board, storage, builder, watcher, output=tmp_path / "a")
    assert watcher.phases == STAGES
    assert outcome.selected is not None and outcome.selected.verdict.served is Served.TUNED
    assert outcome.selected.verdict.comparison is not None and board.raced
    assert outcome.verification is not None and outcome.verification.complete
    here, more = find_device(), [feature.removeprefix("+") for feature in target.features]
    theirs = replace(here, features=(*here.features, *more))
    monkeypatch.setattr("tilewright.compiler.runtime.artifact.this_device", lambda: theirs)
    assert read_artifact(tmp_path / "a").target["name"] == name
    report = outcome.report()
    assert json.loads(json.dumps(report)) == report
    assert report["verified"] and report["device"]["name"] == "the fake"
    assert report["end_to_end"]["outcome"] == "faster"


@pytest.mark.parametrize(("planned", "left"), [(4.5, 12.0), (6.0, 9.0), (60.0, 6.0)])
def test_long_planning_is_paid_by_the_trials(
    storage: Storage,
    builder: ProcessBuilder,
    monkeypatch: pytest.MonkeyPatch,
    planned: float,
    left: float,
) -> None:
    """Planning has 9 s free, and as long again after the trials; half of the budget is for trials,
    whatever planning takes."""
    given: list[float | None] = []
    tune = run_jobs.tune_tasks

    def tune_tasks(*arguments: Any, **more: Any) -> Finished:
        (budget,) = [each for each in arguments if isinstance(each, JobBudget)]
        given.append(budget.seconds)
        return tune(*arguments, **more)

    clock = iter([0.0, planned])
    monkeypatch.setattr(run_jobs, "monotonic", lambda: next(clock))
    monkeypatch.setattr(run_jobs, "tune_tasks", tune_tasks)
    wanted = replace(
        spec(resolve_target("x86-64-v3")), options=JobOptions(1, 12.0, dims={"rows": (16,)})
    )
    run(wanted, device(), storage, builder)
    assert given == [left]


@pytest.mark.parametrize(
    ("seconds", "more"), [(1.0, 2.0), (20.0, 2.0), (60.0, 6.0), (600.0, 10.0), (None, 10.0)]
)
def test_sizes_beside_the_hints_are_verified_for_a_tenth_of_the_budget(
    storage: Storage,
    builder: ProcessBuilder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    seconds: float | None,
    more: float,
) -> None:
    given: list[float] = []
    deliver = run_jobs.deliver_verified

    def deliver_verified(*arguments: Any, more_seconds: float, **rest: Any) -> Any:
        given.append(more_seconds)
        return deliver(*arguments, more_seconds=more_seconds, **rest)

    monkeypatch.setattr(run_jobs, "deliver_verified", deliver_verified)
    wanted = replace(
        spec(resolve_target("x86-64-v3")), options=JobOptions(1, seconds, dims={"rows": (16,)})
    )
    run(wanted, device(), storage, builder, output=tmp_path / "a")
    assert given == [more]


def test_several_sizes_and_padding_go_the_same_way(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path
) -> None:
    wanted = spec(resolve_target("x86-64-v3"), dims={"rows": (4, 16)}, pad=True)
    outcome = run(wanted, device(), storage, builder, output=tmp_path / "a")
    artifact = read_artifact(tmp_path / "a")
    assert [dict(p.sizes) for p in artifact.programs] == [{"rows": 4}, {"rows": 16}]
    assert artifact.ports.pad and len(outcome.served) == 2
    assert [dict(each.sizes) for each in outcome.served] == [{"rows": 4}, {"rows": 16}]


def test_a_weight_limit_that_cannot_be_met_is_said_before_tuning(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path
) -> None:
    wanted = spec(resolve_target("x86-64-v3"), weight_limit=64)
    watcher, board = Notes(), device()
    with pytest.raises(CompilerError, match="the limit is 64"):
        run(wanted, board, storage, builder, watcher, output=tmp_path / "a")
    assert watcher.phases == ["importing"] and not board.runner.submitted
    assert not (tmp_path / "a").exists()


def test_a_weight_limit_holds_in_races_too(
    storage: Storage, builder: ProcessBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race runs the same programs that are served."""
    limits: list[int | None] = []
    make = ProgramBuilder.__init__

    def spy(self: ProgramBuilder, *arguments: Any, **more: Any) -> None:
        make(self, *arguments, **more)
        limits.append(self._limit)

    monkeypatch.setattr(ProgramBuilder, "__init__", spy)
    board = device()
    run(spec(resolve_target("x86-64-v3"), weight_limit=1 << 20), board, storage, builder)
    assert board.raced and set(limits) == {1 << 20}


def test_what_was_tuned_is_told_before_the_artifact_can_fail(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path
) -> None:
    watcher = Notes()
    board = device(error=DeviceError("the program crashed on board 'b'", ran=True))
    with pytest.raises(WrongProgramError):
        run(
            spec(resolve_target("x86-64-v3")),
            board,
            storage,
            builder,
            watcher,
            output=tmp_path / "a",
        )
    assert watcher.told is not None and watcher.told.finished.trials_done


def test_what_is_known_is_not_measured_again(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path
) -> None:
    wanted = spec(resolve_target("x86-64-v3"))
    first = run(wanted, device(), storage, builder)
    assert first.finished.trials_done and first.verification is None
    board = device()
    second = run(wanted, board, storage, builder, job_id="k", output=tmp_path / "a")
    assert not board.runner.submitted and not board.raced
    assert second.report()["tasks_from_database"] == 1
    assert second.selected is not None and first.selected is not None
    assert second.selected.verdict == first.selected.verdict


@pytest.mark.parametrize("deliver", [False, True])
def test_a_cancelled_job_delivers_only_if_it_is_asked_to(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path, deliver: bool
) -> None:
    watcher = Notes(cancel_at="tuning")
    outcome = run(
        spec(resolve_target("x86-64-v3")),
        device(),
        storage,
        builder,
        watcher,
        output=tmp_path / "a",
        deliver_cancelled=deliver,
    )
    assert outcome.cancelled and (tmp_path / "a").exists() is deliver
    assert watcher.phases == (STAGES if deliver else STAGES[:3])
    assert (outcome.selected is not None) is deliver


def test_a_device_that_cannot_run_the_model_is_named(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path
) -> None:
    """The kernels were measured; the whole model was not run, and the report gives the reason."""
    board = device(error=DeviceError("board 'b' has 100 bytes, 4096 are needed"))
    outcome = run(spec(resolve_target("x86-64-v3")), board, storage, builder, output=tmp_path / "a")
    report = outcome.report()
    assert report["verified"] is False and "board 'b' has 100 bytes" in report["not_verified"]
    assert report["end_to_end"]["outcome"] == "not_run"
    assert (tmp_path / "a").exists()
    # a detector that keeps another box has outputs of other extents
    apart = replace(outcome, verification=Verification(float("inf"))).report()
    assert apart["verified"] and apart["largest_error"] is None
    json.dumps(apart, allow_nan=False)


def test_an_artifact_that_crashes_on_the_device_is_not_delivered(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path
) -> None:
    board = device(error=DeviceError("the program crashed on board 'b'", ran=True))
    with pytest.raises(WrongProgramError, match="crashed on board"):
        run(spec(resolve_target("x86-64-v3")), board, storage, builder, output=tmp_path / "a")
    assert not (tmp_path / "a").exists()
