"""Models that exceed a tuner's limits: each ends in its child, and no other job waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.unit.service.child_processes import bounded_children, halt_first, works
from tests.unit.service.tuners import loop, model_bytes, queue_job, running
from tests.waiting import until
from tilewright.compiler.errors import CompilerError, InvalidModelError, OutOfMemoryError
from tilewright.compiler.mode import Mode
from tilewright.compiler.process import bounded
from tilewright.compiler.process.bounded import Limits, NoAnswer, Reason
from tilewright.compiler.runtime.memory import total_bytes
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.timings import Timings
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import Job
from tilewright.service.jobs.pipeline import run_job
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan import bounded_planning
from tilewright.service.jobs.plan.bounded_planning import plan_bounded, planning_limits
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.segment_planning import plan_programs
from tilewright.service.jobs.process import tuner_process
from tilewright.service.jobs.process.interrupts import JobCancelled
from tilewright.service.jobs.process.tuner_process import TunerProcess
from tilewright.service.settings import Settings
from tilewright.tuner.cancel import AnyToken, CancelToken

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="limits are Linux's")

LIMITS = Limits(1 << 30, 60.0)

SECONDS = 6.0
"""Seconds that a tuner's child may take here. A tiny model takes half of a second, of a processor
that other tests may keep busy."""


def _model(nodes: list[NodeProto], **constants: object) -> bytes:
    graph = helper.make_graph(
        nodes,
        "crafted",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.asarray(v, np.int64), k) for k, v in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = made.SerializeToString()
    return data


def endless() -> bytes:
    """Products of constants, of integers: folding them takes hours, and a quarter of a GiB."""
    ones = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("ConstantOfShape", ["sides"], ["a"], value=ones),
        helper.make_node("MatMul", ["a", "a"], ["b"]),
        helper.make_node("ReduceMax", ["b"], ["c"], keepdims=0),
        helper.make_node("Cast", ["c"], ["d"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    return _model(nodes, sides=[4096, 4096])


def huge() -> bytes:
    """Folding it takes 1.25 GiB: a value of 256 MiB, and copies in other types."""
    ones = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        helper.make_node("ConstantOfShape", ["length"], ["a"], value=ones),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("CumSum", ["b", "zero"], ["c"]),
        helper.make_node("ReduceSum", ["c", "axes"], ["d"], keepdims=0),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    return _model(nodes, length=[1 << 26], zero=0, axes=[0])


def _spec(model: bytes) -> JobSpec:
    return JobSpec(model, Mode(resolve_target("x86-64-v3")))


def test_a_plan_from_a_child_is_the_same() -> None:
    spec, timings = _spec(model_bytes()), Timings()
    (here,) = plan_programs(spec.request, spec.options.sizes)
    (there,) = plan_bounded(spec, LIMITS, CancelToken(), timings)
    assert there.request == here.request
    assert str(there.graph) == str(here.graph)
    assert [each.key for each in tasks_of(there)] == [each.key for each in tasks_of(here)]
    # whatever the hash of a text or of None is here
    assert there.plan.placements == here.plan.placements
    assert {there.plan.placements[v].layout for v in there.plan.placements} == {
        here.plan.placements[v].layout for v in here.plan.placements
    }
    np.testing.assert_array_equal(there.graph.constants["w"], here.graph.constants["w"])
    assert {"import", "partition", "planning child"} <= timings.seconds().keys()
    assert timings.seconds()["planning child"] > 0.1, "that of its start, too"


def test_what_is_wrong_with_a_model_is_told() -> None:
    with pytest.raises(InvalidModelError, match="the model is not an ONNX model"):
        plan_bounded(_spec(b"nonsense"), LIMITS, CancelToken())


def test_a_model_that_takes_more_memory_is_refused() -> None:
    said = (
        r"^reading and planning the model takes more memory than 0\.25 GiB "
        r"\(TILEWRIGHT_PLANNING_MEMORY_BYTES\)$"
    )
    with pytest.raises(OutOfMemoryError, match=said):
        plan_bounded(_spec(huge()), replace(LIMITS, memory_bytes=1 << 28), CancelToken())


def test_a_model_that_takes_more_time_is_refused() -> None:
    said = r"^reading and planning the model takes longer than 1 s \(TILEWRIGHT_PLANNING_SECONDS\)$"
    with pytest.raises(CompilerError, match=said):
        plan_bounded(_spec(endless()), replace(LIMITS, seconds=1.0), CancelToken())


def test_a_bug_in_a_pass_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = NoAnswer(Reason.CRASHED, "KeyError: 'k0_out.room'", "Traceback ...")
    monkeypatch.setattr(bounded, "run", lambda *given: bug)
    with pytest.raises(CompilerError, match=r"the model failed: KeyError: 'k0_out.room'"):
        plan_bounded(_spec(model_bytes()), LIMITS, CancelToken())


def test_a_job_that_is_stopped_has_no_plan() -> None:
    paused = CancelToken()
    paused.cancel("paused")
    with pytest.raises(JobCancelled):
        plan_bounded(_spec(endless()), LIMITS, AnyToken((CancelToken(), paused)))


def test_limits_are_settings_and_by_default_a_share_of_the_machine() -> None:
    stated = planning_limits(Settings(planning_memory_bytes=7 << 30, planning_seconds=9.0))
    assert (stated.memory_bytes, stated.seconds) == (7 << 30, 9.0)
    total = total_bytes()
    assert total is not None
    assert planning_limits(Settings()).memory_bytes == total // 2


def test_a_machine_that_does_not_say_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_planning, "total_bytes", lambda: None)
    assert planning_limits(Settings()).memory_bytes == 8 << 30


def _job(storage: Storage, model: bytes) -> Job:
    digest = storage.models.add(model, "crafted").digest
    return queue_job(storage, digest, options={"trials": 4, "seconds": None})


@pytest.fixture
def limited(
    settings: Settings, storage: Storage, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], TunerProcess]:
    """A tuner whose children may take so many seconds."""
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    monkeypatch.setattr(tuner_process, "planning_limits", planning_limits)

    def make(seconds: float) -> TunerProcess:
        limits = {"planning_seconds": seconds, "tuner_poll_seconds": 0.05, "tuner_jobs": 1}
        return TunerProcess(settings.model_copy(update=limits), storage, "limited")

    return make


def test_an_endless_model_holds_up_no_other_job(
    storage: Storage, limited: Callable[[float], TunerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One, as many as this tuner works on at a time, before a tiny one."""
    halt_first(monkeypatch, SECONDS)
    crafted = _job(storage, endless())
    tiny = _job(storage, model_bytes())
    others = bounded_children()
    with running(limited(SECONDS)):
        until(lambda: storage.jobs.get(tiny.id).state.final, 300.0)
    assert storage.jobs.get(tiny.id).state is JobState.SUCCEEDED
    ended = storage.jobs.get(crafted.id)
    assert ended.state is JobState.FAILED
    assert ended.error is not None
    assert ended.error.endswith(f"takes longer than {SECONDS:g} s (TILEWRIGHT_PLANNING_SECONDS)")
    assert bounded_children() == others


@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_the_child_of_a_job_that_is_stopped_is_gone_within_a_second(
    storage: Storage, limited: Callable[[float], TunerProcess], stop: str
) -> None:
    others = bounded_children()
    with running(limited(600.0)):
        job = _job(storage, endless())
        until(lambda: any(map(works, bounded_children() - others)))
        getattr(storage.jobs, stop)(job.id)
        begun = time.monotonic()
        until(lambda: bounded_children() == others)
        assert time.monotonic() - begun < 1.0
    expected = {"cancel": JobState.CANCELLED, "pause": JobState.PAUSED}
    assert storage.jobs.get(job.id).state is expected[stop]


def test_a_tuner_that_is_told_to_end_gives_the_job_back(
    storage: Storage, limited: Callable[[float], TunerProcess]
) -> None:
    others = bounded_children()
    with running(limited(600.0)):
        job = _job(storage, endless())
        until(lambda: bounded_children() > others)
    assert bounded_children() == others
    assert storage.jobs.get(job.id).state is JobState.QUEUED
