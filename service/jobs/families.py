"""What is known of other members of a task's family: workloads that differ in numbers alone.

Two layers of a quantised model that differ in their scales are two workloads with two record keys.
A schedule that was found for one is all that a search for the other would find. So a job compares
it with the default of the other, which takes two candidates, and searches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from compiler.build import CODEGEN_VERSION
from compiler.errors import CompilerError
from compiler.workload import Workload
from db.storage import Storage
from db.stores.record_ledger import StoredRecord
from tuner.measure.measurement import RecordKey, TuningRecord
from tuner.tasks import Task


def relatives_of(workload: Workload, key: RecordKey, storage: Storage) -> Iterator[StoredRecord]:
    """The served records of its family under the target, threads and numerics of a key.

    The workload's own is not among them.
    """
    storage.shapes.index(shape_of)
    fixed = workload.typical()
    alike = storage.shapes.relatives(fixed.structure, key.target_key, key.threads, key.numerics)
    keys = [
        one.workload_key
        for one in alike
        if one.sizes == fixed.sizes and one.workload_key != workload.key
    ]
    texts = storage.workloads.workloads(keys)
    family = workload.family
    members = [name for name in keys if _family(texts.get(name, "")) == family]
    served = storage.ledger.served(
        [RecordKey(name, key.target_key, key.threads, key.numerics) for name in members]
    )
    yield from served.values()


def records_of_relatives(tasks: Sequence[Task], storage: Storage) -> dict[RecordKey, TuningRecord]:
    """A record that holds for each task that has none, of another workload of its family."""
    known = storage.records.best_records([task.key for task in tasks])
    found: dict[RecordKey, TuningRecord] = {}
    for members in _families(t for t in tasks if not t.is_known(known.get(t.key), CODEGEN_VERSION)):
        first = members[0]
        for stored in relatives_of(first.workload, first.key, storage):
            if (
                first.is_known(stored.record, CODEGEN_VERSION)
                and stored.record.measurement.certified
            ):
                found |= {task.key: stored.record for task in members}
                break
    return found


def shape_of(text: str) -> tuple[str, tuple[int, ...]]:
    """The structure and the sizes of a workload's text; nothing of one of another release."""
    try:
        fixed = Workload.parse(text).typical()
    except CompilerError:
        return "", ()
    return fixed.structure, fixed.sizes


def _family(text: str) -> str:
    try:
        return Workload.parse(text).family
    except CompilerError:
        return ""


def _families(tasks: Iterable[Task]) -> list[list[Task]]:
    found: dict[object, list[Task]] = {}
    for task in tasks:
        found.setdefault(task.family, []).append(task)
    return list(found.values())
