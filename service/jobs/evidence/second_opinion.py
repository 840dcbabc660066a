"""Verdicts of races are raced again before other jobs are served by them, as records are.

A worker may lie about which program is faster, or be sick. So the two run once more where that
tells more: on a worker of another owner if there is one, else on another, else on the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.db.standing import Standing
from tilewright.db.storage import Storage
from tilewright.db.stores.verdicts import StoredVerdict
from tilewright.service.jobs.device.device import Device, DeviceError
from tilewright.tuner.measure.model_runs import Race
from tilewright.tuner.measure.statistics import Outcome


def race_again(
    known: StoredVerdict,
    storage: Storage,
    device: Device,
    race: Callable[[Device], Race],
    first: Sequence[Outcome],
) -> StoredVerdict:
    """The verdict as it stands after another race, where one would tell more.

    It is confirmed if both races agree on whether a challenger is faster, and disputed if what one
    found faster is slower in the other. It stays as it is if a tie leaves it open or nobody could
    race.

    Args:
        known: the verdict.
        storage: where it is kept.
        device: knows who else could race.
        race: runs the same programs on a device.
        first: what the race of the verdict found of each challenger.
    """
    if not known.backing.weak or device.worth(known.witness).rank <= known.backing.rank:
        return known
    try:
        found = race(device.beside(known.witness))
    except DeviceError:
        return known
    if len(found.comparisons) < len(first) or not (found.worker or device.trusted):
        return known
    second = [comparison.outcome for comparison in found.comparisons]
    said = {"comparisons": [comparison.to_json() for comparison in found.comparisons]}
    if (Outcome.FASTER in first) is (Outcome.FASTER in second):
        return storage.verdicts.confirm(known, said, None if device.trusted else found.worker)
    contrary = {Outcome.FASTER, Outcome.SLOWER}
    one = next((pair for pair in zip(first, second, strict=False) if {*pair} == contrary), None)
    if one is None:
        return known
    names = known.witness.worker, found.worker
    reason = f"worker '{names[0]}' found it {one[0]}, '{names[1]}' {one[1]}"
    storage.verdicts.dispute(known, said, reason)
    return replace(known, state=Standing.DISPUTED, reason=reason)
