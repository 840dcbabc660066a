"""Computes the properties by which the database finds workloads (fused subgraphs to tune).

The properties are the structure, the family, the sizes and the name. Workloads of one family differ
only in numbers, such as quantisation scales.
"""

from __future__ import annotations

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.plan.workload import Workload
from tilewright.db.errors import StorageError
from tilewright.db.storage import Storage
from tilewright.db.stores.shapes import INDEXED_AT_ONCE, WorkloadShape
from tilewright.service.jobs.report.workload_facts import workload_name


def name_workloads(storage: Storage) -> int:
    """Compute and store the names of at most `INDEXED_AT_ONCE` workloads without a name.

    The API names all workloads by repeated calls when it starts. Requests for records also call
    this function; the limit keeps them short.

    Returns:
        the number of workloads that were named; 0 if the disk is full.
    """
    try:
        return storage.shapes.index(shape_of, INDEXED_AT_ONCE)
    except StorageError as error:  # a full disk must not stop a request that only reads
        import structlog  # imports asyncio

        structlog.get_logger("tilewright.web").warning("workloads not named", error=str(error))
        return 0


def shape_of(text: str) -> WorkloadShape:
    """Compute the properties by which the database finds a workload (a fused subgraph to tune).

    Args:
        text: the workload in the text form that the database stores.

    Returns:
        the structure (the workload without its sizes), the family, the sizes, the name and the
        operator. An empty WorkloadShape if this release cannot read the text.
    """
    try:
        workload = Workload.parse(text)
        fixed, name = workload.typical(), workload_name(workload)
    except CompilerError:
        return WorkloadShape()
    return WorkloadShape(
        fixed.structure, workload.family, fixed.sizes, name.partition(" ")[0], name
    )
