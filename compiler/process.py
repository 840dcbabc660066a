"""What processes that are ours do otherwise than a library may in the process of who imports it."""

from __future__ import annotations

import gc
import os
import sys

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
    second thread of BLAS waits for them actively: the references of ResNet-50 took 0.15 s of CPU
    time on one thread and 0.7 s on two where anything else ran. To be called before NumPy is
    imported; child processes inherit it.
    """
    gc.set_threshold(YOUNG_OBJECTS)
    sys.setswitchinterval(SWITCH_SECONDS)
    os.environ.setdefault(BLAS_THREADS, "1")


def leave_garbage() -> None:
    """Before the process ends: what lies about goes with it.

    Python would look for cycles among all objects once more, to find what is freed anyway: 0.35 s
    of CPU time after a model was compiled. Files and threads end in order as ever.
    """
    gc.freeze()
