"""Programs verified by a child: the same findings, and a limit for references that never end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tests.unit.service.child_processes import bounded_children, halt_first, works
from tests.unit.service.tuners import loop, model_bytes, queue_job, running
from tests.waiting import until
from tilewright.compiler.mode import Mode
from tilewright.compiler.process.bounded import Limits
from tilewright.compiler.program.builder import build_program
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import Job
from tilewright.service.jobs.device.device import DeviceError
from tilewright.service.jobs.device.loadables import of_compiled
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.evidence.bounded_verification import (
    BoundedVerifier,
    VerificationBound,
    verification_limits,
)
from tilewright.service.jobs.evidence.certificate import WrongProgramError
from tilewright.service.jobs.evidence.verification import Verification, verify_program
from tilewright.service.jobs.pipeline import run_job
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_model
from tilewright.service.jobs.process import tuner_process
from tilewright.service.jobs.process.tuner_process import TunerProcess
from tilewright.service.settings import Settings
from tilewright.tuner.cancel import CancelToken

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="limits are Linux's")

HERE = LocalDevice()
"""It measures no kernel, and so starts no child."""

LIMITS = Limits(1 << 30, 60.0)


def endless() -> bytes:
    """A loop of 10**8 steps, which is planned in no time: 209 bytes."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "b",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["m", "", "x"], ["y"], body=body)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [helper.make_tensor("m", TensorProto.INT64, [], [10**8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = model.SerializeToString()
    return data


def large() -> bytes:
    """Its reference holds 1 GiB, and its program as much. Its inputs are small."""
    rows, columns = 1 << 14, 1 << 14
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "z"], ["y"])],
        "large",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 1]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, columns]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, columns])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = model.SerializeToString()
    return data


def _verified(
    planned: Planned, limits: Limits = LIMITS, token: CancelToken | None = None
) -> Verification:
    compiled = build_program(planned.plan, None, Mode(planned.target))
    bound = VerificationBound(limits, token or CancelToken())
    verifier = BoundedVerifier((planned,), HERE, bound, 10.0)
    verifier.verify(lambda _: of_compiled(compiled))
    return verifier.found


def test_a_child_finds_what_this_process_finds() -> None:
    planned = plan_model(ModelRequest(model_bytes()))
    compiled = build_program(planned.plan, None, Mode(planned.target))
    here = verify_program(planned, lambda _: of_compiled(compiled), HERE)
    assert here.complete
    assert _verified(planned) == here


def test_a_wrong_program_is_wrong() -> None:
    planned = plan_model(ModelRequest(model_bytes()))
    constants = {name: array + 1 for name, array in planned.graph.constants.items()}
    wrong = replace(planned, graph=replace(planned.graph, constants=constants))
    with pytest.raises(WrongProgramError, match="the values before it are right"):
        _verified(wrong)


def test_a_crash_on_the_device_is_a_wrong_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's message passes through the child."""

    def crash(*arguments: object) -> None:
        raise DeviceError("the program crashed on this machine", ran=True)

    monkeypatch.setattr(LocalDevice, "check", crash)
    with pytest.raises(WrongProgramError, match="crashed on this machine"):
        _verified(plan_model(ModelRequest(model_bytes())))


def test_a_reference_that_takes_more_than_it_may_is_told() -> None:
    endless_one = plan_model(ModelRequest(endless()))
    assert _verified(endless_one, replace(LIMITS, seconds=1.0)) == Verification(
        None,
        not_run="the reference of the model takes longer than 1 s "
        "(TILEWRIGHT_VERIFICATION_SECONDS)",
    )
    found = _verified(plan_model(ModelRequest(large())), replace(LIMITS, memory_bytes=1 << 28))
    assert found == Verification(
        None,
        not_run="the reference of the model takes more memory than 0.25 GiB "
        "(TILEWRIGHT_PLANNING_MEMORY_BYTES)",
    )


def _job(storage: Storage, model: bytes) -> Job:
    digest = storage.models.add(model, "crafted").digest
    return queue_job(storage, digest, options={"trials": 4, "seconds": None})


@pytest.fixture
def limited(
    settings: Settings, storage: Storage, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], TunerProcess]:
    """A tuner whose references may take so many seconds."""
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    monkeypatch.setattr(tuner_process, "verification_limits", verification_limits)

    def make(seconds: float) -> TunerProcess:
        limits = {"verification_seconds": seconds, "tuner_poll_seconds": 0.05, "tuner_jobs": 1}
        return TunerProcess(settings.model_copy(update=limits), storage, "limited")

    return make


def test_an_endless_loop_holds_up_no_other_job(
    storage: Storage, limited: Callable[[float], TunerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One, as many as this tuner works on at a time, before a tiny one."""
    halt_first(monkeypatch, 2.0)
    crafted = _job(storage, endless())
    tiny = _job(storage, model_bytes())
    others = bounded_children()
    with running(limited(2.0)):
        until(lambda: storage.jobs.get(tiny.id).state.final, 300.0)
    assert storage.jobs.get(tiny.id).state is JobState.SUCCEEDED
    result = storage.jobs.get(crafted.id).result
    assert result is not None
    assert "takes longer than 2 s" in result["not_verified"]
    assert bounded_children() == others


@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_the_child_of_a_job_that_is_stopped_is_gone_within_a_second(
    storage: Storage, limited: Callable[[float], TunerProcess], stop: str
) -> None:
    others = bounded_children()
    with running(limited(600.0)):
        job = _job(storage, endless())
        until(lambda: storage.jobs.get(job.id).state is JobState.VERIFYING)
        until(lambda: any(map(works, bounded_children() - others)))
        getattr(storage.jobs, stop)(job.id)
        begun = time.monotonic()
        until(lambda: bounded_children() == others)
        assert time.monotonic() - begun < 1.0
    expected = {"cancel": JobState.CANCELLED, "pause": JobState.PAUSED}
    assert storage.jobs.get(job.id).state is expected[stop]
