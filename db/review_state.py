"""The review rules for claims: their states, and the trustworthiness of their reports.

A claim is a statement about speed: a schedule is the fastest of its record key, or the tuned
program beats the untuned one in a race. Claims of both kinds have the states of `ReviewState` and
the transitions of `TRANSITIONS`. A claim by a device outside the service is provisional: only the
job that requested the measurement uses it. A review is a second measurement, which confirms or
disputes the claim. The service serves a confirmed claim to all jobs, until a newer or faster claim
about the same subject is served: the earlier claim is then superseded. The attestation of a claim
describes its reporters, the workers that measured: one worker twice, two workers of one owner, or
workers of two owners.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ClaimKind(StrEnum):
    """The kind of statement that a claim makes: about one schedule, or about a race of programs."""

    SCHEDULE = "schedule"
    """A claim that a schedule is the fastest known one for its workload. It is stored as a tuning
    record."""
    RACE = "race"
    """A claim that a model runs fastest end to end with certain schedules: the verdict of a race of
    whole programs."""


class ReviewState(StrEnum):
    """The review state of a claim about speed. It determines whether all jobs may use the claim."""

    PROVISIONAL = "provisional"
    """Measured once, by a device that does not belong to the service. Only the job that requested
    the measurement uses the claim."""
    CONFIRMED = "confirmed"
    """Confirmed by a second measurement, or measured by the service's own machine. The newest
    confirmed claim about a subject is served."""
    SUPERSEDED = "superseded"
    """Replaced: a newer or faster claim about the same subject is served."""
    DISPUTED = "disputed"
    """Contradicted by a second measurement. The claim is not served."""
    WITHDRAWN = "withdrawn"
    """Withdrawn by an admin or by the service. The claim is not served."""


# provisional -> superseded: it is confirmed after a newer, faster claim of its subject.
# confirmed -> provisional: the reviewer is no longer believed, and one report is left.
# superseded -> confirmed: the claim that took its place is disputed or withdrawn.
TRANSITIONS: dict[ReviewState, frozenset[ReviewState]] = {
    ReviewState.PROVISIONAL: frozenset(
        {
            ReviewState.CONFIRMED,
            ReviewState.SUPERSEDED,
            ReviewState.DISPUTED,
            ReviewState.WITHDRAWN,
        }
    ),
    ReviewState.CONFIRMED: frozenset(
        {
            ReviewState.PROVISIONAL,
            ReviewState.CONFIRMED,
            ReviewState.SUPERSEDED,
            ReviewState.DISPUTED,
            ReviewState.WITHDRAWN,
        }
    ),
    ReviewState.SUPERSEDED: frozenset({ReviewState.CONFIRMED, ReviewState.WITHDRAWN}),
    ReviewState.DISPUTED: frozenset({ReviewState.WITHDRAWN}),
    ReviewState.WITHDRAWN: frozenset(),
}


def before(state: ReviewState) -> list[str]:
    """Return the states from which a claim may change to `state`, as values for an SQL `IN`."""
    return [old.value for old, following in TRANSITIONS.items() if state in following]


class Attestation(StrEnum):
    """The trustworthiness of a claim: how many workers, of how many owners, measured it.

    A claim is a statement about speed. The enum members are ordered from weak to strong.
    """

    ONCE = "once"
    ONE_WORKER = "one-worker"
    ONE_OWNER = "one-owner"
    TWO_OWNERS = "two-owners"
    IMPORTED = "imported"
    OWN = "own"

    @property
    def rank(self) -> int:
        return list(Attestation).index(self)

    @property
    def weak(self) -> bool:
        """Whether the workers of one owner alone reported the claim, and could have forged it."""
        return self.rank < Attestation.TWO_OWNERS.rank

    @property
    def sentence(self) -> str:
        """Return the attestation as text for users, such as `measured twice by one worker`."""
        return _SENTENCES[self]


_SENTENCES = {
    Attestation.ONCE: "measured once, by one worker",
    Attestation.ONE_WORKER: "measured twice by one worker",
    Attestation.ONE_OWNER: "measured by two workers of one owner",
    Attestation.TWO_OWNERS: "measured by workers of two owners",
    Attestation.IMPORTED: "imported from another service",
    Attestation.OWN: "measured on the service's own machine",
}


@dataclass(frozen=True, slots=True)
class ClaimReporter:
    """The worker that reported a measurement, and its owner.

    The owner is the id of the token that the worker used at that time. Worker and owner are empty
    for the service's own machine.
    """

    worker: str
    owner: str

    def second(self, other: ClaimReporter) -> Attestation:
        """Return the attestation of this reporter's claim after a second measurement by `other`.

        The attestation states whether one worker, two workers of one owner, or workers of two
        owners measured. `other` may be equal to this reporter.
        """
        if other.worker == self.worker:
            return Attestation.ONE_WORKER
        return Attestation.ONE_OWNER if other.owner == self.owner else Attestation.TWO_OWNERS


def initial(ours: bool) -> tuple[ReviewState, Attestation]:
    """Return the review state and the attestation (who measured it) of a new claim.

    `ours` is true if the service's own machine measured the claim.
    """
    if ours:
        return ReviewState.CONFIRMED, Attestation.OWN
    return ReviewState.PROVISIONAL, Attestation.ONCE


def reviewable(state: ReviewState, attestation: Attestation) -> bool:
    """Whether a second measurement of a claim has a use.

    It has a use if it can confirm or dispute the claim. It also has one if the claim is confirmed,
    but only by workers of one owner: then another worker or owner can attest it.
    """
    served_weakly = state is ReviewState.CONFIRMED and attestation.weak
    return state is ReviewState.PROVISIONAL or served_weakly
