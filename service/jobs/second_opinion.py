"""Verdicts of races are raced again before other jobs are served by them, as records are.

A worker may lie about which program is faster, or be sick. So the two run once more where that
tells more: on a worker of another owner if there is one, else on another, else on the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from db.standing import Standing
from db.storage import Storage
from db.stores.verdicts import StoredVerdict
from service.jobs.device import Device, DeviceError
from tuner.measure.model_runs import Race
from tuner.measure.statistics import Outcome


def race_again(
    known: StoredVerdict,
    storage: Storage,
    device: Device,
    race: Callable[[Device], Race],
    *,
    faster: bool,
    challengers: int = 1,
) -> StoredVerdict:
    """The verdict as it stands after another race, where one would tell more.

    It is confirmed if both races agree, disputed if they contradict each other, and stays as it is
    if a tie leaves it open or nobody could race.

    Args:
        known: the verdict.
        storage: where it is kept.
        device: knows who else could race.
        race: runs the same programs on a device.
        faster: whether the verdict says that the challenger is faster, or that none is.
        challengers: how many there are; one if `faster`.
    """
    if not known.backing.weak or device.worth(known.witness).rank <= known.backing.rank:
        return known
    try:
        found = race(device.beside(known.witness))
    except DeviceError:
        return known
    if len(found.comparisons) < challengers or not (found.worker or device.trusted):
        return known
    outcomes = [comparison.outcome for comparison in found.comparisons]
    said = {"comparisons": [comparison.to_json() for comparison in found.comparisons]}
    if faster is (Outcome.FASTER in outcomes):
        return storage.verdicts.confirm(known, said, None if device.trusted else found.worker)
    if faster and Outcome.SLOWER not in outcomes:
        return known
    words = ("faster", "slower") if faster else ("not faster", "faster")
    reason = f"worker '{known.witness.worker}' found it {words[0]}, '{found.worker}' {words[1]}"
    storage.verdicts.dispute(known, said, reason)
    return replace(known, state=Standing.DISPUTED, reason=reason)
