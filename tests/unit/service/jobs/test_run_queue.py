"""Runs of a job in the queue: the worker that has them, and the results for another life of the
job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.small_program import compile_program
from tests.unit.service.leased import Call, answer, claim_one, loadable, states, worker_thread
from tests.waiting import until
from tilewright.compiler.targets.device import find_device
from tilewright.compiler.targets.host import host_target
from tilewright.db.review_state import Attestation, ClaimReporter
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest, RequestState
from tilewright.service.jobs.device import run_queue
from tilewright.service.jobs.device.device import DeviceError, Loadable
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.service.jobs.process.interrupts import Interrupted, JobCancelled
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.model_runs import draw_inputs
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.run_results import Race, RunResult, RunStatus

SEED = 5


@pytest.fixture(scope="module")
def model() -> Loadable:
    return loadable(compile_program())


@pytest.fixture(scope="module")
def outputs(model: Loadable) -> dict[str, np.ndarray]:
    """The model's outputs in this process."""
    executable = model.load(1)
    found = executable.run(draw_inputs(executable.program.inputs, SEED))
    return dict(zip(executable.output_names, found, strict=True))


@pytest.fixture
def job(storage: Storage) -> str:
    return storage.jobs.create(storage.models.add(b"model", "m").digest, "host", "host-key").id


@pytest.fixture
def device(storage: Storage, job: str) -> Iterator[LeasedDevice]:
    with LeasedDevice(storage, job, host_target(), CancelToken(), CancelToken()) as found:
        yield found


@pytest.mark.parametrize("status", [RunStatus.REFUSED, RunStatus.OUT_OF_MEMORY])
def test_what_a_device_was_short_of_is_asked_for_again(
    storage: Storage, job: str, model: Loadable, outputs: dict[str, np.ndarray], status: RunStatus
) -> None:
    """The next life of a job asks again: this one has heard that the device is full."""
    board = storage.workers.register("board", [host_target().key], find_device().to_json())
    for life in range(2):
        with LeasedDevice(storage, job, host_target(), CancelToken(), CancelToken()) as device:
            call = Call(lambda device=device: device.check(model, 1, SEED, outputs))  # type: ignore[misc]
            until(lambda: RequestState.QUEUED in states(storage, job))
            (lease,) = storage.leases.claim(
                board.id, [host_target().key], limit=1, lease_seconds=60
            )
            result = RunResult(lease.request_id, status, "100 bytes are free", worker=board.id)
            storage.leases.complete(lease.lease_id, board.id, f"key {life}", result.to_json())
            with pytest.raises(DeviceError, match="100 bytes are free") as caught:
                call.result()
            assert not caught.value.ran
    assert states(storage, job) == [RequestState.DONE] * 2


def test_a_second_race_is_another_sample(storage: Storage, job: str, model: Loadable) -> None:
    """Of one life: the next one finds both."""
    board = storage.workers.register("board", [host_target().key], find_device().to_json())
    for asked in (True, False):
        with LeasedDevice(storage, job, host_target(), CancelToken(), CancelToken()) as device:
            for number, ratio in enumerate((0.9, 1.1)):
                call = Call(lambda device=device: device.race([[model]] * 2, 1))  # type: ignore[misc]
                if asked:
                    until(lambda: RequestState.QUEUED in states(storage, job))
                    (lease,) = storage.leases.claim(
                        board.id, [host_target().key], limit=1, lease_seconds=60
                    )
                    race = Race(1.0, (Comparison("untuned", (ratio,) * 8),))
                    result = RunResult(lease.request_id, RunStatus.OK, race=race, worker=board.id)
                    storage.leases.complete(
                        lease.lease_id, board.id, f"key {number}", result.to_json()
                    )
                (comparison,) = call.result().comparisons
                assert comparison.ratio == ratio
    assert states(storage, job) == [RequestState.DONE] * 2


