"""Reviews claims: repeats the measurement of a claim, and confirms or disputes the claim.

A claim is a result that workers have measured: a tuning record, or the verdict of a race between
programs. A worker may report false times, by intent or because of a fault, and every later job
would use them. So another worker, if one is alive, repeats the measurement before other jobs rely
on the claim.

The claim is confirmed if the second report agrees, and disputed if it contradicts. An inconclusive
second report leaves the claim unchanged. A claim is weakly attested if only workers of one owner
have measured it. `Review.repeat` implements the procedure. It is used in four cases:

- a job reviews its own new records before other jobs may use them (`ScheduleReviews.confirm`);
- a job reviews weakly attested records that it could use (`ScheduleReviews.doubt`);
- a job reviews the verdict of a race before it relies on the verdict (`review_race`);
- an idle tuner reviews weakly attested records (`service.jobs.evidence.weak_records`).

`db.review_state` defines the states of a claim and its attestation.
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
"""Largest number of attempts at a second measurement. The second attempt is needed if the workers
of the first left."""

C = TypeVar("C", bound=StoredClaim)
C_contra = TypeVar("C_contra", bound=StoredClaim, contravariant=True)


@dataclass(frozen=True, slots=True)
class SecondReport:
    """The result of repeating a worker's measurement, to confirm or contradict it.

    Attributes:
        report: the second measurement as JSON.
        worker: the id of the worker that repeated the measurement; "" for the service's own
            machine.
        agrees: whether the second measurement confirms the first one.
        contradiction: a sentence on how the second measurement contradicts the first; "" if it does
            not.
    """

    report: Mapping[str, Any]
    worker: str
    agrees: bool
    contradiction: str = ""


class Repetition(Protocol[C_contra]):
    """Repeats workers' measurements of one kind, tuning records or races, to confirm them.

    A measurement to confirm is called a claim.
    """

    def name(self, claim: C_contra) -> str:
        """Return the name of the measured workload or race, for messages to users.

        `claim` is the measurement to confirm: a tuning record or a race.
        """

    def repeat(self, claims: Sequence[C_contra], device: Device) -> Sequence[SecondReport | None]:
        """Repeat measurements on a device, to confirm them.

        Args:
            claims: the measurements to confirm: tuning records or races.
            device: the device that repeats them.

        Returns:
            the second measurement for each claim, in order; None if the device did not measure it.
        """


@dataclass(frozen=True, slots=True)
class Reviewed:
    """The result of a review: a second measurement of claims (speeds that workers reported).

    Attributes:
        confirmed: the number of claims with which the second measurement agreed.
        disputed: one sentence for each claim that the second measurement contradicted.
        open: the number of the job's tuning records that are neither confirmed nor disputed yet.
    """

    confirmed: int = 0
    disputed: tuple[str, ...] = ()
    open: int = 0

    def __add__(self, later: Reviewed) -> Reviewed:
        """Return the combined result of two reviews: added counts, and joined sentences.

        The count `open` is that of `later`, because it describes the state after both reviews.
        """
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
    """Checks claims (speeds that workers reported) by a second measurement of each claim.

    A claim is confirmed if the second measurement agrees, and disputed if it contradicts the claim.

    Args:
        storage: the database with the claims.
        device: the device of the job; it selects other workers for the second measurements.
        repetition: performs the second measurements of one kind of claim, such as tuning records.
        stopped: returns True if no further attempt may begin.
        rounds: the largest number of attempts to measure a claim. An attempt fails if its worker
            leaves.
        job_id: the job that runs the review, which is not notified of disputes; "" without a job.
    """

    storage: Storage
    device: Device
    repetition: Repetition[C]
    stopped: Callable[[], bool] = lambda: False
    rounds: int = ROUNDS
    job_id: str = ""

    def doubtful(self, claims: Sequence[C]) -> Sequence[C]:
        """Return the claims (reported speeds) that need and can get a second measurement.

        A claim needs a second measurement if only workers of a single owner have measured it. A
        claim can get one if a connected worker would make it more trustworthy, such as a worker of
        another owner.
        """
        weak = [one for one in claims if one.attestation.weak]
        worth = {one: self.device.worth(one) for one in {each.reporter for each in weak}}
        return [one for one in weak if worth[one.reporter].rank > one.attestation.rank]

    def repeat(self, claims: Sequence[C]) -> Reviewed:
        """Measure claims (speeds that workers reported) again, and confirm or dispute each claim.

        Other jobs that used a disputed claim are notified by an event.

        Returns:
            the number of confirmed claims, and a sentence for each disputed claim.

        Raises:
            CompilerError: if a program to measure cannot be compiled.
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
                    continue  # the remaining workers raise the attestation less
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
