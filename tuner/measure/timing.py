"""A kernel bound to its buffers, ready to run and to be timed."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence

import numpy as np

from compiler.runtime.kernel import KernelSpec

_STAGE = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
)


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
        self._stages = [(_STAGE((stage.symbol, library)), stage.extent) for stage in spec.stages]
        self._buffers = list(buffers)
        self._scratch = scratch(spec.scratch_bytes)
        self._pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))

    def run(self) -> None:
        """One run."""
        pointers, scratch = self._pointers, self._scratch.ctypes.data
        for function, extent in self._stages:
            function(pointers, scratch, None, 0, extent)

    def sample(self, runs: int) -> float:
        """Seconds for one run, over this many after an untimed one."""
        self.run()
        started = time.process_time_ns()
        for _ in range(runs):
            self.run()
        return (time.process_time_ns() - started) / runs * 1e-9
