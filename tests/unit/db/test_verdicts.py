"""Verdicts: who believes which, and how often what was served."""

from __future__ import annotations

from typing import Any

from tilewright.db.standing import Backing, Standing, Witness
from tilewright.db.stores.verdicts import StoredVerdict, VerdictStore
from tilewright.db.stores.workers import WorkerStore

SAID = {"comparisons": [{"ratio": 0.9}]}


def believed(verdicts: VerdictStore, identity: str = "a", job: str = "") -> Any:
    found = verdicts.find(identity, job)
    return None if found is None else (found.served, found.backing)


def test_what_our_own_machine_raced_is_believed_at_once(verdicts: VerdictStore) -> None:
    assert verdicts.find("a") is None and verdicts.counts() == {}
    verdicts.add("a", "job", "default", {"ratio": 1.01})
    verdicts.add("b", "job", "tuned", {})
    verdicts.add("a", "", "tuned", {"ratio": 0.9})
    assert believed(verdicts) == ("tuned", Backing.OWN)
    assert verdicts.counts() == {"default": 1, "tuned": 2}


def test_a_worker_is_believed_by_the_job_alone_until_another_agrees(
    verdicts: VerdictStore, workers: WorkerStore
) -> None:
    one, other = (workers.register(n, [], {}, owner=n).id for n in ("one", "other"))
    verdicts.add("a", "before", "default", {})
    made = verdicts.add("a", "mine", "tuned", {}, one)
    assert made.witness == Witness(one, "one") and made.state is Standing.PROVISIONAL
    assert believed(verdicts, job="mine") == ("tuned", Backing.ONCE)
    assert believed(verdicts, job="another") == believed(verdicts) == ("default", Backing.OWN)
    found = verdicts.confirm(made, SAID, other)
    assert found.backing is Backing.TWO_OWNERS and found.confirmation == SAID
    assert believed(verdicts, job="another") == ("tuned", Backing.TWO_OWNERS)


def test_a_verdict_says_whose_word_it_is(verdicts: VerdictStore, workers: WorkerStore) -> None:
    first, second = (workers.register(n, [], {}, owner="mean").id for n in ("one", "two"))
    honest = workers.register("honest", [], {}, owner="honest").id
    made = verdicts.add("a", "mine", "tuned", {}, first)
    for worker, backing in (
        (first, Backing.ONE_WORKER),
        (second, Backing.ONE_OWNER),
        (first, Backing.ONE_OWNER),  # it does not count for less
        (honest, Backing.TWO_OWNERS),
        (None, Backing.OWN),
    ):
        made = verdicts.confirm(made, SAID, worker)
        assert made.backing is backing


def test_what_is_disputed_nobody_believes(verdicts: VerdictStore) -> None:
    made = verdicts.add("a", "mine", "tuned", {}, "liar")
    verdicts.confirm(made, SAID, "liar")
    verdicts.use(made, "another")
    honest = verdicts.add("a", "third", "default", {}, "honest")
    verdicts.dispute(made, SAID, "why")
    assert believed(verdicts, job="mine") is believed(verdicts, job="another") is None
    assert believed(verdicts, job="third") == ("default", Backing.ONCE)
    assert verdicts.confirm(honest, SAID, "a third").state is Standing.CONFIRMED
    assert believed(verdicts, job="mine") == ("default", Backing.ONE_OWNER)


def test_what_a_worker_decided_and_what_it_confirmed_is_taken_back(
    verdicts: VerdictStore,
) -> None:
    def confirmed(identity: str, first: str, second: str) -> StoredVerdict:
        made = verdicts.add(identity, "job", "tuned", {}, first)
        return verdicts.confirm(made, SAID, second)

    confirmed("a", "liar", "honest")
    confirmed("b", "honest", "liar")
    confirmed("c", "honest", "other")
    verdicts.use(confirmed("d", "liar", "honest"), "another")
    assert verdicts.withdraw(["liar"], "its clock stands still") == 3
    assert believed(verdicts, "a", "job") is believed(verdicts, "d", "another") is None
    assert believed(verdicts, "b") is None
    assert believed(verdicts, "b", "job") == ("tuned", Backing.ONCE), "one word is left"
    assert believed(verdicts, "c") == ("tuned", Backing.ONE_OWNER)
    assert verdicts.withdraw(["liar"], "again") == 0
