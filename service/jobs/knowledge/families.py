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
