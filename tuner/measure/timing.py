"""A kernel bound to its buffers, ready to run and to be timed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from compiler.runtime.kernel import KernelSpec


class BoundKernel:
    """Calls the stages of a kernel one after the other.

    Samples are CPU time with one thread, wall time with several, in seconds a run.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        spec: KernelSpec,
        buffers: Sequence[np.ndarray],
        scratch: Callable[[int], np.ndarray],
        threads: int,
    ) -> None:
        raise NotImplementedError
