"""What is known of other members of a task's family: workloads that differ in numbers alone.

Two layers of a quantised model that differ in their scales are two workloads with two record keys.
A schedule that was found for one is all that a search for the other would find. So a job compares
it with the default of the other, which takes two candidates, and searches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.db.errors import StorageError
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import StoredRecord
from tilewright.db.stores.shapes import INDEXED_AT_ONCE, WorkloadShape
from tilewright.service.jobs.report.workload_facts import workload_name
from tilewright.tuner.measure.measurement import RecordKey, TuningRecord
from tilewright.tuner.tasks import Task

MEMBERS_AT_ONCE = 50
"""Of a family, whose records are read together."""

MOST_MEMBERS = 500
"""Of a family, that are looked at: a network of many scales may have thousands."""


def relatives_of(workload: Workload, key: RecordKey, storage: Storage) -> Iterator[StoredRecord]:
    """The newest served records of its family under the target, threads and numerics of a key.

    The workload's own is not among them.
    """
    storage.shapes.index(shape_of)
    return _served_of(workload, key, storage)


def _served_of(workload: Workload, key: RecordKey, storage: Storage) -> Iterator[StoredRecord]:
    """`relatives_of` once the shapes are indexed."""
    where = key.target_key, key.threads, key.numerics
    members = storage.shapes.members(workload.family, *where, MOST_MEMBERS)
    keys = [RecordKey(name, *where) for name in members if name != workload.key]
    for start in range(0, len(keys), MEMBERS_AT_ONCE):  # mostly the first one will do
        yield from storage.ledger.served(keys[start : start + MEMBERS_AT_ONCE]).values()


def related_records(
    wanted: Mapping[RecordKey, Workload], storage: Storage
) -> dict[RecordKey, TuningRecord]:
    """For each workload a record that holds of another one of its family, where there is one."""
    families: dict[tuple[str, str, int, str], list[RecordKey]] = {}
    for key, workload in wanted.items():
        where = workload.family, key.target_key, key.threads, key.numerics
        families.setdefault(where, []).append(key)
    found: dict[RecordKey, TuningRecord] = {}
    storage.shapes.index(shape_of)  # once: it is a statement for each call
    for keys in families.values():
        for stored in _served_of(wanted[keys[0]], keys[0], storage):
            record = stored.record
            if record.holds(CODEGEN_VERSION) and record.measurement.certified:
                found |= dict.fromkeys(keys, record)
                break
    return found


def records_of_relatives(tasks: Sequence[Task], storage: Storage) -> dict[RecordKey, TuningRecord]:
    """A record that holds for each task that has none, of another workload of its family."""
    known = storage.records.best_records([task.key for task in tasks])
    unknown = {
        task.key: task for task in tasks if not task.is_known(known.get(task.key), CODEGEN_VERSION)
    }
    found = related_records({key: task.workload for key, task in unknown.items()}, storage)
    return {
        key: record
        for key, record in found.items()
        if unknown[key].is_known(record, CODEGEN_VERSION) and record.schedule in unknown[key].space
    }


def name_workloads(storage: Storage) -> int:
    """Find the names of workloads that came since the last time, for those who list some.

    It is a batch of them, so that no request waits for the names of all that a database holds; how
    many. The api finds those of all when it starts.
    """
    try:
        return storage.shapes.index(shape_of, INDEXED_AT_ONCE)
    except StorageError as error:  # who may only read must not be stopped by a full disk
        import structlog  # with it comes asyncio

        structlog.get_logger("tilewright.web").warning("workloads not named", error=str(error))
        return 0


def shape_of(text: str) -> WorkloadShape:
    """The structure, the family, the sizes and the name of a workload's text; nothing of one of
    another release."""
    try:
        workload = Workload.parse(text)
        fixed, name = workload.typical(), workload_name(workload)
    except CompilerError:
        return WorkloadShape()
    return WorkloadShape(
        fixed.structure, workload.family, fixed.sizes, name.partition(" ")[0], name
    )
