"""Runs on a device that a worker stands for: a real worker process behind the real application."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from compiler.device import find_device
from compiler.target import host_target
from db.engine import writing
from db.standing import Backing, Witness
from db.storage import Storage
from db.stores.blame import workers as workers_table
from db.stores.blobs import BlobStore
from db.stores.leases import NewRequest, RequestState
from db.stores.workers import Health
from service.jobs import run_queue
from service.jobs.device import DeviceError, Loadable
from service.jobs.interrupts import Interrupted, JobCancelled
from service.jobs.leased_device import LeasedDevice
from tests.unit.service.leased import (
    broken,
    compile_program,
    loadable,
    worker_process,
)
from tuner.cancel import CancelToken
from tuner.measure.model_runs import Race, draw_inputs
from tuner.measure.run_packing import pack_weights
from tuner.measure.run_result import RunResult, RunStatus
from tuner.measure.statistics import Comparison

SEED = 5


@pytest.fixture(scope="module")
def model() -> Loadable:
    return loadable(compile_program())


@pytest.fixture(scope="module")
def outputs(model: Loadable) -> dict[str, np.ndarray]:
    """What the model gives in this process."""
    executable = model.load(1)
    found = executable.run(draw_inputs(executable.inputs, SEED))
    return dict(zip(executable.output_names, found, strict=True))


@pytest.fixture
def job(storage: Storage) -> str:
    return storage.jobs.create(storage.models.add(b"model", "m").digest, "host").id


@pytest.fixture
def device(storage: Storage, job: str) -> Iterator[LeasedDevice]:
    with LeasedDevice(storage, job, host_target(), CancelToken(), CancelToken()) as found:
        yield found


@pytest.fixture
def worker(server: Any, owner: str, tmp_path: Path) -> Iterator[None]:
    with worker_process(server.url, owner, tmp_path / "spool", "--name", "board"):
        yield


@pytest.mark.usefixtures("worker")
def test_nothing_refers_to_the_blobs_of_a_run_that_is_over(
    device: LeasedDevice, model: Loadable, outputs: dict[str, np.ndarray], storage: Storage
) -> None:
    """They stay for the next run, which sends the same weights, until the sweep takes them."""
    before = set(storage.blobs.digests())
    with device:
        device.check(model, 1, SEED, outputs)
        _, weights = pack_weights(model.program, model.weights)
        assert set(storage.blobs.digests()) - before >= weights.keys()
    storage.blobs.sweep(-1.0)
    assert set(storage.blobs.digests()) == before


@pytest.mark.usefixtures("worker")
def test_a_program_that_crashes_or_hangs_is_named_and_the_next_one_runs(
    storage: Storage, job: str, model: Loadable, outputs: dict[str, np.ndarray]
) -> None:
    tokens = CancelToken(), CancelToken()
    with LeasedDevice(storage, job, host_target(), *tokens, limit_seconds=4.0) as device:
        with pytest.raises(DeviceError, match=r"worker 'board': killed by SIG.* 'run'") as crashed:
            device.check(broken(model, "call void @llvm.trap()"), 1, SEED, outputs)
        assert crashed.value.ran
        with pytest.raises(DeviceError, match="'run' did not end within 4 seconds") as hung:
            device.check(broken(model, "br label %entry"), 1, SEED, outputs)
        assert hung.value.ran
        missing = replace(model, link=broken(model, "ret void", only=1).link)
        with pytest.raises(DeviceError, match="undefined symbol"):
            device.check(missing, 1, SEED, outputs)
        assert device.check(model, 1, SEED, outputs).errors == {"y": 0.0}


@pytest.mark.usefixtures("worker")
def test_a_device_without_the_memory_refuses_and_fetches_nothing(
    device: LeasedDevice,
    model: Loadable,
    outputs: dict[str, np.ndarray],
    requested: Counter[str],
) -> None:
    vast = replace(model, program=replace(model.program, arena_bytes=1 << 44))
    sentence = r"worker 'board': the run needs \d+ bytes of memory, this device has \d+$"
    with pytest.raises(DeviceError, match=sentence) as refused:
        device.check(vast, 1, SEED, outputs)
    assert not refused.value.ran
    assert not requested


def test_a_cache_that_is_too_small_refuses_and_fetches_nothing(
    device: LeasedDevice,
    model: Loadable,
    server: Any,
    owner: str,
    tmp_path: Path,
    requested: Counter[str],
) -> None:
    with worker_process(server.url, owner, tmp_path / "spool", "--cache-mib", "1"):
        large = {"y": np.zeros(1 << 18, np.float32)}
        sentence = r"needs \d+ bytes of blobs, the cache of this worker holds 1048576"
        with pytest.raises(DeviceError, match=sentence):
            device.check(model, 1, SEED, large)
        assert not requested
        # what fits is done, though not beside what lay there before
        for number in (1, 2):
            small = {"y": np.full(1 << 16, number, np.float32)}
            assert device.check(model, 1, SEED, small).errors == {"y": float("inf")}
        cache = list((tmp_path / "spool").glob("*/0/blobs/*"))
        assert sum(path.stat().st_size for path in cache) <= 1 << 20


@pytest.mark.usefixtures("worker")
def test_five_variants_send_their_weights_once(
    device: LeasedDevice, model: Loadable, requested: Counter[str]
) -> None:
    variants = [loadable(compile_program()) for _ in range(4)]
    variants.append(loadable(compile_program(host_target().narrowed(128))))
    device.race([[model], *([variant] for variant in variants)], 1)
    weights = [set(pack_weights(v.program, v.weights)[1]) for v in (model, *variants)]
    assert weights[0] == weights[4]
    assert weights[0] != weights[5], "the last one packs its weights otherwise"
    asked = {digest: requested[digest] for digest in set().union(*weights)}
    assert set(asked.values()) == {1}


def test_a_killed_worker_is_given_the_run_again(
    device: LeasedDevice, model: Loadable, server: Any, owner: str, tmp_path: Path, job: str
) -> None:
    storage = server.storage
    calls = Call(lambda: device.race([[model], [model]], 1))
    with worker_process(server.url, owner, tmp_path / "spool") as first:
        until(lambda: states(storage, job) == [RequestState.LEASED])
        first.kill()
        first.wait()
    assert states(storage, job) == [RequestState.LEASED]
    with worker_process(server.url, owner, tmp_path / "spool"):
        assert calls.result().comparisons
    (status,) = storage.leases.of_job(job)
    assert (status.state, status.attempt) == (RequestState.DONE, 2)


@pytest.mark.usefixtures("worker")
def test_a_run_is_the_canary_of_the_only_worker(
    storage: Storage, job: str, model: Loadable, outputs: dict[str, np.ndarray]
) -> None:
    until(lambda: bool(storage.workers.list()))
    with writing(storage.engine) as connection:
        pause = {"quarantined_at": 1.0, "quarantine_reason": "it failed", "canary_at": 2.0}
        connection.execute(sa.update(workers_table).values(pause))
    tokens = CancelToken(), CancelToken()
    with LeasedDevice(storage, job, host_target(), *tokens, absent_seconds=30.0) as device:
        assert device.check(model, 1, SEED, outputs).errors == {"y": 0.0}
    assert [worker.health for worker in storage.workers.list()] == [Health.HEALTHY]


def test_a_killed_tuner_finds_what_it_asked_for(
    storage: Storage,
    job: str,
    model: Loadable,
    outputs: dict[str, np.ndarray],
    server: Any,
    owner: str,
    tmp_path: Path,
) -> None:
    interrupt = CancelToken()
    storage.workers.register("board", [host_target().key], find_device().to_json())

    def first_life() -> None:
        with LeasedDevice(storage, job, host_target(), interrupt, CancelToken()) as device:
            device.check(model, 1, SEED, outputs)

    call = Call(first_life)
    until(lambda: states(storage, job) == [RequestState.QUEUED])
    interrupt.cancel("shutdown")
    with pytest.raises(Interrupted, match="shutdown"):
        call.result()
    (registered,) = storage.workers.list()
    (lease,) = storage.leases.claim(registered.id, [host_target().key], limit=1, lease_seconds=60)
    assert all(digest in storage.blobs for digest in lease.blob_digests)
    done = RunResult(lease.request_id, RunStatus.OK, errors={"y": 0.25}, worker=registered.id)
    storage.leases.complete(lease.lease_id, registered.id, "key", done.to_json())
    with LeasedDevice(storage, job, host_target(), CancelToken(), CancelToken()) as device:
        for _ in range(2):
            assert device.check(model, 1, SEED, outputs).errors == {"y": 0.25}
            assert states(storage, job) == [RequestState.DONE]
            # no housekeeping takes it while the job is open
            assert storage.leases.prune(-1000.0) == 0
        # other inputs are another run, and so are those of another job
        call = Call(lambda: device.check(model, 1, SEED + 1, outputs))
        until(lambda: RequestState.QUEUED in states(storage, job))
        storage.leases.cancel(job_id=job)
        with pytest.raises(DeviceError, match="the run was cancelled"):
            call.result()


@pytest.mark.parametrize("status", [RunStatus.REFUSED, RunStatus.OUT_OF_MEMORY])
def test_what_a_device_was_short_of_is_asked_for_again(
    storage: Storage, job: str, model: Loadable, outputs: dict[str, np.ndarray], status: RunStatus
) -> None:
    """By the next life of a job: this one has heard that there is no room."""
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
    first = Witness(board.id, "")
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
            again = Call(lambda device=device: device.beside(first).race([[model]] * 2, 1))  # type: ignore[misc]
            until(lambda: bool(leases := claim_one(storage, board.id)) and answer(storage, leases))
            again.result()
    assert states(storage, job) == [RequestState.DONE] * 2
    with LeasedDevice(storage, job, host_target(), CancelToken(), CancelToken()) as device:
        device.beside(first).race([[model]] * 2, 1)  # the next life finds both
        device.race([[model]] * 2, 1)
    assert states(storage, job) == [RequestState.DONE] * 2


def test_a_run_that_its_worker_lets_lie_goes_to_another(
    storage: Storage, job: str, model: Loadable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its place in the queue, and who ran it is told."""
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
    with device.beside(Witness(first, "")) as other:
        again = Call(lambda: other.race([[model]] * 2, 2))  # with other threads: another race
        until(lambda: bool(leases := claim_one(storage, second)) and answer(storage, leases))
        assert again.result().worker == second


