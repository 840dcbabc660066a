"""`kill -9` of the web process, the tuner and the worker in every state of a lease.

Afterwards the job ends, and no trial that was finished is measured twice or lost. A measurement is
finished when the worker has it in its spool; the worker logs each, so its log is the witness.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.fleet import Fleet, answers, free_port, until
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import RequestState, RequestStatus
from tilewright.service.api.schemas.jobs import JobRequest
from tilewright.service.client import Client
from tilewright.service.embedded import read_token
from tilewright.service.jobs.report.replaying import repeat
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner.protocol.measurement import Phase
from tilewright.tuner.protocol.messages import kind_of, read_request
from tilewright.tuner.protocol.version import RequestKind

SEEDS = [int(text) for text in os.environ.get("TILEWRIGHT_KILL_SEEDS", "1").split(",")]
"""Orders and moments of the kills; more of them for a longer test."""
TRIALS = 170

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


def small_model(path: Path) -> None:
    """Two convolutions and a classifier: a few tasks with large schedule spaces."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        scale = np.float32(np.prod(shape[1:]) ** -0.5)
        return rng.standard_normal(shape, dtype=np.float32) * scale

    parameters = {"w1": weights(16, 3, 3, 3), "w2": weights(32, 16, 3, 3), "w3": weights(10, 32)}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c2"], ["g"], "pool"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3"], ["y"], "fc", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(array, name) for name, array in parameters.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())


class KilledFleet(Fleet):
    """A web process, a tuner and a worker."""

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.settings = Settings(data_folder=folder / "data")
        commands = {
            "web": [
                "-m",
                "tilewright.service.cli",
                "server",
                "run",
                "--no-tuner",
                "--no-worker",
                "--port",
                str(port),
            ],
            "tuner": ["-m", "tilewright.service.cli", "server", "tuner"],
            "worker": [
                *("-m", "tilewright.service.worker", "--server", self.url),
                *("--token-file", str(folder / "data" / "token"), "--spool", str(self.spool)),
            ],
        }
        environment = {
            "TILEWRIGHT_DATA_FOLDER": str(folder / "data"),
            "TILEWRIGHT_LEASE_SECONDS": "8",
            "TILEWRIGHT_HEARTBEAT_SECONDS": "0.5",
            "TILEWRIGHT_JOB_LEASE_SECONDS": "1",
            "TILEWRIGHT_LONG_POLL_SECONDS": "2",
            "TILEWRIGHT_BUILDERS": "1",
            # it tidies continuously: stored results are deleted a minute later, and nothing else
            "TILEWRIGHT_HOUSEKEEPING_SECONDS": "0.5",
            "TILEWRIGHT_KEEP_FINISHED_SECONDS": "60",
        }
        super().__init__(folder, commands, environment)

    def spooled(self) -> bool:
        return any(self.spool.rglob("spool/*.json"))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[KilledFleet]:
    started = KilledFleet(tmp_path)
    try:
        yield started
    finally:
        started.stop()
        for log in sorted(tmp_path.glob("*.log")):  # shown where a test fails
            sys.stderr.write(f"{log.name}\n{log.read_text(errors='replace')[-4000:]}\n")


