"""CPU affinity of the thread pool that all executables of a process share."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.limits import MAX_THREADS
from tilewright.compiler.runtime.native import native


def bind_workers(processors: Sequence[int]) -> None:
    """Bind the pool's threads to processors; an empty sequence removes the binding.

    A run on n threads uses the calling thread and the pool's threads 1 to n - 1. Thread w is bound
    to `processors[(w - 1) % len(processors)]`. The calling thread is not bound; use
    `os.sched_setaffinity` for it. Without a binding, the pool's threads may use the processors that
    were allowed to the thread that first ran a model on several threads.

    Args:
        processors: the system's processor numbers; this process must be allowed to use each.

    Raises:
        InvalidArgumentError: if a processor does not exist or is not allowed, or the system cannot
            bind threads (only Linux can).
    """
    chosen = list(processors)
    if len(chosen) >= MAX_THREADS or not all(type(p) is int and 0 <= p < 1 << 16 for p in chosen):
        raise InvalidArgumentError(
            f"the processors of threads are {chosen}, expected at most {MAX_THREADS - 1} numbers"
        )
    status = native().tw_pool_bind((ctypes.c_int * len(chosen))(*chosen), len(chosen))
    if status > 0:
        raise InvalidArgumentError(
            f"this process may not run on processor {chosen[status - 1]}, or it does not exist"
        )
    if status < 0:
        raise InvalidArgumentError("this system does not bind threads to processors")