def claim_one(storage: Storage, worker: str) -> list[Any]:
    target = host_target().key
    return list(storage.leases.claim(worker, [target], limit=1, lease_seconds=60))


def answer(storage: Storage, leases: list[Any]) -> bool:
    """A race of one challenger, done by the worker that leased it."""
    (lease,) = leases
    race = Race(1.0, (Comparison("untuned", (0.9,) * 8),))
    result = RunResult(lease.request_id, RunStatus.OK, race=race, worker=lease.worker_id)
    storage.leases.complete(lease.lease_id, lease.worker_id, lease.lease_id, result.to_json())
    return True


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
        with pytest.raises(DeviceError, match=r"worker 'board' was not heard of for 0\.1 seconds"):
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
    with worker_process(server.url, owner, tmp_path / "spool", "--name", "board"):
        assert call.result().size
    assert states(storage, job) == [RequestState.CANCELLED, RequestState.DONE]
    assert device.name == "board"


def test_what_comes_back_has_a_limit(device: LeasedDevice, model: Loadable) -> None:
    (port,) = model.program.outputs
    program = replace(model.program, outputs=(replace(port, shape=(1 << 23,)),))
    with pytest.raises(DeviceError, match="brings back outputs of at most 16777216 bytes"):
        device.check(replace(model, program=program), 1, SEED, {}, ["y"])