class Drama:
    """Kills processes when a lease of the job is in a given state."""

    def __init__(self, fleet: KilledFleet, storage: Storage, job_id: str, seed: int) -> None:
        self.fleet = fleet
        self.storage = storage
        self.job_id = job_id
        self.random = random.Random(seed)
        self.seen: set[tuple[str, str]] = set()
        self.requests: dict[str, RequestStatus] = {}

    def note(self) -> None:
        """Keep the database's rows of the job's requests: it deletes those that are stored."""
        self.requests |= {r.request_id: r for r in self.storage.leases.of_job(self.job_id)}

    def ended(self) -> bool:
        self.note()
        return self.storage.jobs.get(self.job_id).state.final

    def verifying(self) -> bool:
        self.note()
        return self.storage.jobs.get(self.job_id).state is not JobState.RUNNING

    def rested(self) -> None:
        """Wait for a tuner that makes progress: a job whose tuners die five times in a row rightly
        fails."""
        until(lambda: self.storage.jobs.get(self.job_id).attempts <= 3, "a tuner gets on")

    def states(self) -> set[RequestState]:
        return {s.state for s in self.storage.leases.of_job(self.job_id, unacknowledged=True)}

    def wait(self, state: RequestState) -> None:
        until(lambda: state in self.states(), f"a request that is {state}")
        time.sleep(self.random.uniform(0.0, 0.02))

    def kill(self, victim: str, state: str) -> None:
        self.fleet.kill(victim)
        self.seen.add((victim, state))

    def fetched(self) -> bool:
        """Whether the worker holds a lease and has the files for it."""
        leased = [
            status.request_id
            for status in self.storage.leases.of_job(self.job_id, unacknowledged=True)
            if status.state is RequestState.LEASED
        ]
        blobs = {path.name for path in self.fleet.spool.rglob("blobs/*")}
        return any(
            blobs.issuperset(read_request(payload).digests)
            for payload in self.storage.leases.payloads(leased).values()
        )

    def in_flight(self, victim: str, condition: Callable[[], bool]) -> None:
        """Kill a process while the worker measures, and wait until the others have dealt with it.

        Repeat if it was too late: the worker had reported, and had asked the service for more.
        """
        for attempt in range(20):
            # longer each time: a killed worker has to return and to become idle first
            until(lambda: answers(self.fleet.url), "the service answers")
            self.rested()
            time.sleep(0.2 * attempt)
            until(self.fetched, "a lease with all that it needs")
            self.kill(victim, "leased")
            for _ in range(400):
                if condition():
                    return
                time.sleep(0.005)
            self.fleet.start_missing()
        pytest.fail(f"{victim}: it was always too late")

    def queued(self, victim: str) -> None:
        """Requests lie in the queue because no worker runs."""
        self.kill("worker", "any")
        self.wait(RequestState.QUEUED)
        if victim == "worker":
            self.fleet.start("worker")
            self.wait(RequestState.QUEUED)
        self.kill(victim, "queued")

    def leased(self, victim: str) -> None:
        """The worker measures, or is about to."""
        self.wait(RequestState.LEASED)
        self.kill(victim, "leased")

    def spooled(self, victim: str) -> None:
        """The worker is done; the service has no result yet, because it is down."""
        self.in_flight("web", self.fleet.spooled)
        if victim != "web":
            self.kill(victim, "spooled")

    def done(self, victim: str) -> None:
        """The service has the result; the tuner has not stored the trials, because it is away."""
        self.in_flight("tuner", lambda: RequestState.DONE in self.states())
        if victim != "tuner":
            self.kill(victim, "done")

    def stored(self, victim: str) -> None:
        """Somewhere in between, at a random moment."""
        time.sleep(self.random.uniform(0.05, 0.5))
        self.kill(victim, "stored")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_survives_kills_in_every_state_of_a_lease(fleet: KilledFleet, seed: int) -> None:
    model = fleet.folder / "small.onnx"
    small_model(model)
    fleet.start("web")
    until(lambda: answers(fleet.url), "the service answers")
    fleet.start_missing()
    storage = open_storage(fleet.settings)
    with Client(fleet.url, read_token(fleet.settings)) as client:
        digest = client.upload(model).digest
        job_id = client.submit(JobRequest(model=digest, trials=TRIALS, stop_gain=0.0)).id
    drama = Drama(fleet, storage, job_id, seed)
    acts = [
        (act, victim)
        for act in (drama.queued, drama.leased, drama.spooled, drama.done, drama.stored)
        for victim in ("web", "tuner", "worker")
    ]
    drama.random.shuffle(acts)
    for act, victim in acts:
        drama.rested()
        assert not storage.jobs.get(job_id).state.final, "the job ended before the last kill"
        act(victim)
        drama.note()
        fleet.start_missing()
    # and once more while the artifact is made
    until(drama.verifying, "the job is verified", 180)
    if storage.jobs.get(job_id).state is JobState.VERIFYING:
        drama.kill("tuner", "verifying")
        fleet.start_missing()
    until(drama.ended, "the job ends")
    drama.note()  # the runs of its end, too

    job = storage.jobs.get(job_id)
    assert (job.state, job.error) == (JobState.SUCCEEDED, None)
    check_nothing_lost_or_twice(fleet, storage, drama)
    check_the_run_is_repeated(storage, job_id)
    with Client(fleet.url, read_token(fleet.settings)) as client:
        until(lambda: answers(fleet.url), "the service answers")
        events = [event.sequence for event in client.events(job_id)]
        assert events == list(range(1, len(events) + 1))
        client.artifact(job_id, fleet.folder / "artifact.tar")
    storage.close()


def check_the_run_is_repeated(storage: Storage, job_id: str) -> None:
    """The last tuner's knowledge and adopted requests are kept, and its decisions are repeated."""
    run = storage.runs.get(job_id)
    assert run.starts > 1, "its tuner was killed"
    finished = repeat(run, storage).finished
    assert finished.trials_done == run.trials
    for inputs, record in zip(run.inputs, finished.records, strict=True):
        assert record is not None and record == storage.records.best_record(inputs.key)


def check_nothing_lost_or_twice(fleet: KilledFleet, storage: Storage, drama: Drama) -> None:
    twice = {name for name, count in fleet.measured("worker").items() if count > 1}
    assert not twice, "finished requests were measured again"
    trials = {trial.id: trial for trial in storage.records.trials_of_job(drama.job_id)}
    finished = fleet.measured("worker")
    requests = drama.requests.values()
    for request in requests:
        if request.request_id in finished:
            assert request.state is RequestState.DONE, "a finished request was lost"
            assert request.result is not None
            if kind_of(request.result) is RequestKind.RUN:
                continue  # its outcome is in the job's result
            for entry in request.result["measurements"]:
                stored = trials[entry["trial_id"]].measurement
                assert list(stored.samples_seconds) == entry["measurement"]["samples_seconds"]
    assert finished.keys() <= {request.request_id for request in requests}
    screened = [trial for trial in trials.values() if trial.phase is Phase.SCREEN]
    assert len(screened) >= TRIALS
    measured = Counter((trial.key, trial.schedule) for trial in screened if trial.measurement.ok)
    assert max(measured.values()) == 1, "a candidate was measured under two names"
