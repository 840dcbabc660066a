"""Settings of Tilewright's own processes: garbage collection, thread switches, BLAS threads.

They are not applied when Tilewright is imported as a library into a user's process.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys

from tilewright.compiler.memo import forget

YOUNG_OBJECTS = 50_000
"""Number of new objects after which Python's garbage collector searches for cycles. A compiler
makes hundreds of thousands of small values that are not part of cycles: with Python's default of
700, a tenth of its time was garbage collection."""

SWITCH_SECONDS = 5e-4
"""Maximum time in seconds for which a thread that returns from LLVM or NumPy waits for a thread
that runs Python code. A kernel needs a dozen calls of LLVM. With Python's default of 5 ms, the
waiting time would exceed the time to compile."""

BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""Environment variable with the number of BLAS threads, which NumPy's BLAS reads when it is loaded.
If the user has set the variable, it is not changed."""


def configure_process() -> None:
    """Set rare garbage collection, frequent thread switches, and one thread for NumPy's BLAS.

    The matrix products by which NumPy computes expected outputs are small, and the machine's other
    cores build, pack and measure. A second BLAS thread would keep a core busy waiting: the expected
    outputs of ResNet-50 took 0.15 s of CPU time on one thread, and 0.7 s on two next to other work.
    Call this function before NumPy is imported; child processes inherit the number of threads.
    """
    gc.set_threshold(YOUNG_OBJECTS)
    sys.setswitchinterval(SWITCH_SECONDS)
    os.environ.setdefault(BLAS_THREADS, "1")


def skip_final_collection() -> None:
    """Exclude all present objects from garbage collection; call it just before the process ends.

    Python would otherwise search them for cycles at exit, although the system frees the memory
    anyway. The search took 0.35 s of CPU time after a model was compiled. Files and threads are
    closed as usual.
    """
    gc.freeze()


def release_memory() -> None:
    """Return unused memory to the system, between two jobs of a process.

    This clears the caches of memoised functions (`memo.forget`) and collects garbage, which
    `configure_process` makes rare. It also calls glibc's `malloc_trim`, if the C library has it.
    Without this call, glibc keeps free memory that lies below a block in use, in each of its heaps.
    """
    forget()
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