def test_a_second_opinion_is_never_what_was_said_before(
    storage: Storage, job: str, model: Loadable
) -> None:
    """Not by the only worker, and not after its tuner was killed between the two races."""
    board = storage.workers.register("board", [host_target().key], find_device().to_json())
    first = ClaimReporter(board.id, "")
    for life in range(2):
        tokens = CancelToken(), CancelToken()
        with LeasedDevice(storage, job, host_target(), *tokens) as device:
            if life == 0:
                call = Call(lambda device=device: device.race([[model]] * 2, 1))  # type: ignore[misc]
                until(
                    lambda: bool(leases := claim_one(storage, board.id)) and answer(storage, leases)
                )
                call.result()
                continue
            again = Call(lambda device=device: device.second_opinion(first).race([[model]] * 2, 1))  # type: ignore[misc]
            until(lambda: bool(leases := claim_one(storage, board.id)) and answer(storage, leases))
            again.result()
    assert states(storage, job) == [RequestState.DONE] * 2
    with LeasedDevice(storage, job, host_target(), CancelToken(), CancelToken()) as device:
        device.second_opinion(first).race([[model]] * 2, 1)  # the next life finds both
        device.race([[model]] * 2, 1)
    assert states(storage, job) == [RequestState.DONE] * 2


def test_a_run_that_its_worker_lets_lie_goes_to_another(
    storage: Storage, job: str, model: Loadable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its place in the queue, and the job learns which worker ran it."""
    monkeypatch.setattr(run_queue, "LOOK_SECONDS", 0.0)
    target = host_target().key
    names = ("busy", "idle")
    busy, idle = (storage.workers.register(n, [target], find_device().to_json()).id for n in names)
    tokens = CancelToken(), CancelToken()
    with LeasedDevice(storage, job, host_target(), *tokens, [busy, idle]) as device:
        call = Call(lambda: device.race([[model]] * 2, 1))
        until(lambda: states(storage, job) == [RequestState.QUEUED])
        assert claim_one(storage, idle) == [], "it is the first one's"
        monkeypatch.setattr(run_queue, "TURN_SECONDS", 0.0)
        until(lambda: bool(leases := claim_one(storage, idle)) and answer(storage, leases))
        assert call.result().worker == idle
    assert states(storage, job) == [RequestState.DONE]


@pytest.mark.parametrize("lost", [False, True])
def test_a_race_says_who_ran_it_unless_several_did(
    storage: Storage, job: str, model: Loadable, device: LeasedDevice, lost: bool
) -> None:
    """Two challengers are two requests; the worker may be lost between them."""
    target = host_target().key
    first, second = (
        storage.workers.register(name, [target], find_device().to_json()).id for name in "ab"
    )
    call = Call(lambda: device.race([[model]] * 3, 1))
    for worker in (first, second if lost else first):
        until(lambda: RequestState.QUEUED in states(storage, job))
        until(lambda: bool(leases := claim_one(storage, worker)) and answer(storage, leases))  # noqa: B023
        if lost:
            storage.workers.drain(first)
    found = call.result()
    assert len(found.comparisons) == 2 and found.worker == ("" if lost else first)
    with device.second_opinion(ClaimReporter(first, "")) as other:
        again = Call(lambda: other.race([[model]] * 2, 2))  # with other threads: another race
        until(lambda: bool(leases := claim_one(storage, second)) and answer(storage, leases))
        assert again.result().worker == second
    # Where the first worker left late, a request for it was given up, and asked of the other.
    done = [state for state in states(storage, job) if state is not RequestState.CANCELLED]
    assert done == [RequestState.DONE] * 3, "all of them are the job's"


def test_nobody_is_waited_for_twice(
    storage: Storage, job: str, model: Loadable, outputs: dict[str, np.ndarray]
) -> None:
    target, interrupt = host_target(), CancelToken()
    with LeasedDevice(storage, job, target, interrupt, CancelToken(), absent_seconds=0.1) as device:
        with pytest.raises(DeviceError, match="no worker"):
            device.check(model, 1, SEED, outputs)
        device._queue._absent_seconds = 3600.0
        with pytest.raises(DeviceError, match="no worker"):
            device.check(model, 1, SEED, outputs)
        storage.workers.register("board", [target.key], find_device().to_json())
        call = Call(lambda: device.check(model, 1, SEED, outputs))
        until(lambda: states(storage, job) == [RequestState.QUEUED])
        interrupt.cancel("shutdown")
        with pytest.raises(Interrupted):
            call.result()


def test_a_cancelled_job_withdraws_its_run(
    storage: Storage, job: str, model: Loadable, outputs: dict[str, np.ndarray]
) -> None:
    cancel = CancelToken()
    storage.workers.register("board", [host_target().key], {})
    with LeasedDevice(storage, job, host_target(), CancelToken(), cancel) as device:
        assert device.facts is None
        call = Call(lambda: device.check(model, 1, SEED, outputs))
        until(lambda: states(storage, job) == [RequestState.QUEUED])
        cancel.cancel("the user")
        with pytest.raises(JobCancelled, match="the user"):
            call.result()
    assert states(storage, job) == [RequestState.CANCELLED]


def test_nobody_there_is_a_sentence(
    storage: Storage, job: str, model: Loadable, outputs: dict[str, np.ndarray]
) -> None:
    tokens = CancelToken(), CancelToken()
    target = host_target()
    with LeasedDevice(storage, job, target, *tokens, absent_seconds=0.1) as device:
        assert not device.runs(target) and device.facts is None
        with pytest.raises(DeviceError, match=rf"no worker for '{target.name}' came within 0\.1"):
            device.check(model, 1, SEED, outputs)
    board = storage.workers.register("board", [target.key], find_device().to_json())
    other = storage.workers.register("other", [target.key], {})
    storage.workers.leave(other.id)
    with LeasedDevice(storage, job, target, *tokens, [other.id], absent_seconds=0.1) as device:
        assert device.runs(target) and device.workers == 0
        with pytest.raises(DeviceError, match=r"worker 'other' did not come within 0\.1 seconds"):
            device.profile(model, 1, 1)
    with LeasedDevice(storage, job, target, *tokens, absent_seconds=0.1) as device:
        call = Call(lambda: device.check(model, 1, SEED, outputs))
        until(lambda: states(storage, job) == [RequestState.QUEUED])
        storage.workers.leave(board.id)
        with pytest.raises(DeviceError, match=r"worker 'board' did not report for 0\.1 seconds"):
            call.result()


def test_another_worker_takes_over_when_the_first_is_lost(
    device: LeasedDevice,
    storage: Storage,
    job: str,
    model: Loadable,
    server: Any,
    owner: str,
    tmp_path: Path,
) -> None:
    gone = storage.workers.register("gone", [host_target().key], find_device().to_json())
    call = Call(lambda: device.profile(model, 1, 1))
    until(lambda: states(storage, job) == [RequestState.QUEUED])
    storage.workers.leave(gone.id)
    with worker_thread(server.url, owner, tmp_path / "spool"):
        assert call.result().size
    assert states(storage, job) == [RequestState.CANCELLED, RequestState.DONE]
    assert device.name == "board"


def test_who_sends_several_workers_does_not_confirm_his_own_while_another_owner_has_one(
    storage: Storage, device: LeasedDevice
) -> None:
    target = host_target().key

    def registered(name: str, owner: str) -> ClaimReporter:
        worker = storage.workers.register(name, [target], {}, owner=owner)
        return ClaimReporter(worker.id, owner)

    def asked(first: ClaimReporter) -> str | None:
        found = device.second_opinion(first)._queue.worker
        return None if found is None else found.id

    assert device.worth(ClaimReporter("gone", "mean")) is Attestation.ONCE, "there is nobody"
    first = registered("w1", "mean")
    assert asked(first) == first.worker and device.worth(first) is Attestation.ONE_WORKER
    second = registered("w2", "mean")
    assert asked(first) == second.worker and device.worth(first) is Attestation.ONE_OWNER
    honest = registered("honest", "honest")
    assert asked(first) == asked(second) == honest.worker
    assert device.worth(first) is device.worth(second) is Attestation.TWO_OWNERS
    assert asked(honest) == first.worker
    assert device.second_opinion(first)._worker_ids == (honest.worker,), "those that tell less wait"
    other = registered("other", "honest")
    assert device.second_opinion(first)._worker_ids == (honest.worker, other.worker)
    storage.leases.submit([NewRequest("r", target, {}, worker_id=honest.worker)])
    storage.leases.claim(honest.worker, [target], limit=1, lease_seconds=60)
    assert device.second_opinion(first)._worker_ids == (other.worker, honest.worker), (
        "the idle one first"
    )
    storage.workers.leave(other.worker)
    storage.workers.drain(honest.worker)
    assert asked(second) == first.worker, "one that takes nothing tells nothing"