# ---- helpers


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each blob was fetched from the service."""
    counts: Counter[str] = Counter()
    read = BlobStore.read

    def counted(self: BlobStore, digest: str, *part: Any) -> Iterator[bytes]:
        counts[digest] += 1
        return read(self, digest, *part)

    monkeypatch.setattr(BlobStore, "read", counted)
    return counts


class Call:
    """A call in a thread of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._found: Any = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._function()
        except (DeviceError, Interrupted, JobCancelled) as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._found


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.01)


def states(storage: Storage, job: str) -> list[RequestState]:
    return [status.state for status in storage.leases.of_job(job)]


def test_who_sends_several_workers_does_not_confirm_his_own_while_another_owner_has_one(
    storage: Storage, device: LeasedDevice
) -> None:
    target = host_target().key

    def registered(name: str, owner: str) -> Witness:
        worker = storage.workers.register(name, [target], {}, owner=owner)
        return Witness(worker.id, owner)

    def asked(first: Witness) -> str | None:
        found = device.beside(first)._queue.worker
        return None if found is None else found.id

    assert device.worth(Witness("gone", "mean")) is Backing.ONCE, "there is nobody"
    first = registered("w1", "mean")
    assert asked(first) == first.worker and device.worth(first) is Backing.ONE_WORKER
    second = registered("w2", "mean")
    assert asked(first) == second.worker and device.worth(first) is Backing.ONE_OWNER
    honest = registered("honest", "honest")
    assert asked(first) == asked(second) == honest.worker
    assert device.worth(first) is device.worth(second) is Backing.TWO_OWNERS
    assert asked(honest) == first.worker
    assert device.beside(first)._worker_ids == (honest.worker,), "those that tell less wait"
    other = registered("other", "honest")
    assert device.beside(first)._worker_ids == (honest.worker, other.worker)
    storage.leases.submit([NewRequest("r", target, {}, worker_id=honest.worker)])
    storage.leases.claim(honest.worker, [target], limit=1, lease_seconds=60)
    assert device.beside(first)._worker_ids == (other.worker, honest.worker), "the idle one first"
    storage.workers.leave(other.worker)
    storage.workers.drain(honest.worker)
    assert asked(second) == first.worker, "one that takes nothing tells nothing"
