"""Finds the stored schedule that fits a workload best, by a sequence of look-ups (the ladder).

A workload is a fused subgraph to tune, and a record stores its best schedule. The look-ups (rungs)
search for one of these, in this order:

- the record of the workload itself;
- the record of a workload that differs only in constants such as scales (the same family);
- the record of the workload for another target with the same instructions;
- the record of the workload with the most similar sizes;
- the untuned default.

Callers name the last rung to try. A schedule that is not from the first rung is borrowed. A
borrowed schedule must be in the schedule space of the requested workload. It is rejected if a
measurement of it on the requested workload has failed. Withdrawn measurements do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.schedule.space import ScheduleSpace
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import StoredRecord
from tilewright.db.stores.shapes import Relative
from tilewright.service.jobs.device.job_target import target_names, target_of_key
from tilewright.service.jobs.knowledge.families import shape_of
from tilewright.tuner.protocol.measurement import RecordKey, TuningRecord
from tilewright.tuner.tasks import Task

MEMBERS_AT_ONCE = 50
"""Number of workloads of a family whose records are read in one query."""

MOST_MEMBERS = 500
"""Limit of the workloads of a family whose records are considered. A network with many scales may
have thousands."""

MOST_RELATIVES = 60
"""Limit of the similar workloads that are considered, nearest sizes first."""


class Match(StrEnum):
    """How the workload of a stored tuning record is related to the requested workload.

    The search for a record tries these relations in this order.

    Attributes:
        EXACT: the same workload (a fused subgraph to tune).
        OTHER_NUMBERS: a workload that differs only in constants such as scales.
        SAME_INSTRUCTIONS: the same workload for another target with the same instructions.
        NEAREST_SHAPE: of the workloads that differ only in sizes, one with the most similar sizes.
        DEFAULT: no record was found, so that the default schedule is used.
    """

    EXACT = "exact"
    OTHER_NUMBERS = "other-numbers"
    SAME_INSTRUCTIONS = "same-instructions"
    NEAREST_SHAPE = "nearest-shape"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class LadderStep:
    """A record found for a workload.

    Attributes:
        match: the look-up that found the record, such as `Match.EXACT`.
        stored: the record.
        distance: the root mean square of log2 of the ratios between the sizes of the record's
            workload and the requested ones; 0 for the same sizes.
    """

    match: Match
    stored: StoredRecord
    distance: float = 0.0


Near = Sequence[tuple[float, Relative]]
"""Pairs of distance and workload, nearest first. All workloads have the same structure and a
confirmed record."""

_Usable = Callable[[RecordKey, StoredRecord], bool]


def find(
    wanted: Mapping[RecordKey, Workload],
    mode: Mode,
    storage: Storage,
    down_to: Match,
    *,
    start: Match = Match.EXACT,
    holding: bool,
) -> dict[RecordKey, LadderStep]:
    """Find a stored record for each workload, by a sequence of look-ups in the order of `Match`.

    The first look-up requires a record of the workload itself. Later look-ups accept records of
    related workloads, and so borrow their schedules.

    Args:
        wanted: the workloads by their record keys, all of one mode.
        mode: the mode of the keys: target, threads and numerics.
        storage: the database.
        down_to: the last look-up to try.
        start: the first look-up to try.
        holding: whether to borrow only from records that the present version of the code generator
            made and whose results were verified.

    Returns:
        the first record found for each workload. A workload without a record is missing.

    Raises:
        CompilerError: if no template supports a workload for which a schedule is borrowed.
    """
    found: dict[RecordKey, LadderStep] = {}
    usable = _Borrowing(wanted, mode, storage, holding)
    rungs = list(Match)
    for match in rungs[rungs.index(start) : rungs.index(down_to) + 1]:
        left = {key: one for key, one in wanted.items() if key not in found}
        if not left:
            break
        match match:
            case Match.EXACT:
                served = storage.ledger.served(list(left))
                found |= {key: LadderStep(match, stored) for key, stored in served.items()}
            case Match.OTHER_NUMBERS:
                found |= _relatives(left, storage, usable)
            case Match.SAME_INSTRUCTIONS:
                found |= _same_instructions(left, mode, storage, usable)
            case Match.NEAREST_SHAPE:
                for key, one in left.items():
                    near = near_shapes(one, mode, storage)
                    found |= _nearest(key, near, near_records(near, mode, storage), usable)
            case Match.DEFAULT:
                pass  # it needs no record
    return found


def known(tasks: Sequence[Task], storage: Storage) -> set[RecordKey]:
    """Return the keys of the tasks that have a valid record and need no further measurement."""
    found = storage.records.best_records([task.key for task in tasks])
    return {task.key for task in tasks if task.is_known(found.get(task.key), CODEGEN_VERSION)}


def borrowed(tasks: Sequence[Task], storage: Storage) -> dict[RecordKey, TuningRecord]:
    """Find a record of the same family for each task that has no record of its own.

    Two layers of a quantised model that differ only in their scales are two workloads with separate
    records. A search would find the same schedule for both. So if one has a record, the job does
    not search for the other: it only compares the schedule of that record with the default.

    Returns:
        the records by the task's key; a task without such a record is missing.
    """
    if not tasks:
        return {}
    own, mode = known(tasks, storage), tasks[0].mode
    left = {task.key: task for task in tasks if task.key not in own}
    wanted = {key: task.workload for key, task in left.items()}
    family = Match.OTHER_NUMBERS
    found = find(wanted, mode, storage, family, start=family, holding=True)
    records = {key: step.stored.record for key, step in found.items()}
    return {key: r for key, r in records.items() if left[key].is_known(r, CODEGEN_VERSION)}


def near_shapes(workload: Workload, mode: Mode, storage: Storage) -> Near:
    """Find workloads with a confirmed record that differ from `workload` only in sizes.

    A dynamic dimension is compared by a size near the middle of its range.

    Returns:
        pairs of distance and workload, nearest first, at most MOST_RELATIVES.
    """
    storage.shapes.index(shape_of)
    fixed = workload.typical()
    return storage.shapes.nearest(fixed.structure, fixed.sizes, *mode.key, MOST_RELATIVES)


def near_records(near: Near, mode: Mode, storage: Storage) -> dict[RecordKey, StoredRecord]:
    """Return the confirmed records of the workloads in `near`, by record key."""
    return storage.ledger.served([RecordKey(each.workload_key, *mode.key) for _, each in near])


def step_to(
    key: RecordKey, workload: Workload, near: Near, mode: Mode, storage: Storage
) -> LadderStep | None:
    """Return the first record in `near` whose schedule a workload can borrow.

    Args:
        key: the record key of the workload.
        workload: the workload.
        near: workloads that differ only in sizes, most similar first, from `near_shapes`.
        mode: the mode of the key.
        storage: the database.

    Returns:
        the record; None if the workload can borrow none of the schedules.
    """
    usable = _Borrowing({key: workload}, mode, storage, holding=False)
    return _nearest(key, near, near_records(near, mode, storage), usable).get(key)


def _nearest(
    key: RecordKey, near: Near, records: Mapping[RecordKey, StoredRecord], usable: _Usable
) -> dict[RecordKey, LadderStep]:
    for away, each in near:
        stored = records.get(replace(key, workload_key=each.workload_key))
        if stored is not None and usable(key, stored):
            return {key: LadderStep(Match.NEAREST_SHAPE, stored, away)}
    return {}


class _Borrowing:
    """A predicate: whether a workload can use (borrow) the schedule of another workload's record.

    A call takes the record key of the workload and the record, and returns the decision. A schedule
    can be borrowed if it is in the schedule space of the workload, and no trial of it on this
    workload has failed. The schedule space and the failed schedules of each workload are cached,
    because there may be hundreds of calls per workload.

    Args:
        wanted: the workloads by their record keys, all of one mode.
        mode: the mode of the keys.
        storage: the database.
        holding: whether a record must also have a certificate, and the present version of code
            generation.
    """

    def __init__(
        self, wanted: Mapping[RecordKey, Workload], mode: Mode, storage: Storage, holding: bool
    ) -> None:
        self._wanted = wanted
        self._mode = mode
        self._storage = storage
        self._holding = holding
        self._spaces: dict[RecordKey, ScheduleSpace] = {}
        self._failed: dict[RecordKey, set[str]] = {}

    def __call__(self, key: RecordKey, stored: StoredRecord) -> bool:
        record = stored.record
        if self._holding and not record.holds(CODEGEN_VERSION):
            return False
        if key not in self._failed:
            self._failed[key] = self._storage.records.failed_schedules(key)
        if record.schedule.digest in self._failed[key]:
            return False
        if key not in self._spaces:
            self._spaces[key] = schedule_space(self._wanted[key], self._mode)
        return record.schedule in self._spaces[key]


def _relatives(
    wanted: Mapping[RecordKey, Workload], storage: Storage, usable: _Usable
) -> dict[RecordKey, LadderStep]:
    """For each workload, return the newest record of its family whose schedule it can borrow."""
    families: dict[str, list[RecordKey]] = {}
    for key, workload in wanted.items():
        families.setdefault(workload.family, []).append(key)
    found: dict[RecordKey, LadderStep] = {}
    storage.shapes.index(shape_of)  # read once: each call runs a statement
    for family, keys in families.items():
        left = list(keys)
        for stored in _members(family, keys[0], storage):
            taken = [key for key in left if key != stored.record.key and usable(key, stored)]
            found |= dict.fromkeys(taken, LadderStep(Match.OTHER_NUMBERS, stored))
            left = [key for key in left if key not in found]
            if not left:
                break
    return found


def _members(family: str, key: RecordKey, storage: Storage) -> Iterator[StoredRecord]:
    """Yield the confirmed records of a family, newest first.

    Args:
        family: the family.
        key: a record key with the target, threads and numerics of the records.
        storage: the database.
    """
    mode = key.target_key, key.threads, key.numerics
    members = storage.shapes.members(family, *mode, MOST_MEMBERS)
    keys = [RecordKey(name, *mode) for name in members]
    for start in range(0, len(keys), MEMBERS_AT_ONCE):  # usually the first one suffices
        some = keys[start : start + MEMBERS_AT_ONCE]
        served = storage.ledger.served(some)
        yield from (served[key] for key in some if key in served)


def _same_instructions(
    wanted: Mapping[RecordKey, Workload], mode: Mode, storage: Storage, usable: _Usable
) -> dict[RecordKey, LadderStep]:
    """For each workload, find a record of the same workload for a target with equal instructions.

    A workload without such a record is missing from the result.
    """
    target = mode.target
    found: dict[RecordKey, LadderStep] = {}
    for other_key in target_names(storage):
        if other_key == target.key:
            continue
        other = target_of_key(other_key, storage)
        same = (other.arch, set(other.features), other.vector_bits) == (
            target.arch,
            set(target.features),
            target.vector_bits,
        )
        if not same:
            continue
        there = {replace(key, target_key=other_key): key for key in wanted if key not in found}
        for name, stored in storage.ledger.served(list(there)).items():
            if usable(there[name], stored):
                found[there[name]] = LadderStep(Match.SAME_INSTRUCTIONS, stored)
    return found
