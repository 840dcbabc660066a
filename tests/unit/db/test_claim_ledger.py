"""The life of a record: wrong results are not served, and the results of a faulty device can be
withdrawn."""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from tests.unit.db.explained import plan_of
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.engine import reading, writing
from tilewright.db.errors import NotFoundError
from tilewright.db.models import ClaimRow
from tilewright.db.review_state import Attestation, ClaimReporter, ReviewState
from tilewright.db.stores import claim_ledger
from tilewright.db.stores.claim_ledger import ClaimLedger, JobRecords
from tilewright.db.stores.claim_rows import (
    StoredRecord,
    claims,
    is_race,
    is_schedule,
    record_id,
    serve,
)
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.records import SqlRecordStore
from tilewright.db.stores.workers import WorkerStore
from tilewright.tuner.protocol.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    Trial,
    TuningRecord,
    trial_id,
)

KEY = RecordKey("w" * 64, "t" * 64, 1, "fast")
OTHER = replace(KEY, workload_key="v" * 64)


def measured(seconds: float, worker: str = "board") -> Measurement:
    return Measurement(
        Status.OK,
        samples_seconds=(seconds, seconds * 1.1),
        worker=worker,
        object_digest="o" * 64,
        checks=3,
    )


def record(
    seconds: float, key: RecordKey = KEY, worker: str = "board", tile: int = 1
) -> TuningRecord:
    schedule = Schedule.of("direct", tile_n=tile)
    name = trial_id(key, schedule.digest, Phase.FINAL, f"{seconds} {worker}")
    return TuningRecord(key, schedule, measured(seconds, worker), name, "cg1", "0.1")


def trial_of(made: TuningRecord, job_id: str = "job") -> Trial:
    return Trial(
        made.trial_id, made.key, made.schedule, made.measurement, Phase.FINAL, job_id, "cg1"
    )


def believed(records: SqlRecordStore, key: RecordKey) -> list[Trial]:
    """The trials that train the cost model; the others are listed, too, so that their names stay
    taken."""
    return [trial for trial in records.trials(key) if not trial.withdrawn]


def id_of(made: TuningRecord) -> str:
    return record_id(made.key, made.schedule.digest, made.trial_id)


def confirm(ledger: ClaimLedger, claim_id: str, second: Measurement) -> bool:
    return ledger.confirm(claim_id, second.to_json(), second.worker)


def dispute(ledger: ClaimLedger, claim_id: str, second: Measurement, reason: str) -> bool:
    return ledger.dispute(claim_id, second.to_json(), reason)


def states(ledger: ClaimLedger) -> dict[str, ReviewState]:
    return {one.id: one.state for one in ledger.list()}


