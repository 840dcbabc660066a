"""Settings of our own processes: a library may not make them in the process that imports it."""

from __future__ import annotations

import ctypes
import gc
import os
import sys

from tilewright.compiler.memo import forget

YOUNG_OBJECTS = 50_000
"""Objects that are made before the collector looks for cycles among them. A compiler makes hundreds
of thousands of small values that hold no cycle: at Python's 700, a tenth of its time went there."""

SWITCH_SECONDS = 5e-4
"""How long a thread that comes out of LLVM or NumPy waits, at most, for one that runs Python. There
are a dozen calls into LLVM a kernel: at Python's 5 ms it would wait longer than it compiles."""

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""What NumPy's BLAS asks, once, when it is loaded. A user's own value stays."""


def settle_process() -> None:
    """Collect garbage rarely, switch threads often, and compute NumPy's products on one thread.

    Products of references are small, and this machine's other cores build, pack and measure. A
    second thread of BLAS would keep a core busy waiting: the references of ResNet-50 took 0.15 s of
    CPU time on one thread, and 0.7 s on two beside other work. Call it before NumPy is imported;
    child processes inherit it.
    """
    gc.set_threshold(YOUNG_OBJECTS)
    sys.setswitchinterval(SWITCH_SECONDS)
    os.environ.setdefault(BLAS_THREADS, "1")


def leave_garbage() -> None:
    """Let the process end without a last garbage collection.

    Python would look for cycles among all objects once more, though the end of the process frees
    them anyway: 0.35 s of CPU time after a model was compiled. Files and threads end in order.
    """
    gc.freeze()


def give_back_memory() -> None:
    """Forget memos, collect garbage and return freed memory to the system: between two jobs.

    `settle_process` lets garbage lie for long. The C library keeps freed memory below a block that
    lives, in a heap for each of several threads; glibc gives it back when it is asked.
    """
    forget()
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
