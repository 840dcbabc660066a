"""Runs on a device that a worker stands for: a real worker behind the real application."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from tests.small_program import compile_program
from tests.unit.service.leased import Call, broken, loadable, states, worker_process, worker_thread
from tests.waiting import until
from tilewright.compiler.targets.device import find_device
from tilewright.compiler.targets.host import host_target
from tilewright.db.engine import writing
from tilewright.db.storage import Storage
from tilewright.db.stores.blame import leases as leases_table
from tilewright.db.stores.blame import workers as workers_table
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.leases import RequestState
from tilewright.db.stores.workers import Health
from tilewright.service.jobs.device.device import DeviceError, Loadable
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.service.jobs.inputs.given_inputs import GivenInputs
from tilewright.service.jobs.process.interrupts import Interrupted
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.model_runs import draw_inputs
from tilewright.tuner.measure.run_packing import pack_weights
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import INPUT_SEED

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


@pytest.fixture
def worker(server: Any, owner: str, tmp_path: Path) -> Iterator[None]:
    with worker_thread(server.url, owner, tmp_path / "spool"):
        yield


@pytest.mark.usefixtures("worker")
def test_nothing_refers_to_the_blobs_of_a_run_that_is_over(
    device: LeasedDevice, model: Loadable, outputs: dict[str, np.ndarray], storage: Storage
) -> None:
    """They stay for the next run, which sends the same weights, until the sweep deletes them."""
    before = set(storage.blobs.digests())
    with device:
        device.check(model, 1, SEED, outputs)
        _, weights = pack_weights(model.program, model.weights)
        assert set(storage.blobs.digests()) - before >= weights.keys()
    storage.blobs.sweep(-1.0)
    assert set(storage.blobs.digests()) == before


@pytest.mark.usefixtures("worker")
def test_a_worker_runs_programs_on_the_inputs_that_are_given(
    storage: Storage, job: str, model: Loadable
) -> None:
    """A sample if one has the shapes of the program, and a value if one is given."""
    executable = model.load(1)
    (port,) = executable.program.inputs
    samples = tuple({port.name: np.full(port.shape, n, np.float32)} for n in (2.0, 3.0))
    for given in (GivenInputs(samples), GivenInputs((), {port.name: 0.5})):
        (y,) = executable.run(given.draw([port], INPUT_SEED + 1), labels=False)
        tokens = CancelToken(), CancelToken()
        with LeasedDevice(storage, job, host_target(), *tokens, given=given) as device:
            assert device.check(model, 1, INPUT_SEED + 1, {"y": y}).errors == {"y": 0.0}
            assert device.race([[model], [model]], 1).incumbent_seconds > 0
            assert (device.profile(model, 1, 1) > 0).all()


@pytest.mark.usefixtures("worker")
def test_a_program_that_crashes_or_hangs_is_named_and_the_next_one_runs(
    storage: Storage, job: str, model: Loadable, outputs: dict[str, np.ndarray]
) -> None:
    tokens = CancelToken(), CancelToken()
    with LeasedDevice(storage, job, host_target(), *tokens, limit_seconds=4.0) as device:
        with pytest.raises(DeviceError, match=r"worker 'board': killed by SIG.* 'run'") as crashed:
            device.check(broken(model, "call void @llvm.trap()"), 1, SEED, outputs)
        assert crashed.value.ran
        with pytest.raises(DeviceError, match="within 4 seconds in the step 'run'") as hung:
            device.check(broken(model, "br label %entry"), 1, SEED, outputs)
        assert hung.value.ran
        missing = replace(model, link=broken(model, "ret void", only=1).link)
        with pytest.raises(DeviceError, match="the library has no function"):
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
    with worker_thread(server.url, owner, tmp_path / "spool", cache_bytes=1 << 20):
        large = {"y": np.zeros(1 << 18, np.float32)}
        sentence = r"needs \d+ bytes of blobs, the cache of this worker holds 1048576"
        with pytest.raises(DeviceError, match=sentence):
            device.check(model, 1, SEED, large)
        assert not requested
        # blobs that fit are accepted, once the earlier ones have left the cache
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
    variants.append(loadable(compile_program(host_target().with_vector_bits(128))))
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
    with writing(storage.engine) as connection:  # its lease is not renewed, so it expires
        connection.execute(sa.update(leases_table).values(deadline=0.0))
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


def test_what_comes_back_has_a_limit(device: LeasedDevice, model: Loadable) -> None:
    (port,) = model.program.outputs
    program = replace(model.program, outputs=(replace(port, shape=(1 << 23,)),))
    with pytest.raises(DeviceError, match="brings back outputs of at most 16777216 bytes"):
        device.check(replace(model, program=program), 1, SEED, {}, ["y"])


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
