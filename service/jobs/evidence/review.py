"""Reviews: a claim is measured again, on another worker if one is alive, and judged.

A worker may lie, or be faulty unnoticed, and its claim would be served for ever. So the measurement
is repeated before other jobs rely on the claim. The claim is confirmed if it holds, and disputed if
the two reports contradict each other. An inconclusive second report leaves it unchanged. One
procedure, `Review.repeat`, has four triggers:

- a job reviews its own new records before they are served (`ScheduleReviews.confirm`);
- a job reviews served records of weak attestation that it could use (`ScheduleReviews.doubt`);
- a job reviews the verdict of a race before it relies on it (`review_race`);
- an idle tuner reviews records of weak attestation (`service.jobs.evidence.weak_records`).

`db.review_state` has the rules of trust.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tilewright.db.review_state import ClaimReporter
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import StoredClaim
from tilewright.service.jobs.device.device import Device
from tilewright.service.jobs.evidence.withdrawal import tell

ROUNDS = 2
"""Number of attempts. The second one is needed if the workers of the first left."""

C = TypeVar("C", bound=StoredClaim)
C_contra = TypeVar("C_contra", bound=StoredClaim, contravariant=True)


@dataclass(frozen=True, slots=True)
class SecondReport:
    """The report of a repeated measurement.

    Attributes:
        report: the report as JSON.
        worker: the id of the worker that measured; "" for our own machine.
        agrees: whether it confirms the claim.
        contradiction: a sentence if it contradicts the claim, otherwise "".
    """

    report: Mapping[str, Any]
    worker: str
    agrees: bool
    contradiction: str = ""


class Repetition(Protocol[C_contra]):
    """A way to repeat the measurements of one kind of claim."""

    def name(self, claim: C_contra) -> str:
        """Return the subject of the claim, as text for users."""

    def repeat(self, claims: Sequence[C_contra], device: Device) -> Sequence[SecondReport | None]:
        """Repeat the measurements; returns the report for each claim, in order, None if the device
        did not measure it."""


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The result of reviews.

    Attributes:
        confirmed: the number of confirmed claims.
        disputed: a sentence for each contradicted claim.
        open: the number of records that are still provisional.
    """

    confirmed: int = 0
    disputed: tuple[str, ...] = ()
    open: int = 0

    def __add__(self, later: Reviewed) -> Reviewed:
        """Return the sum of both results, except that `open` is taken from `later`."""
        disputed = self.disputed + later.disputed
        return Reviewed(self.confirmed + later.confirmed, disputed, later.open)

    def to_json(self) -> dict[str, Any]:
        return {
            "confirmed": self.confirmed,
            "disputed": list(self.disputed),
            "open": self.open,
        }


@dataclass(frozen=True, slots=True)
class Review(Generic[C]):
    """Repeats measurements of claims of one kind, and confirms or disputes each claim in the
    ledger.

    Args:
        storage: the ledger of the claims.
        device: the device of the reviewing job, which has access to the other workers.
        repetition: repeats the measurements.
        stopped: returns whether to begin no more attempts.
        rounds: the number of attempts per claim.
        job_id: the reviewing job, which gets no event; "" without one.
    """

    storage: Storage
    device: Device
    repetition: Repetition[C]
    stopped: Callable[[], bool] = lambda: False
    rounds: int = ROUNDS
    job_id: str = ""

    def doubtful(self, claims: Sequence[C]) -> Sequence[C]:
        """Return the weakly attested claims whose attestation a repetition could raise now."""
        weak = [one for one in claims if one.attestation.weak]
        worth = {one: self.device.worth(one) for one in {each.reporter for each in weak}}
        return [one for one in weak if worth[one.reporter].rank > one.attestation.rank]

    def repeat(self, claims: Sequence[C]) -> Reviewed:
        """Repeat the measurements of claims, and confirm or dispute each in the ledger.

        The other jobs that were built on a disputed claim get an event.

        Raises:
            CompilerError: if the programs to measure cannot be made.
            DatabaseError: if the database fails.
        """
        found = Reviewed()
        least: dict[ClaimReporter, int] = {}
        left = list(claims)
        for _ in range(self.rounds):
            groups: dict[ClaimReporter, list[C]] = defaultdict(list)
            for one in left:
                groups[one.reporter].append(one)
            left = []
            for reporter, some in groups.items():
                worth = self.device.worth(reporter).rank
                if worth < least.setdefault(reporter, worth):
                    continue  # the workers that are left raise the attestation less
                reports = self.repetition.repeat(some, self.device.second_opinion(reporter))
                for one, report in zip(some, reports, strict=True):
                    if report is None:
                        left.append(one)
                    else:
                        found += self._judge(one, report)
            if self.stopped():
                break
        return found

    def _judge(self, claim: C, second: SecondReport) -> Reviewed:
        ledger, reason = self.storage.ledger, second.contradiction
        if reason:
            if ledger.dispute(claim.id, second.report, reason):
                users = [user for user in ledger.uses(claim.id) if user != self.job_id]
                tell(self.storage, users, reason, [claim.id])
            return Reviewed(disputed=(f"'{self.repetition.name(claim)}': {reason}",))
        ours = self.device.trusted
        held = second.agrees and ledger.confirm(claim.id, second.report, second.worker, ours=ours)
        return Reviewed(int(held))
