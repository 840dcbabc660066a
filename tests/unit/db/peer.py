"""A process of concurrency tests, which reads a JSON array [ACTION, URL, NAME] per line of stdin.

For each line it connects, prints "ready", waits for another line, acts, and prints "ended". All
output is one JSON value per line. test_concurrency.py runs several of these processes at once on
one database.
"""

from __future__ import annotations

import json
import sys
import time

import sqlalchemy as sa

from tilewright.db.engine import open_engine, writing
from tilewright.db.job_states import JobState
from tilewright.db.models import WorkloadRow
from tilewright.db.stores.events import EventStore
from tilewright.db.stores.jobs import JobProgress, JobStore
from tilewright.db.stores.leases import LeaseStore
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.workers import WorkerStore


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def measure(engine: sa.Engine, name: str) -> None:
    """Claim and complete requests until none is left; print (request, attempt) of each."""
    store = LeaseStore(engine)
    WorkerStore(engine).register(name, ["t"], {}, worker_id=name)
    seen = []
    while leases := store.claim(name, ["t"], limit=3, lease_seconds=600):
        store.renew(name, [lease.lease_id for lease in leases], 600)
        for lease in leases:
            key = f"{name}-{lease.request_id}"
            store.complete(lease.lease_id, name, key, {"by": name})
            seen.append([lease.request_id, lease.attempt])
    say(seen)


def expire(engine: sa.Engine, name: str) -> None:
    """Expire leases as if an hour had passed; print which were requeued."""
    say(LeaseStore(engine, lambda: time.time() + 3600).expire().requeued)


def tune(engine: sa.Engine, name: str) -> None:
    """Claim jobs and finish them until none is left; print their ids."""
    store = JobStore(engine)
    seen = []
    while (taken := store.claim(name, 600)) is not None:
        claim, job = taken
        store.progress(claim, JobProgress(trials_done=1))
        store.transition(claim, JobState.VERIFYING)
        store.transition(claim, JobState.SUCCEEDED, result={"by": name})
        seen.append(job.id)
    say(seen)


def log(engine: sa.Engine, name: str) -> None:
    """Append events to the one job; print their numbers."""
    (job,) = JobStore(engine).list()
    store = EventStore(engine)
    say([store.append(job.id, [("log", {"by": name}), ("log", {"by": name})]) for _ in range(20)])


def hold(engine: sa.Engine, name: str) -> None:
    """Claim a request and a job, print the lease and the fencing token, and wait to be killed."""
    WorkerStore(engine).register(name, ["t"], {}, worker_id=name)
    (lease,) = LeaseStore(engine).claim(name, ["t"], limit=1, lease_seconds=600)
    taken = JobStore(engine).claim(name, 600)
    assert taken is not None
    say([lease.lease_id, taken[0].fencing_token])
    time.sleep(600)


def die_writing(engine: sa.Engine, name: str) -> None:
    """Stop in the middle of a writing transaction, and wait to be killed."""
    row = {"key": "half", "text": "x" * 100_000, "created_at": 0.0}
    with writing(engine) as connection:
        connection.execute(sa.insert(table_of(WorkloadRow)), row)
        say("writing")
        time.sleep(600)


ACTIONS = {
    "measure": measure,
    "expire": expire,
    "tune": tune,
    "log": log,
    "hold": hold,
    "die_writing": die_writing,
}

if __name__ == "__main__":
    for line in iter(sys.stdin.readline, ""):
        action, url, peer = json.loads(line)
        engine = open_engine(url)
        say("ready")
        sys.stdin.readline()
        ACTIONS[action](engine, peer)
        engine.dispose()
        say("ended")
