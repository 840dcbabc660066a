"""Measurement of a core's peak FLOP/s, and of its read bandwidth from each cache level and memory.

`tuner.measure.roofline` generates the timed functions for a target. This module calls them by their
addresses.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np

from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import Between, JsonForm, Length
from tilewright.compiler.runtime.packing import aligned_empty

CHAINS = 12
"""Number of independent sums in a speed measurement. It exceeds latency x units, so that the sums
hide the latency, and is small enough for the sums to stay in registers."""

READ_BYTES, MEMORY_BYTES = 16 << 20, 256 << 20
"""Minimum and maximum number of bytes that are read to measure the speed of main memory. They
exceed most caches."""

DOTS = {"int8": 4, "bfloat16": 2}
"""For each element type of dot-product instructions, the number of products that one lane sums."""

PEAK_SAMPLES, PEAK_ROUNDS = 20, 100_000
READ_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the memory hierarchy: a cache, or main memory.

    Attributes:
        name: the name of the level.
        bytes: the size of the cache; 0 for main memory.
        bytes_per_second: the bandwidth at which one core reads from this level.
    """

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    name: str
    bytes: Annotated[int, Between(0, 1 << 62)]
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Speeds(JsonValue):
    """The roofline of one core: peak operations per second, and bandwidth of each memory level.

    Attributes:
        flops_per_second: peak float32 operations per second.
        levels: the memory levels, from the smallest cache to main memory.
        dots: operations per second of the target's dot-product instructions, by element type: a key
            of `DOTS`, such as `int8`.
    """

    json_form: ClassVar[JsonForm] = JsonForm("roofline", check=lambda found: found.check())

    flops_per_second: float
    levels: Annotated[tuple[Level, ...], Length(1)]
    dots: Mapping[str, float] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ValueError if the last level is not main memory."""
        if self.levels[-1].bytes:
            raise ValueError("the last level of a roofline is the memory")

    def level_for(self, size: int) -> Level:
        """Return the smallest memory level that can hold `size` bytes.

        Main memory can hold any size.
        """
        return next(level for level in self.levels if not level.bytes or size <= level.bytes)


@dataclass(frozen=True, slots=True)
class Probes:
    """The generated functions that are timed to measure a core's roofline.

    Attributes:
        peak: the address of `void peak(int64_t rounds, float *memory)`. Each round computes one
            multiply-add on each of `CHAINS` vectors. `memory` contains 3 vectors.
        read: the address of `void read(int64_t rounds, float *memory, int64_t bytes)`. Each round
            reads the memory once. `bytes` is a multiple of the size of `CHAINS` vectors.
        vector_bytes: the size of the vectors in bytes.
        dots: addresses of functions like `peak` with dot-product instructions, by element type: a
            key of `DOTS`, such as `int8`.
    """

    peak: int
    read: int
    vector_bytes: int
    dots: Mapping[str, int] = field(default_factory=dict)

    def peak_flops(self, samples: int = PEAK_SAMPLES, rounds: int = PEAK_ROUNDS) -> float:
        """Measure the peak float32 operations per second of one core.

        The result is the maximum over `samples` runs of a few milliseconds each.
        """
        return self._operations(self.peak, 1, samples, rounds)

    def dot_peaks(
        self, samples: int = PEAK_SAMPLES, rounds: int = PEAK_ROUNDS
    ) -> Mapping[str, float]:
        """Measure the peak operations per second of each dot-product instruction in `dots`.

        Each result is the maximum over `samples` runs of a few milliseconds each.
        """
        return {
            name: self._operations(address, DOTS[name], samples, rounds)
            for name, address in self.dots.items()
        }

    def _operations(self, address: int, group: int, samples: int, rounds: int) -> float:
        lanes = self.vector_bytes // 4
        memory = aligned_empty(3 * self.vector_bytes).view(np.float32)
        memory[:lanes], memory[lanes:] = 0.5, 1.0  # s * 0.5 + 1 stays near 2
        seconds = min(_timed(address, (rounds, memory.ctypes.data), samples))
        return 2.0 * lanes * group * CHAINS * rounds / seconds

    def read_bytes_per_second(self, size: int, samples: int = READ_SAMPLES) -> float:
        """Measure the bandwidth at which a core reads a block of `size` bytes repeatedly.

        The result is the maximum over `samples` measurements, in bytes per second.
        """
        return max(self.read_rates(size, samples))

    def read_rates(self, size: int, samples: int) -> list[float]:
        """Measure the bandwidth at which a core reads a block of `size` bytes repeatedly.

        The result has one value per sample, in bytes per second.
        """
        step = CHAINS * self.vector_bytes
        size = max(step, size // step * step)
        memory = aligned_empty(size)
        memory[:] = 0
        rounds = max(1, READ_BYTES // size)
        seconds = _timed(self.read, (rounds, memory.ctypes.data, size), samples)
        return [rounds * size / each for each in seconds]


def largest_block(cache_bytes: Sequence[int], memory_bytes: int) -> int:
    """Return the size in bytes of the block with which the bandwidth of main memory is measured.

    The size is four times the largest cache, but at most an eighth of the memory, and always within
    fixed limits.

    Args:
        cache_bytes: the size of each level of the data caches, first level first; 0 for a level
            that does not exist.
        memory_bytes: the size of main memory; 0 if it is unknown.
    """
    largest = max(cache_bytes, default=0)
    return max(READ_BYTES, min(MEMORY_BYTES, 4 * largest, memory_bytes // 8))


def _timed(address: int, arguments: tuple[int, ...], samples: int) -> list[float]:
    """Call a function `samples` times after one untimed call, and return the CPU seconds per call.

    The thread's clock is used because the process's clock is too coarse in sandboxes: if CPU time
    is limited, Linux advances the process's clock in steps of milliseconds.
    """
    run = ctypes.CFUNCTYPE(None, *(ctypes.c_int64 for _ in arguments))(address)
    run(*arguments)
    seconds = []
    for _ in range(samples):
        started = time.thread_time()
        run(*arguments)
        seconds.append(time.thread_time() - started)
    return seconds
