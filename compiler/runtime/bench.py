"""Execution and timing of single kernels.

With one thread, a sample is CPU time of the calling thread, which excludes other processes. With
several threads, a sample is wall time, which includes waiting.

To rank candidates, measure one sample of each candidate per round, shuffle the order in every
round, and compare the candidates' minima. A fixed order would be unfair if kernels share buffers:
the first kernel reads them from memory, and the others find them in the caches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilewright.compiler.runtime.kernel import ALIGNMENT, BufferRole, KernelSpec
from tilewright.compiler.runtime.native import BoundKernelStruct, check_threads, native
from tilewright.compiler.runtime.packing import Array, Bytes, aligned_empty, aligned_zeros


class BoundKernel:
    """A kernel with the addresses of its functions and buffers, ready to run.

    A kernel consists of stages: C functions that run one after the other.

    Args:
        spec: the interface of the kernel.
        addresses: the address of each stage's function. The code must stay in memory as long as
            this object.
        buffers: an array for each buffer of the kernel, C-contiguous, aligned to 64 bytes.
        threads: number of threads that divide the work of each stage among them.
        scratch: a function that allocates the scratch memory of all threads as one block, given
            its size in bytes.
        sizes: the sizes of the kernel's dynamic dimensions, in the order of `KernelSpec.sizes`.

    Raises:
        ValueError: if a buffer is missing, too small, not contiguous or not aligned, or a size is
            not valid for its dimension.
    """

    def __init__(
        self,
        spec: KernelSpec,
        addresses: Sequence[int],
        buffers: Sequence[Array],
        threads: int = 1,
        scratch: Callable[[int], Bytes] = aligned_empty,
        sizes: tuple[int, ...] = (),
    ) -> None:
        numbers = [size // d.multiple for d, size in zip(spec.sizes, sizes, strict=False)]
        spec = spec.at(sizes)
        if len(addresses) != len(spec.stages) or len(buffers) != len(spec.buffers):
            raise ValueError(
                f"kernel '{spec.name}' has {len(spec.stages)} stages and {len(spec.buffers)} "
                f"buffers, got {len(addresses)} and {len(buffers)}"
            )
        for wanted, buffer in zip(spec.buffers, buffers, strict=True):
            if buffer.nbytes < wanted.bytes:
                raise ValueError(
                    f"buffer '{wanted.name}' has {buffer.nbytes} bytes, {wanted.bytes} are needed"
                )
            if (buffer.nbytes and buffer.ctypes.data % ALIGNMENT) or not buffer.flags.c_contiguous:
                raise ValueError(f"buffer '{wanted.name}' is not contiguous and aligned")
        self.spec = spec
        self.threads = check_threads(threads)
        stride = scratch_stride(spec.scratch_bytes)
        self._buffers = tuple(buffers)
        self._scratch = scratch(stride * threads)
        self._stages = np.array(addresses, np.uintp)
        self._extents = np.array([stage.extent for stage in spec.stages], np.int64)
        self._pointers = np.array([buffer.ctypes.data for buffer in buffers], np.uintp)
        self._struct = BoundKernelStruct(
            stages=self._stages.ctypes.data,
            extents=self._extents.ctypes.data,
            stage_count=len(spec.stages),
            inner=1,
        )
        self._struct.arguments.buffers = self._pointers.ctypes.data
        self._struct.arguments.scratch = self._scratch.ctypes.data
        self._struct.arguments.scratch_stride = stride
        self._sizes = np.array(numbers, np.int64)
        self._struct.arguments.sizes = self._sizes.ctypes.data

    def run(self) -> None:
        """Run the kernel once on its buffers."""
        native().tw_call(ctypes.byref(self._struct), self.threads)

    def evict(self, role: BufferRole) -> None:
        """Evict all buffers of one role, such as the kernel's inputs, from the CPU caches.

        This has no effect on CPUs without cache flush instructions.
        """
        for spec, buffer in zip(self.spec.buffers, self._buffers, strict=True):
            if spec.role is role:
                native().tw_evict(buffer.ctypes.data, spec.bytes)

    def time(self, samples: int, inner: int = 1) -> NDArray[np.float64]:
        """Time the kernel, and return the seconds per run of each sample; shape (samples,).

        Each sample measures `inner` consecutive runs and divides by their number.
        """
        seconds = np.empty(samples, np.float64)
        self._struct.inner = inner
        native().tw_bench(ctypes.byref(self._struct), self.threads, samples, seconds.ctypes.data)
        return seconds

    def inner_for(self, sample_seconds: float, limit: int = 1 << 20) -> int:
        """Return the number of consecutive runs that take about `sample_seconds` together.

        Increasing numbers of runs are timed. The result is the first that takes at least half of
        `sample_seconds`, or `limit` if smaller numbers take less time.
        """
        inner = 1
        while inner < limit:
            seconds = float(self.time(1, inner)[0]) * inner
            if seconds >= sample_seconds / 2:
                break
            # Grow at most tenfold: the clock may have been too coarse.
            inner = min(limit, inner * max(2, min(10, int(sample_seconds / max(seconds, 1e-9)))))
        return inner


REFERENCE_BYTES = 8 << 20
"""Number of bytes that the reference kernel reads. It exceeds a core's private caches."""

REFERENCE_ROUNDS = 3


@cache
def _zeros() -> Bytes:
    block = aligned_zeros(REFERENCE_BYTES)
    block.fill(0)  # unwritten pages would all map to one page of zeros, which fits in L1
    return block


def reference_seconds(threads: int = 1) -> tuple[float, float]:
    """Time fixed reference code on this machine, and return the seconds for (arithmetic, memory).

    The arithmetic is 2^20 multiply-adds in 16 independent chains. The memory test is 2^12 dependent
    loads from 8 MiB. Each time is the minimum of three.

    An increase of the first time shows that the CPU throttles, an increase of the second that other
    processes use its caches. The call takes about 2 ms.

    The code always runs on the calling thread alone. `threads` selects the clock, as for kernels:
    CPU time for 1, otherwise wall time.
    """
    seconds = np.empty((REFERENCE_ROUNDS, 2), np.float64)
    zeros = _zeros()
    for row in seconds:
        native().tw_reference(threads, zeros.ctypes.data, zeros.nbytes, row.ctypes.data)
    compute, memory = seconds.min(axis=0)
    return float(compute), float(memory)


def scratch_stride(scratch_bytes: int) -> int:
    """Return the distance in bytes between the scratch blocks of two threads.

    It is `scratch_bytes`, rounded up to whole cache lines, plus one more line. Therefore, no two
    threads write to the same line, and the blocks do not all map to the same cache sets if their
    size is a multiple of a page.
    """
    return -(-scratch_bytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT
