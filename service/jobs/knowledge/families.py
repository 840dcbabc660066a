"""Structure, family, sizes and name of stored workloads.

Workloads of one family differ in numbers alone, such as scales.
"""

from __future__ import annotations

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.plan.workload import Workload
from tilewright.db.errors import StorageError
from tilewright.db.storage import Storage
from tilewright.db.stores.shapes import INDEXED_AT_ONCE, WorkloadShape
from tilewright.service.jobs.report.workload_facts import workload_name


def name_workloads(storage: Storage) -> int:
    """Find the names of the workloads added since the last call, for lists of workloads.

    One call names one batch and returns its size, so that no request waits for the names of all
    workloads in the database. The api names all of them when it starts.
    """
    try:
        return storage.shapes.index(shape_of, INDEXED_AT_ONCE)
    except StorageError as error:  # a full disk must not stop a request that only reads
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
