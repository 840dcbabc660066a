"""What becomes of that which devices say, and whose word it rests on.

Records and verdicts of races go the same way. What a device says that is not ours is provisional:
the job that asked uses it, and others only once a second measurement agreed. How much that is worth
depends on who measured: one worker twice, two workers of one owner, or workers of two owners.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Standing(StrEnum):
    """What became of a record or a verdict."""

    PROVISIONAL = "provisional"
    """Measured once, by a device that is not ours: only the job that asked believes it."""
    CONFIRMED = "confirmed"
    """Measured again, or by our own device. The newest one of a key is served."""
    SUPERSEDED = "superseded"
    """A later one is served."""
    DISPUTED = "disputed"
    """The second measurement contradicts the first."""
    WITHDRAWN = "withdrawn"
    """Somebody took it back."""


class Backing(StrEnum):
    """Whose word it is, the least first."""

    ONCE = "once"
    ONE_WORKER = "one-worker"
    ONE_OWNER = "one-owner"
    TWO_OWNERS = "two-owners"
    IMPORTED = "imported"
    OWN = "own"

    @property
    def rank(self) -> int:
        return list(Backing).index(self)

    @property
    def weak(self) -> bool:
        """Whether one owner of workers could have made it up."""
        return self.rank < Backing.TWO_OWNERS.rank

    @property
    def sentence(self) -> str:
        """For people: `measured twice by one worker`."""
        return _SENTENCES[self]


_SENTENCES = {
    Backing.ONCE: "measured once, by one worker",
    Backing.ONE_WORKER: "measured twice by one worker",
    Backing.ONE_OWNER: "measured by two workers of one owner",
    Backing.TWO_OWNERS: "measured by workers of two owners",
    Backing.IMPORTED: "imported from another service",
    Backing.OWN: "measured on the service's own machine",
}


@dataclass(frozen=True, slots=True)
class Witness:
    """Who said something: a worker, and the token that it had; empty where there is none."""

    worker: str
    owner: str

    def second(self, other: Witness) -> Backing:
        """What it is worth that another witness, or the same again, agrees."""
        if other.worker == self.worker:
            return Backing.ONE_WORKER
        return Backing.ONE_OWNER if other.owner == self.owner else Backing.TWO_OWNERS
