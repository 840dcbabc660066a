"""A simulated tuner: it claims jobs, submits batches and stores results, without compiling.

Jobs, queue, trials and the runner are the service's own code. The candidates are artificial. All
batches refer to the same dummy file as their compiled kernels.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import AbstractContextManager
from pathlib import Path

import sqlalchemy as sa

from benchmarks.service_load_server import TARGET, beside, settings_of
from tilewright.compiler.process import configure_process
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.engine import writing
from tilewright.db.errors import StorageError
from tilewright.db.job_states import JobState
from tilewright.db.models import JobRow
from tilewright.db.storage import Storage
from tilewright.db.stores.job_rows import JobClaim, JobProgress
from tilewright.db.stores.statements import table_of
from tilewright.service.jobs.device.remote_runner import RemoteRunner
from tilewright.service.jobs.device.waiting import match_jobs
from tilewright.service.jobs.pipeline.job_run import PROGRESS_SECONDS
from tilewright.service.storage import open_storage
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.protocol.batches import Candidate, Case, InputSpec, MeasureRequest
from tilewright.tuner.protocol.measurement import RecordKey, Trial

BATCH = 8
"""Number of candidates in a batch, as in a tuning run."""

BATCHES = 400
"""Default number of batches per job, which are 3,200 trials."""

JOB_SECONDS = 600.0
LIBRARY = b"a shared object"
_SCHEDULE = Schedule.of("direct", tile_m=4, tile_n=16, tile_k=64, unroll=4, parallel=1)

_jobs = table_of(JobRow)


def queue_jobs(storage: Storage, count: int) -> None:
    """Insert `count` queued jobs.

    The first is created by the store, and the others are copies of it.
    """
    model = storage.models.add(b"a model that nobody reads", "simulated.onnx")
    first = storage.jobs.create(model.digest, TARGET, target_key=TARGET)
    with writing(storage.engine) as connection:
        row = dict(
            connection.execute(sa.select(_jobs).where(_jobs.c.id == first.id)).one()._mapping
        )
        rows = [
            {
                **row,
                "id": uuid.uuid4().hex,
                "event_sequence": 0,
                "created_at": row["created_at"] + n,
            }
            for n in range(1, count)
        ]
        if rows:
            connection.execute(sa.insert(_jobs), rows)


def tuning(url: str, folder: str, at_a_time: int, batches: int) -> AbstractContextManager[None]:
    """Context with a process that works on `at_a_time` jobs concurrently.

    Each job submits `batches` batches of artificial candidates to the workers.
    """
    return beside(_tune, url, folder, at_a_time, batches)


def _tune(url: str, folder: str, at_a_time: int, batches: int) -> None:
    configure_process()
    storage = open_storage(settings_of(url, Path(folder)))
    threads = [
        threading.Thread(
            target=_work,
            # the first one of each has a part left, as if they had begun at different times
            args=(storage, f"simulated-{number}", batches * (number + 1) // at_a_time, batches),
            daemon=True,
        )
        for number in range(at_a_time)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _work(storage: Storage, name: str, left: int, batches: int) -> None:
    """Claim jobs and work on one after the other until the process ends.

    Each job has `batches` batches, except the first job, which has `left`. Therefore, concurrent
    jobs do not end at the same time.
    """
    while True:
        try:
            match_jobs(storage)
            claimed = storage.jobs.claim(name, JOB_SECONDS)
            if claimed is None:
                time.sleep(0.5)
            else:
                run_job(storage, claimed[0], left)
                left = batches
        except StorageError:  # as a tuner does: the claim runs out
            time.sleep(1.0)


def run_job(storage: Storage, claim: JobClaim, batches: int) -> None:
    """Submit all batches of a job to the workers, and store the results.

    As many batches are open at a time as the runner accepts.
    """
    library = storage.blobs.put(LIBRARY)
    runner = RemoteRunner(storage, claim.job_id, TARGET, CancelToken())
    submitted = done = 0
    reported_at = 0.0
    waiting: dict[str, MeasureRequest] = {}
    while done < batches:
        while submitted < batches and len(waiting) < runner.capacity:
            request = batch(claim.job_id, submitted, library)
            runner.submit(request, {library: LIBRARY})
            waiting[request.request_id] = request
            submitted += 1
        results = runner.poll(1.0)
        if results:
            storage.records.add_trials(
                [
                    Trial(trial, request.key, _SCHEDULE, measurement, job_id=claim.job_id)
                    for result in results
                    for request in (waiting.pop(result.request_id),)
                    for trial, measurement in result.measurements
                ]
            )
            runner.acknowledge([result.request_id for result in results])
        done += len(results)
        if time.monotonic() - reported_at >= PROGRESS_SECONDS:
            reported_at = time.monotonic()
            progress = JobProgress("tuning", 1, 0, batches * BATCH, done * BATCH)
            storage.jobs.progress(claim, progress)
    storage.jobs.transition(claim, JobState.SUCCEEDED)


def batch(job_id: str, number: int, library: str) -> MeasureRequest:
    """An artificial request to measure BATCH candidates."""
    candidates = tuple(
        Candidate(
            f"{job_id}-{number}-{place}",
            _SCHEDULE.to_json(),
            _SCHEDULE.digest,
            {"name": "kernel", "arguments": ["a", "b", "c"]},
            f"{place:064x}",
        )
        for place in range(BATCH)
    )
    inputs = tuple(InputSpec((64, 64), "float32", seed) for seed in (1, 2))
    return MeasureRequest(
        request_id=f"{job_id}-{number}",
        key=RecordKey("w" * 64, TARGET),
        candidates=candidates,
        library_digest=library,
        cases=(Case(inputs, library),),
        tolerance=1e-4,
        job_id=job_id,
    )
