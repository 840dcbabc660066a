"""Reviews a race: repeats it on another worker if one is alive, and compares the outcomes.

A race times the tuned program of a model against the untuned program. Its outcome, the verdict,
decides which program is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import StoredRace
from tilewright.service.jobs.device.device import Device, DeviceError
from tilewright.service.jobs.evidence.review import Review, Reviewed, SecondReport
from tilewright.tuner.measure.statistics import Outcome
from tilewright.tuner.protocol.run_results import Race


@dataclass(frozen=True, slots=True)
class RaceAgain:
    """Repeats a race between programs of a model, to confirm or contradict its decision.

    In a race, one or several programs (the challengers) compete with the untuned program. The
    decision (verdict) is which program is used. The second race confirms the verdict if both races
    agree on whether any challenger is faster. It contradicts the verdict if a challenger is faster
    in one race and slower in the other. Any other combination, such as faster and a tie, is
    inconclusive.

    Args:
        race: runs the programs of the verdict on a device.
        first: the outcome of each challenger in the first race.
    """

    race: Callable[[Device], Race]
    first: Sequence[Outcome]

    def name(self, claim: StoredRace) -> str:
        return f"race {claim.identity[:12]}"

    def repeat(self, claims: Sequence[StoredRace], device: Device) -> Sequence[SecondReport | None]:
        return [self._again(one, device) for one in claims]

    def _again(self, claim: StoredRace, device: Device) -> SecondReport | None:
        try:
            found = self.race(device)
        except DeviceError:
            return None
        if len(found.comparisons) < len(self.first) or not (found.worker or device.trusted):
            return None
        second = [comparison.outcome for comparison in found.comparisons]
        report = {"comparisons": [comparison.to_json() for comparison in found.comparisons]}
        worker = "" if device.trusted else found.worker
        if (Outcome.FASTER in self.first) is (Outcome.FASTER in second):
            return SecondReport(report, worker, True)
        contrary = {Outcome.FASTER, Outcome.SLOWER}
        pairs = zip(self.first, second, strict=False)
        one = next((pair for pair in pairs if {*pair} == contrary), None)
        if one is None:
            return SecondReport(report, worker, False)
        names = claim.reporter.worker, found.worker
        reason = f"worker '{names[0]}' found it {one[0]}, '{names[1]}' {one[1]}"
        return SecondReport(report, worker, False, reason)


def review_race(
    claim: StoredRace,
    storage: Storage,
    device: Device,
    race: Callable[[Device], Race],
    first: Sequence[Outcome],
    *,
    job_id: str = "",
) -> Reviewed:
    """Repeat a race between programs, and confirm or dispute its decision (the verdict).

    The race is repeated only if workers of a single owner have run it so far. The repetition on
    `device` must also make the verdict more trustworthy; for example, `device` has a worker of
    another owner.

    Args:
        claim: the stored race with its verdict.
        storage: the database with the race.
        device: the device of the job that relies on the verdict.
        race: runs the programs of the verdict on a device.
        first: the outcomes of the first race: one for each program that was timed against the
            untuned program.
        job_id: the job that relies on the verdict; "" without one.

    Returns:
        the number of confirmed verdicts, and a sentence for a disputed verdict.

    Raises:
        CompilerError: if a program does not compile.
        DatabaseError: if the database fails.
    """
    review = Review(storage, device, RaceAgain(race, first), rounds=1, job_id=job_id)
    return review.repeat(review.doubtful([claim]))
