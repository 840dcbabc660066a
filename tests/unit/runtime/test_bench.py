"""The benchmark harness: its runs, and its clock. Their duration is not tested."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright.compiler.runtime.bench import BoundKernel, reference_seconds, scratch_stride
from tilewright.compiler.runtime.kernel import BufferRole, KernelSpec
from tilewright.compiler.runtime.packing import aligned_empty, aligned_zeros

Make = Callable[[int], tuple[BoundKernel, np.ndarray]]


@pytest.fixture
def make(make_spec: Callable[..., KernelSpec], address_of: Callable[[str], int]) -> Make:
    def bind(threads: int) -> tuple[BoundKernel, np.ndarray]:
        spec = make_spec("count", {"count": 10}, {"counts": (BufferRole.OUTPUT, 10)}, 64)
        counts = aligned_zeros(40).view(np.int32)
        return BoundKernel(spec, [address_of("count")], [counts], threads), counts

    return bind


@pytest.mark.parametrize("threads", [1, 3])
def test_samples(make: Make, threads: int) -> None:
    kernel, counts = make(threads)
    seconds = kernel.time(samples=7, inner=11)
    assert seconds.shape == (7,)
    assert (seconds > 0).all()
    assert (counts == 77).all()


def test_one_thread_is_timed_by_its_own_clock_and_several_by_the_walls(
    make_spec: Callable[..., KernelSpec], address_of: Callable[[str], int]
) -> None:
    """While other processes have the core a kernel waits: that is not its time."""
    spec = make_spec("waits", {"waits": 1}, {"y": (BufferRole.OUTPUT, 1)})
    found = {}
    for threads in (1, 2):
        kernel = BoundKernel(spec, [address_of("waits")], [aligned_zeros(4)], threads)
        found[threads] = float(kernel.time(1)[0])
    assert found[2] >= 0.05 > 0.025 > found[1]


def test_the_inner_count_grows_with_the_wanted_time(make: Make) -> None:
    kernel, _ = make(1)
    assert kernel.inner_for(1e-9) == 1
    assert kernel.inner_for(1e-3) > 100
    assert kernel.inner_for(1e9, limit=64) == 64


def test_wrong_arguments_are_refused(make: Make, make_spec: Callable[..., KernelSpec]) -> None:
    kernel, _ = make(1)
    spec, block = kernel.spec, aligned_empty(128)
    for buffers in ([], [block[:8]], [block[4:44]], [block[:80:2]]):
        with pytest.raises(ValueError, match="buffer"):
            BoundKernel(spec, [0], buffers)
    with pytest.raises(ValueError, match="threads"):
        BoundKernel(spec, [0], [block], threads=0)


def test_scratch_blocks_share_no_cache_line() -> None:
    for size in (0, 1, 63, 64, 65, 4096):
        assert scratch_stride(size) % 64 == 0
        assert scratch_stride(size) >= size


@pytest.mark.parametrize("threads", [1, 2])
def test_the_reference_kernel_takes_time_for_both_of_its_parts(threads: int) -> None:
    arithmetic, memory = reference_seconds(threads)
    # 2^16 steps of a chain take more than one cycle each, also at 20 GHz
    assert 2**16 / 20e9 < arithmetic < 1.0
    assert 0.0 < memory < 1.0
