"""Notices: a process that waits for a topic is woken when a transaction that announced it
commits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tilewright.db.engine import writing
from tilewright.db.notices import (
    KEPT,
    NoticeSource,
    SqliteSource,
    announce,
    job_topic,
    open_source,
    queue_topic,
    topic_states,
    worker_topic,
)
from tilewright.db.stores.events import EventStore
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.leases import LeaseStore, NewRequest
from tilewright.db.stores.tokens import Scope, TokenStore
from tilewright.db.stores.workers import WorkerStore


@pytest.fixture
def source(engine: sa.Engine) -> Iterator[NoticeSource]:
    """One that listens already."""
    opened = open_source(engine)
    assert opened.wait(0) is None
    yield opened
    opened.close()


def heard(source: NoticeSource, count: int = 1) -> list[str]:
    """The next topics, at least so many."""
    topics: list[str] = []
    while len(topics) < count:
        topics.extend(source.wait(30.0) or ())
    return topics


def test_a_notice_comes_when_its_transaction_commits_and_not_before(
    engine: sa.Engine, source: NoticeSource
) -> None:
    with writing(engine) as connection:
        announce(connection, ["job:a", "job:b", "job:a"])
        assert not source.wait(0)
    assert sorted(heard(source, 2)) == ["job:a", "job:b"]
    assert not source.wait(0)


def test_a_transaction_that_is_rolled_back_announces_nothing(
    engine: sa.Engine, source: NoticeSource
) -> None:
    with pytest.raises(ZeroDivisionError), writing(engine) as connection:
        announce(connection, ["job:lost"])
        raise ZeroDivisionError
    with writing(engine) as connection:
        announce(connection, ["job:saved"])
    assert heard(source) == ["job:saved"]


def test_every_store_tells_what_is_waited_for(
    engine: sa.Engine, source: NoticeSource, jobs: JobStore, model_digest: str
) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    assert heard(source) == [job_topic(job.id)]
    EventStore(engine).append(job.id, [("progress", {})])
    assert heard(source) == [job_topic(job.id)]
    workers = WorkerStore(engine)
    worker = workers.register("w", ["t"], {})
    workers.drain(worker.id)
    assert heard(source) == [worker_topic(worker.id)]
    workers.leave(worker.id)
    assert heard(source) == [worker_topic(worker.id)]
    _, token = TokenStore(engine).create("ci", [Scope.READ])
    assert heard(source) == ["tokens"]
    TokenStore(engine).revoke(token.id)
    assert heard(source) == ["tokens"]


def test_whatever_queues_a_request_wakes_the_workers_of_its_target(
    engine: sa.Engine, source: NoticeSource, clock: object
) -> None:
    leases = LeaseStore(engine, clock, lost_after_seconds=1e9)  # type: ignore[arg-type]
    WorkerStore(engine, clock).register("w", ["t"], {}, worker_id="w")  # type: ignore[arg-type]
    leases.submit([NewRequest(request_id="a", target_key="t", payload={})])
    assert heard(source) == [queue_topic("t")]
    (lease,) = leases.claim("w", ["t"], limit=1, lease_seconds=10)
    leases.release("w", [lease.lease_id])
    assert heard(source) == [queue_topic("t")]
    leases.claim("w", ["t"], limit=1, lease_seconds=10)
    clock.advance(11)  # type: ignore[attr-defined]
    leases.expire()
    assert leases.wake() == 0, "the pause before the next attempt is not over"
    clock.advance(1)  # type: ignore[attr-defined]
    assert (leases.wake(), leases.wake()) == (1, 0)
    assert heard(source) == [queue_topic("t")]


def test_a_reader_that_was_away_for_long_takes_everything_for_changed(engine: sa.Engine) -> None:
    source = open_source(engine)
    if not isinstance(source, SqliteSource):
        pytest.skip("PostgreSQL keeps what a listener has not read")
    source.wait(0)
    with writing(engine) as connection:
        announce(connection, [f"job:{number}" for number in range(KEPT + 1)])
        kept = connection.exec_driver_sql("SELECT count(*) FROM notices").scalar_one()
    assert kept == KEPT
    assert source.wait(30) is None
    source.close()


def test_a_listener_whose_connection_broke_says_that_it_missed_something(
    engine: sa.Engine, source: NoticeSource
) -> None:
    if engine.dialect.name != "postgresql":
        pytest.skip("a file has no connection that breaks")
    from tilewright.db.errors import StorageError

    with engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE starts_with(query, 'LISTEN')"
        )
    with pytest.raises(StorageError):
        source.wait(30)
    assert source.wait(0) is None


def test_states_of_topics_change_with_what_they_stand_for(
    engine: sa.Engine, jobs: JobStore, model_digest: str
) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    worker = WorkerStore(engine).register("w", ["t"], {})
    topics = [job_topic(job.id), worker_topic(worker.id), queue_topic("t"), "tokens", "job:no"]
    before = topic_states(engine, topics)
    assert set(before) == {job_topic(job.id), worker_topic(worker.id)}
    EventStore(engine).append(job.id, [("progress", {})])
    WorkerStore(engine).drain(worker.id)
    LeaseStore(engine).submit([NewRequest(request_id="a", target_key="t", payload={})])
    after = topic_states(engine, topics)
    assert all(before.get(topic) != after[topic] for topic in topics[:3])
    WorkerStore(engine).drain(worker.id, False)
    WorkerStore(engine).leave(worker.id)
    topic = worker_topic(worker.id)
    assert topic_states(engine, [topic])[topic] not in (before[topic], after[topic])


def test_the_queue_is_looked_at_without_the_finished_requests(engine: sa.Engine) -> None:
    """However many are retained: the index holds the waiting requests, in the order in which they
    are taken."""
    text = (
        "SELECT serial FROM measure_requests WHERE state = 'queued' AND target_key = 't'"
        " ORDER BY priority DESC, serial LIMIT 1"
    )
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")
        else:
            for other in ("seqscan", "bitmapscan"):  # the table is too small for a choice
                connection.exec_driver_sql(f"SET enable_{other} = off")
            plan = connection.exec_driver_sql(f"EXPLAIN {text}")
        said = str(plan.all())
        assert "ix_measure_requests_queued" in said
        assert "Sort" not in said and "TEMP B-TREE" not in said
