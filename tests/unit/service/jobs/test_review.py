"""`Review.repeat`: a claim of either kind is measured again, and the ledger keeps the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.unit.db.test_races import SAID, add
from tests.unit.service.devices import FakeDevice
from tests.unit.service.jobs.test_withdrawal import job
from tilewright.db.review_state import Attestation, ReviewState
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import StoredRace
from tilewright.service.jobs.device.device import Device
from tilewright.service.jobs.evidence.review import Review, Reviewed, SecondReport

AGREES = SecondReport(SAID, "honest", True)
UNSURE = SecondReport(SAID, "honest", False)
CONTRADICTS = SecondReport(SAID, "honest", False, "why")


@dataclass
class Told:
    """A repetition with given reports, one list per attempt."""

    reports: list[list[SecondReport | None]]
    seen: list[list[str]] = field(default_factory=list)

    def name(self, claim: StoredRace) -> str:
        return claim.identity

    def repeat(self, claims: Sequence[StoredRace], device: Device) -> Sequence[SecondReport | None]:
        self.seen.append([one.identity for one in claims])
        return self.reports.pop(0)


def review(storage: Storage, told: Told, device: FakeDevice) -> Review[StoredRace]:
    return Review(storage, device, told)  # type: ignore[arg-type]


def race(storage: Storage, identity: str, worker: str = "board") -> StoredRace:
    return add(storage.ledger, identity, "job", "tuned", {}, worker)


def state(storage: Storage, one: StoredRace) -> ReviewState:
    found = storage.ledger.race_by_id(one.id)
    assert found is not None
    return found.state


def test_each_report_has_its_step(storage: Storage) -> None:
    races = [race(storage, name) for name in ("a", "b", "c")]
    told = Told([[AGREES, CONTRADICTS, UNSURE]])
    found = review(storage, told, FakeDevice()).repeat(races)
    assert found == Reviewed(1, ("'b': why",))
    assert [state(storage, one) for one in races] == [
        ReviewState.CONFIRMED,
        ReviewState.DISPUTED,
        ReviewState.PROVISIONAL,
    ]


def test_a_claim_without_a_report_has_one_more_attempt(storage: Storage) -> None:
    races = [race(storage, name) for name in ("a", "b")]
    told = Told([[None, AGREES], [AGREES]])
    assert review(storage, told, FakeDevice()).repeat(races).confirmed == 2
    assert told.seen == [["a", "b"], ["a"]]


def test_only_a_repetition_that_could_raise_the_attestation_is_wanted(storage: Storage) -> None:
    one = race(storage, "a")
    assert storage.ledger.confirm(one.id, SAID, "board")
    known = storage.ledger.race("a")
    assert known is not None and known.attestation is Attestation.ONE_WORKER
    for device, wanted in (
        (FakeDevice(worker="board"), []),
        (FakeDevice(worker="another"), [known]),
        (FakeDevice(trusted=True), [known]),
    ):
        assert review(storage, Told([]), device).doubtful([known]) == wanted


def test_jobs_that_were_built_on_a_disputed_claim_get_an_event(storage: Storage) -> None:
    user, other = job(storage, "user"), job(storage, "other")
    one = race(storage, "a", "liar")
    assert storage.ledger.confirm(one.id, SAID, "liar") and storage.ledger.use([one.id], user)
    review(storage, Told([[CONTRADICTS]]), FakeDevice()).repeat([one])
    (event,) = [e for e in storage.events.since(user) if e.kind == "withdrawn"]
    assert event.data["reason"] == "why"
    assert not [e for e in storage.events.since(other) if e.kind == "withdrawn"]
