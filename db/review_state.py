"""The rules of trust: the states of a claim, and the attestation by its reporters.

A claim is a statement about speed: a schedule is the fastest of its record key, or the tuned
program beats the untuned one in a race. Both kinds pass through the states of one table,
`TRANSITIONS`. The claim of a device that is not ours is provisional: only the job that requested
the measurement believes it. A review is a second measurement. It confirms or disputes the claim,
and the service serves a confirmed claim to all jobs. The attestation of a claim says how much the
reports behind it are worth: one worker twice, two workers of one owner, or workers of two owners.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ClaimKind(StrEnum):
    """The subject of a claim."""

    SCHEDULE = "schedule"
    """A schedule is the fastest known for a workload: a tuning record."""
    RACE = "race"
    """Which of a model's tuned schedules win end to end: the verdict of a race."""


class ReviewState(StrEnum):
    """The state of a claim."""

    PROVISIONAL = "provisional"
    """Measured once, by a device that is not ours: only the job that requested it believes it."""
    CONFIRMED = "confirmed"
    """Measured again, or by our own device. The newest claim of a subject is served."""
    SUPERSEDED = "superseded"
    """A later or faster claim of the subject is served."""
    DISPUTED = "disputed"
    """The second measurement contradicts the first."""
    WITHDRAWN = "withdrawn"
    """An operator took it back."""


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
    """The values of the states from which a claim may step to a state, for SQL."""
    return [old.value for old, following in TRANSITIONS.items() if state in following]


class Attestation(StrEnum):
    """How much the reports behind a claim are worth, the least first."""

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
        """Whether the workers of one owner could have invented the claim."""
        return self.rank < Attestation.TWO_OWNERS.rank

    @property
    def sentence(self) -> str:
        """The attestation as text for people: `measured twice by one worker`."""
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
    """A worker that reported a measurement, and the token that it had.

    Both are empty for our own machine.
    """

    worker: str
    owner: str

    def second(self, other: ClaimReporter) -> Attestation:
        """The attestation of this reporter's claim after a second measurement by `other`, which may
        be the same reporter."""
        if other.worker == self.worker:
            return Attestation.ONE_WORKER
        return Attestation.ONE_OWNER if other.owner == self.owner else Attestation.TWO_OWNERS


def initial(ours: bool) -> tuple[ReviewState, Attestation]:
    """The state and the attestation of a new claim; `ours`: our own machine measured."""
    if ours:
        return ReviewState.CONFIRMED, Attestation.OWN
    return ReviewState.PROVISIONAL, Attestation.ONCE


def reviewable(state: ReviewState, attestation: Attestation) -> bool:
    """Whether a second measurement decides about a claim in this state."""
    served_weakly = state is ReviewState.CONFIRMED and attestation.weak
    return state is ReviewState.PROVISIONAL or served_weakly
