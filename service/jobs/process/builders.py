"""Opens the builder that compiles candidates: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import os
from functools import partial

from tilewright.compiler.timings import Timings
from tilewright.service.settings import Settings
from tilewright.tuner.measure.builder import Builder, ProcessBuilder
from tilewright.tuner.measure.dask_builder import DaskBuilder, dask_address, is_dask


def open_builder(settings: Settings, timings: Timings | None = None) -> Builder:
    """Return the builder that the settings name; `timings` records the seconds of each build step.

    Raises:
        BuilderError: if they name neither a number of processes nor a Dask scheduler.
    """
    name = settings.builders
    if is_dask(name):
        local = partial(ProcessBuilder, default_builders())
        return DaskBuilder(dask_address(name), timings=timings, local=local)
    return ProcessBuilder(int(name) or default_builders(), timings=timings)


def default_builders() -> int:
    """Return the number of builder processes for this machine: one per core that it may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
