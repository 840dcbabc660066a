"""Keeps records valid after a change of the code generator if their machine code is unchanged.

A record was measured with a certain object file. If the present code generator emits the same
object for the record's schedule, the measurement remains valid and is not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.db.storage import Storage
from tilewright.service.jobs.plan.model_tasks import task_of
from tilewright.service.jobs.plan.planning import Planned
from tilewright.service.version import version
from tilewright.tuner.measure.builder import Builder
from tilewright.tuner.protocol.measurement import RecordKey


def revalidate(plans: Sequence[Planned], storage: Storage, builder: Builder) -> int:
    """Mark records of earlier code generators as valid if the present one emits the same object.

    A record whose schedule is no longer in the schedule space, or whose object differs, is not
    changed; the job then tunes its task again.

    Args:
        plans: the plans of a model, whose workloads are revalidated.
        storage: the database.
        builder: compiles the schedules of the records.

    Returns:
        the number of records that were marked.

    Raises:
        CompilerError: if a task cannot be created.
    """
    mode = plans[0].mode
    workloads = {workload.key: workload for each in plans for workload, _ in each.workloads}
    served = storage.ledger.served([RecordKey(key, *mode.key) for key in workloads])
    building = []
    for key, stored in served.items():
        record = stored.record
        if record.codegen_version == CODEGEN_VERSION or not record.measurement.certified:
            continue
        task = task_of(workloads[key.workload_key], mode)
        if record.schedule in task.space:
            building.append((stored, builder.submit(task, [record.schedule])))
    held = []
    for stored, ticket in building:
        (built,) = ticket.results()
        if built.object_digest and built.object_digest == stored.record.measurement.object_digest:
            held.append(stored.id)
    storage.ledger.revalidate(held, CODEGEN_VERSION, version())
    return len(held)
