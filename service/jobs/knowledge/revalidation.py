"""Revalidates records after a change of code generation: only records with changed code are stale.

A record belongs to the measured code. If the present code generation emits the same object for its
schedule, the measurement remains valid and is not repeated.
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
    """Revalidate records of earlier code generations whose code is unchanged; return their number.

    A schedule that the space no longer has, or whose code differs, is left to the tuner.

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
