"""Verdicts of races as claims: which job believes which, and how often each result was served."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from tests.unit.db.explained import by_statistics, plan_of
from tilewright.db.review_state import Attestation, ClaimReporter, ReviewState
from tilewright.db.stores.claim_ledger import ClaimLedger
from tilewright.db.stores.claim_rows import StoredRace
from tilewright.db.stores.workers import WorkerStore

SAID = {"comparisons": [{"ratio": 0.9}]}
MODE = ("t" * 64, 1, "fast")


def add(
    ledger: ClaimLedger,
    identity: str,
    job_id: str,
    served: str,
    verdict: Mapping[str, Any],
    worker: str | None = None,
) -> StoredRace:
    return ledger.add_race(identity, MODE, "cg1", job_id, served, verdict, worker)


def believed(ledger: ClaimLedger, identity: str = "a", job: str = "") -> Any:
    found = ledger.race(identity, job)
    return None if found is None else (found.served, found.attestation)


def state(ledger: ClaimLedger, race: StoredRace) -> ReviewState:
    found = ledger.race_by_id(race.id)
    assert found is not None
    return found.state


def test_a_race_of_our_own_machine_is_believed_at_once(ledger: ClaimLedger) -> None:
    assert ledger.race("a") is None and ledger.race_counts() == {}
    first = add(ledger, "a", "job", "default", {"ratio": 1.01})
    add(ledger, "b", "job", "tuned", {})
    add(ledger, "a", "", "tuned", {"ratio": 0.9})
    assert believed(ledger) == ("tuned", Attestation.OWN)
    assert state(ledger, first) is ReviewState.SUPERSEDED
    assert ledger.race_counts() == {"default": 1, "tuned": 2}


def test_a_verdict_counts_once_for_each_job_that_uses_it(ledger: ClaimLedger) -> None:
    made = add(ledger, "a", "job", "tuned", {})
    add(ledger, "b", "job", "default", {})
    for job in ("job", "another", "another", "third"):
        assert ledger.use([made.id], job)
    assert ledger.race_counts() == {"default": 1, "tuned": 3}


def test_races_are_counted_by_an_index(engine: sa.Engine, ledger: ClaimLedger) -> None:
    """However many records there are."""
    plan = plan_of(engine, ledger.race_counts, "claims")
    assert "ix_claims_race" in plan
    if not by_statistics(engine):
        assert not re.search(r"SCAN claims'|SCAN claim_uses", plan)


def test_a_worker_is_believed_by_the_job_alone_until_another_agrees(
    ledger: ClaimLedger, workers: WorkerStore
) -> None:
    one, other = (workers.register(n, [], {}, owner=n).id for n in ("one", "other"))
    add(ledger, "a", "before", "default", {})
    made = add(ledger, "a", "mine", "tuned", {}, one)
    assert made.reporter == ClaimReporter(one, "one") and made.state is ReviewState.PROVISIONAL
    assert believed(ledger, job="mine") == ("tuned", Attestation.ONCE)
    assert believed(ledger, job="another") == believed(ledger) == ("default", Attestation.OWN)
    assert ledger.confirm(made.id, SAID, other)
    found = ledger.race("a", "another")
    assert found is not None and found.review == SAID
    assert (found.served, found.attestation) == ("tuned", Attestation.TWO_OWNERS)


def test_each_review_may_raise_the_attestation_and_none_lowers_it(
    ledger: ClaimLedger, workers: WorkerStore
) -> None:
    first, second = (workers.register(n, [], {}, owner="mean").id for n in ("one", "two"))
    honest = workers.register("honest", [], {}, owner="honest").id
    made = add(ledger, "a", "mine", "tuned", {}, first)
    for worker, attestation, raised in (
        (first, Attestation.ONE_WORKER, True),
        (second, Attestation.ONE_OWNER, True),
        (first, Attestation.ONE_OWNER, False),
        (honest, Attestation.TWO_OWNERS, True),
        (second, Attestation.TWO_OWNERS, False),
    ):
        assert ledger.confirm(made.id, SAID, worker) is raised
        assert believed(ledger) == ("tuned", attestation)


def test_our_own_machine_attests_the_most(ledger: ClaimLedger) -> None:
    made = add(ledger, "a", "mine", "tuned", {}, "board")
    assert ledger.confirm(made.id, SAID, "", ours=True)
    assert believed(ledger) == ("tuned", Attestation.OWN)


def test_a_disputed_verdict_is_believed_by_no_job(ledger: ClaimLedger) -> None:
    made = add(ledger, "a", "mine", "tuned", {}, "liar")
    assert ledger.confirm(made.id, SAID, "liar")
    ledger.use([made.id], "another")
    honest = add(ledger, "a", "third", "default", {}, "honest")
    assert ledger.dispute(made.id, SAID, "why")
    assert believed(ledger, job="mine") is believed(ledger, job="another") is None
    assert believed(ledger, job="third") == ("default", Attestation.ONCE)
    assert ledger.confirm(honest.id, SAID, "a third")
    assert believed(ledger, job="mine") == ("default", Attestation.ONE_OWNER)


def test_withdrawing_a_worker_takes_back_its_verdicts_and_its_reviews(ledger: ClaimLedger) -> None:
    def confirmed(identity: str, first: str, second: str) -> StoredRace:
        made = add(ledger, identity, "job", "tuned", {}, first)
        assert ledger.confirm(made.id, SAID, second)
        return made

    confirmed("a", "liar", "honest")
    confirmed("b", "honest", "liar")
    confirmed("c", "honest", "other")
    ledger.use([confirmed("d", "liar", "honest").id], "another")
    assert ledger.withdraw("its clock stands still", workers=["liar"]).races == 2
    assert believed(ledger, "a", "job") is believed(ledger, "d", "another") is None
    assert believed(ledger, "b") is None
    assert believed(ledger, "b", "job") == ("tuned", Attestation.ONCE), "one report is left"
    assert believed(ledger, "c") == ("tuned", Attestation.ONE_OWNER)
    assert ledger.withdraw("again", workers=["liar"]).races == 0


def test_the_verdict_before_is_served_again(ledger: ClaimLedger) -> None:
    add(ledger, "a", "before", "default", {})
    made = add(ledger, "a", "job", "tuned", {}, "liar")
    assert ledger.confirm(made.id, SAID, "honest")
    assert believed(ledger) == ("tuned", Attestation.ONE_OWNER)
    ledger.withdraw("faulty", workers=["honest"])
    assert state(ledger, made) is ReviewState.PROVISIONAL
    assert believed(ledger) == ("default", Attestation.OWN)
