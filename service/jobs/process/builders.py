"""Creates the builder that compiles candidates: in processes of this machine, or on a Dask
cluster.
"""

from __future__ import annotations

import os
from functools import partial

from tilewright.compiler.timings import Timings
from tilewright.service.settings import Settings
from tilewright.tuner.measure.builder import Builder, ProcessBuilder
from tilewright.tuner.measure.dask_builder import DaskBuilder, dask_address, is_dask


def open_builder(settings: Settings, timings: Timings | None = None) -> Builder:
    """Create the builder that the settings select: processes of this machine, or a Dask cluster.

    Args:
        settings: the settings of the service.
        timings: receives the seconds of each build step.

    Raises:
        BuilderError: if the setting is neither a number of processes nor a Dask scheduler.
    """
    name = settings.builders
    if is_dask(name):
        local = partial(ProcessBuilder, default_builders())
        return DaskBuilder(dask_address(name), timings=timings, local=local)
    return ProcessBuilder(int(name) or default_builders(), timings=timings)


def default_builders() -> int:
    """Return the default number of builder processes: the number of cores that this process may
    use.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