def test_a_provisional_record_is_not_served_until_it_is_confirmed(
    records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    old, new = record(2e-3), record(1e-3, tile=2)
    records.add_record(old)
    ledger.propose(new, "job")
    assert records.best_record(KEY) == old
    (waiting,) = ledger.provisional("job")
    assert waiting.record == new and waiting.job_id == "job" and waiting.worker == "board"
    assert ledger.provisional("another") == []

    second = measured(1.05e-3, "another board")
    assert confirm(ledger, waiting.id, second)
    assert records.best_record(KEY) == new
    assert ledger.get(waiting.id).confirmation == second
    assert states(ledger) == {
        id_of(old): ReviewState.SUPERSEDED,
        id_of(new): ReviewState.CONFIRMED,
    }
    assert not confirm(ledger, waiting.id, second), "once is enough"


def test_a_worker_that_contradicts_itself_teaches_nobody(
    records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    """The only worker was asked again: which of its two times is true remains unknown."""
    lie = record(1e-12)
    records.add_trials([trial_of(lie)])
    ledger.propose(lie, "job")
    assert dispute(ledger, id_of(lie), measured(3e-3), "1 ps, then 3 ms")
    assert believed(records, KEY) == [] and records.best_record(KEY) is None


def test_a_record_says_whose_word_it_is_and_another_owner_may_contradict_it(
    records: SqlRecordStore, ledger: ClaimLedger, engine: sa.Engine, clock: Any
) -> None:
    workers = WorkerStore(engine, clock)
    mean = [workers.register(name, [], {}, owner="mean").id for name in ("one", "two")]
    honest = workers.register("honest", [], {}, owner="honest").id
    old, lie = record(2e-3), record(1e-6, worker=mean[0], tile=2)
    records.add_record(old)
    ledger.propose(lie, "job")
    records.add_trials([trial_of(lie)])
    made = ledger.get(id_of(lie))
    assert made.reporter == ClaimReporter(mean[0], "mean") and made.attestation is Attestation.ONCE

    for worker, attestation in (
        (mean[0], Attestation.ONE_WORKER),
        (mean[1], Attestation.ONE_OWNER),
    ):
        assert confirm(ledger, made.id, measured(1e-6, worker))
        served = ledger.served([KEY])[KEY]
        assert (served.record, served.attestation) == (lie, attestation)
        assert not confirm(ledger, made.id, measured(1e-6, mean[0])), "it adds nothing"

    # another owner's worker comes
    assert dispute(ledger, made.id, measured(3e-3, honest), "1 us, then 3 ms")
    assert records.best_record(KEY) == old, "what was served before"
    assert ledger.get(made.id).state is ReviewState.DISPUTED and believed(records, KEY) == []


def test_what_two_owners_say_is_not_measured_again_until_one_is_not_believed(
    records: SqlRecordStore, ledger: ClaimLedger, engine: sa.Engine, clock: Any
) -> None:
    workers = WorkerStore(engine, clock)
    one, two = (workers.register(name, [], {}, owner=name).id for name in ("one", "two"))
    made = record(1e-3, worker=one)
    ledger.propose(made, "job")
    assert confirm(ledger, id_of(made), measured(1e-3, two))
    assert ledger.get(id_of(made)).attestation is Attestation.TWO_OWNERS
    assert not dispute(ledger, id_of(made), measured(1.0, two), "why")
    assert records.best_record(KEY) == made

    ledger.withdraw("sick", workers=[two])
    kept = ledger.get(id_of(made))
    assert kept.state is ReviewState.PROVISIONAL and kept.attestation is Attestation.ONCE
    assert kept.confirmation is None and records.best_record(KEY) is None
    assert confirm(ledger, id_of(made), measured(1e-3, one))
    assert records.best_record(KEY) == made


def test_a_review_of_an_older_slower_record_does_not_replace_a_faster_one(
    records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    """The older record is superseded with its review. It takes over when the other is withdrawn."""
    slow, fast = record(2e-3), record(1e-3, worker="liar", tile=2)
    for one in (slow, fast):
        ledger.propose(one, "job")
    assert confirm(ledger, id_of(fast), measured(1e-3, "liar"))
    assert confirm(ledger, id_of(slow), measured(2.1e-3))
    assert records.best_record(KEY) == fast
    found = ledger.get(id_of(slow))
    assert found.state is ReviewState.SUPERSEDED and found.confirmation == measured(2.1e-3)
    assert found.attestation is Attestation.ONE_WORKER
    ledger.withdraw("faulty", workers=["liar"])
    assert records.best_record(KEY) == slow


@pytest.mark.parametrize("seconds", [5e-4, 2e-3])
def test_a_review_of_an_older_record_replaces_one_that_is_slower_or_less_attested(
    records: SqlRecordStore, ledger: ClaimLedger, seconds: float
) -> None:
    older, newer = record(seconds), record(1e-3, worker="alone", tile=2)
    for one in (older, newer):
        ledger.propose(one, "job")
    assert confirm(ledger, id_of(newer), measured(1e-3, "alone"))
    second = "board" if seconds < 1e-3 else "another"
    assert confirm(ledger, id_of(older), measured(seconds, second))
    assert records.best_record(KEY) == older


def test_a_review_of_an_older_record_replaces_one_of_other_code(
    records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    older, newer = record(2e-3), replace(record(1e-3, tile=2), codegen_version="cg0")
    for one in (older, newer):
        ledger.propose(one, "job")
    assert confirm(ledger, id_of(newer), measured(1e-3))
    assert confirm(ledger, id_of(older), measured(2e-3))
    assert records.best_record(KEY) == older


def test_a_disputed_record_is_never_served(records: SqlRecordStore, ledger: ClaimLedger) -> None:
    old, lie = record(2e-3), record(1e-12, tile=2)
    records.add_record(old)
    ledger.propose(lie, "job")
    assert dispute(ledger, id_of(lie), measured(3e-3, "honest"), "1 ps, then 3 ms")
    assert records.best_record(KEY) == old
    kept = ledger.get(id_of(lie))
    assert kept.state is ReviewState.DISPUTED and kept.reason == "1 ps, then 3 ms"
    assert not confirm(ledger, id_of(lie), measured(1e-12)), "what is disputed stays so"
    assert records.best_record(KEY) == old
    ledger.propose(lie, "job")
    assert ledger.get(id_of(lie)).state is ReviewState.DISPUTED, "nor is it proposed again"


def test_what_a_disputed_worker_said_of_the_workload_teaches_nobody(
    records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    lie, screened, elsewhere = (record(s, worker="liar") for s in (1e-12, 2e-12, 3e-12))
    elsewhere = replace(elsewhere, key=OTHER)
    honest = record(3e-3, worker="honest")
    trials = [trial_of(one) for one in (lie, screened, elsewhere, honest)]
    records.add_trials(trials)
    ledger.propose(lie, "job")
    assert dispute(ledger, id_of(lie), measured(3e-3, "honest"), "1 ps, then 3 ms")
    assert believed(records, KEY) == [trials[3]]
    assert believed(records, OTHER) == [trials[2]], "of other workloads nobody has said otherwise"


def test_a_record_that_comes_again_is_the_newest(
    records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    first, second = record(2e-3), record(1e-3, tile=2)
    for one in (first, second, first):
        records.add_record(one)
    assert records.best_record(KEY) == first
    assert states(ledger) == {
        id_of(first): ReviewState.CONFIRMED,
        id_of(second): ReviewState.SUPERSEDED,
    }


def test_withdrawing_a_worker_takes_back_all_that_it_said(
    records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    honest, lie, waiting = record(2e-3), record(1e-9, worker="liar", tile=2), record(3e-3, OTHER)
    waiting = record(1e-9, OTHER, worker="liar")
    for job, one in (("first", honest), ("second", lie), ("third", waiting)):
        records.add_trials([trial_of(one, job)])
    records.add_record(honest)
    records.add_record(lie)
    ledger.propose(waiting, "third")
    ledger.use([id_of(lie)], "built with it")
    ledger.use([id_of(honest)], "built with another")

    done = ledger.withdraw("its clock stands still", workers=["liar"])

    assert {one.id for one in done.records} == {id_of(lie), id_of(waiting)}
    assert done.restored == (id_of(honest),) and records.best_record(KEY) == honest
    assert done.trials == 2 and done.jobs == ("built with it", "second", "third")
    assert [t.withdrawn for t in records.trials(OTHER)] == [True], "its name stays taken"
    told = {t.id: t.withdrawn for t in records.trials(KEY)}
    assert told == {honest.trial_id: False, lie.trial_id: True}
    assert records.count_by_target("cg1") == {KEY.target_key: 1}
    assert len(records.newest_trials([KEY.target_key], "cg1", 9)) == 1
    assert not confirm(ledger, id_of(waiting), measured(1.0)), "withdrawn stays withdrawn"
    assert ledger.get(id_of(lie)).reason == "its clock stands still"

    again = ledger.withdraw("once more", workers=["liar"])
    assert (again.records, again.restored, again.trials) == ((), (), 0)


def test_withdrawing_one_record_leaves_the_others_of_its_worker(
    records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    first, other = record(2e-3), record(2e-3, OTHER)
    for one in (first, other):
        records.add_trials([trial_of(one)])
        records.add_record(one)
    done = ledger.withdraw("wrong", record_ids=[id_of(first)])
    assert [one.id for one in done.records] == [id_of(first)] and done.restored == ()
    assert records.best_record(KEY) is None and records.best_record(OTHER) == other
    assert done.trials == 1 and records.trials(OTHER) == [trial_of(other)]


def test_unknown_records_are_named(ledger: ClaimLedger) -> None:
    for ask in (ledger.get, lambda name: ledger.withdraw("", record_ids=[name])):
        with pytest.raises(NotFoundError, match="record 'nothing'"):
            ask("nothing")


def test_the_list_has_filters_and_pages(
    records: SqlRecordStore, ledger: ClaimLedger, clock: Any
) -> None:
    made = [record(1e-3, KEY), record(2e-3, OTHER, "b"), record(3e-3, KEY, "b", 2)]
    for one in made:
        records.add_record(one)
        clock.advance(1)
    newest = [id_of(one) for one in made[::-1]]

    def listed(**wanted: Any) -> list[str]:
        return [one.id for one in ledger.list(**wanted)]

    assert listed() == newest and listed(limit=2) == newest[:2]
    assert listed(limit=2, after=ledger.list(limit=2).next) == newest[2:]
    assert listed(workload_key=KEY.workload_key) == [newest[0], newest[2]]
    assert listed(worker="b") == newest[:2] and listed(state=ReviewState.SUPERSEDED) == newest[2:]
    assert listed(threads=2) == listed(numerics="strict") == listed(target_key="x") == []


def test_served_records_come_with_their_history(
    records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    one = record(1e-3)
    records.add_record(one)
    found = ledger.served([KEY, OTHER])
    assert set(found) == {KEY} and isinstance(found[KEY], StoredRecord)
    assert found[KEY].record == one and found[KEY].state is ReviewState.CONFIRMED


def test_who_used_a_record(ledger: ClaimLedger) -> None:
    ledger.use(["a", "b", "a"], "job")
    ledger.use(["a"], "job")
    ledger.use(["a"], "another")
    assert ledger.uses("a") == ["another", "job"] and ledger.uses("c") == []


def test_a_claim_that_is_withdrawn_or_disputed_cannot_be_used(ledger: ClaimLedger) -> None:
    """The job looks again, and none of the claims that it found together is noted."""
    kept, disputed, withdrawn = (record(1e-3, tile=tile) for tile in (1, 2, 3))
    for one in (kept, disputed, withdrawn):
        ledger.propose(one, "job")
        assert ledger.use([id_of(one)], "before")
    assert dispute(ledger, id_of(disputed), measured(3e-3, "honest"), "1 ms, then 3 ms")
    ledger.withdraw("wrong", record_ids=[id_of(withdrawn)])
    for gone in (disputed, withdrawn):
        assert not ledger.use([id_of(kept), id_of(gone)], "after")
        assert ledger.uses(id_of(kept)) == ledger.uses(id_of(gone)) == ["before"]
    assert ledger.use([id_of(kept)], "after")


def test_the_store_of_a_job_proposes_and_reads_what_is_served(
    records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    store = JobRecords(records, ledger, "job")
    old, new = record(2e-3), record(1e-3, tile=2)
    records.add_record(old)
    store.add_trials([trial_of(new)])
    store.add_record(new)
    assert store.best_record(KEY) == old
    assert store.trials(KEY) == [trial_of(new)]
    assert [one.record for one in ledger.provisional("job")] == [new]


def test_what_is_confirmed_at_the_same_moment_is_withdrawn(
    engine: sa.Engine, ledger: ClaimLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confirming writes the row again, while a withdrawal waits for the old one."""
    made = record(1e-3, worker="liar")
    ledger.propose(made, "job")
    withdrawal = threading.Thread(
        target=ledger.withdraw, args=("sick",), kwargs={"workers": ["liar"]}
    )

    def served(connection: sa.Connection, values: dict[str, Any]) -> None:
        withdrawal.start()
        if engine.dialect.name == "postgresql":  # SQLite has one writer
            wait_for_a_lock(engine)
        serve(connection, values)

    monkeypatch.setattr(claim_ledger, "serve", served)
    assert confirm(ledger, id_of(made), measured(1e-3, "honest"))
    withdrawal.join(60)
    assert ledger.get(id_of(made)).state is ReviewState.WITHDRAWN


def test_a_record_that_is_confirmed_at_the_same_moment_is_revalidated(
    engine: sa.Engine, ledger: ClaimLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confirming writes the row again, while the revalidation waits for the old one."""
    made = record(1e-3)
    ledger.propose(made, "job")
    revalidation = threading.Thread(target=ledger.revalidate, args=([id_of(made)], "cg2", "0.2"))

    def served(connection: sa.Connection, values: dict[str, Any]) -> None:
        revalidation.start()
        if engine.dialect.name == "postgresql":  # SQLite has one writer
            wait_for_a_lock(engine)
        serve(connection, values)

    monkeypatch.setattr(claim_ledger, "serve", served)
    assert confirm(ledger, id_of(made), measured(1e-3, "honest"))
    revalidation.join(60)
    found = ledger.get(id_of(made))
    assert found.state is ReviewState.CONFIRMED
    assert (found.record.codegen_version, found.record.compiler_version) == ("cg2", "0.2")


def wait_for_a_lock(engine: sa.Engine) -> None:
    """Wait until a connection waits for a lock of another one."""
    waiting = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    ends = time.monotonic() + 60
    while True:
        with reading(engine) as connection:
            if connection.execute(waiting).scalar_one():
                return
        assert time.monotonic() < ends
        time.sleep(0.02)


REPORTERS = [ClaimReporter(f"{owner}{number}", owner) for owner in "abcd" for number in range(3)]


def test_weak_records_are_those_that_somebody_could_back_better(
    engine: sa.Engine, records: SqlRecordStore, ledger: ClaimLedger
) -> None:
    """As `ClaimReporter.second` reports to every caller, however many they are."""
    chance = random.Random(4)
    kinds = list(itertools.product([*REPORTERS, ClaimReporter("a0", "")], Attestation, ReviewState))
    for number, (first, attestation, state) in enumerate(kinds):
        made = record(1e-3, replace(KEY, workload_key=f"{number:064x}"))
        records.add_record(made)
        values = {
            "reporter": first.worker,
            "owner": first.owner,
            "attestation": attestation,
            "state": state,
        }
        with writing(engine) as connection:
            update = sa.update(ClaimRow).where(ClaimRow.id == id_of(made))
            connection.execute(update.values(**values))
    open_ = (ReviewState.CONFIRMED, ReviewState.PROVISIONAL)
    served = [one for one in ledger.list(limit=1000) if one.state in open_]
    assert len(served) == 2 * len(kinds) / len(ReviewState)
    for count in (*range(7), len(REPORTERS)):
        others = chance.sample(REPORTERS, count)
        better = [
            one.id
            for one in served
            if one.attestation.weak
            and any(one.reporter.second(each).rank > one.attestation.rank for each in others)
        ]
        found = ledger.weak(KEY.target_key, "cg1", others, limit=1000)
        assert [one.id for one in found] == better
        found = ledger.weak(KEY.target_key, "cg1", others, but=better[1::2], limit=3)
        assert [one.id for one in found] == better[::2][:3]
    assert not ledger.weak(KEY.target_key, "cg2", REPORTERS, limit=1)
    assert not ledger.weak("another", "cg1", REPORTERS, limit=1)


def test_what_a_job_left_provisional_is_weak_once_the_job_is_over(
    ledger: ClaimLedger, jobs: JobStore, model_digest: str
) -> None:
    """Not before, and not where a later record of the key is served or may be."""

    def weak() -> list[str]:
        return [one.id for one in ledger.weak(KEY.target_key, "cg1", REPORTERS, limit=9)]

    job = jobs.create(model_digest, "host", "host-key")
    first, later = record(2e-3, worker="a0"), record(1e-3, worker="b0")
    ledger.propose(first, job.id)
    assert weak() == [], "the job sees to that"
    jobs.cancel(job.id)
    assert weak() == [id_of(first)]
    ledger.propose(later, "forgotten")
    assert weak() == [id_of(later)]
    assert confirm(ledger, id_of(later), measured(1e-3, "c0"))
    assert ledger.get(id_of(later)).attestation is Attestation.ONE_OWNER, "tokens of nobody"
    assert weak() == [id_of(later)]
    assert dispute(ledger, id_of(later), measured(9e-3, "a1"), "it is slower")
    assert weak() == [id_of(first)]
    assert confirm(ledger, id_of(first), measured(2e-3, "a0"))
    assert ledger.get(id_of(first)).state is ReviewState.CONFIRMED


def test_the_kind_of_a_claim_is_a_literal_in_queries() -> None:
    """SQLite prepares a query anew each time for a bound value that a partial index names."""
    assert sa.select(claims.c.id).where(is_schedule, is_race).compile().params == {}


def test_weak_records_are_found_in_their_order_by_an_index(
    engine: sa.Engine, ledger: ClaimLedger
) -> None:
    """However many records there are."""
    ask = lambda: ledger.weak(KEY.target_key, "cg1", REPORTERS, but=["x"], limit=4)  # noqa: E731
    plan = plan_of(engine, ask, "claims")
    assert "ix_claims_weak" in plan
    assert "TEMP B-TREE" not in plan and "Sort" not in plan and "SCAN claims" not in plan
