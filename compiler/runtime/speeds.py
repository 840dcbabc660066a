"""Measurement of a core's peak FLOP/s and of its bandwidth from each cache level and memory.

`tuner.measure.roofline` generates the functions that are timed. This module does not depend on the
target.
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
"""Independent sums: more than latency x units, and few enough to stay in registers."""

READ_BYTES, MEMORY_BYTES = 16 << 20, 256 << 20
"""Minimum and maximum bytes that are read to time memory: more than caches hold."""

DOTS = {"int8": 4, "bfloat16": 2}
"""Types of dot-product instructions, with the number of products that an instruction sums."""

PEAK_SAMPLES, PEAK_ROUNDS = 20, 100_000
READ_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Level:
    """A cache level or the memory.

    `bytes` is its size (0 for the memory), `bytes_per_second` the bandwidth for one core's reads.
    """

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    name: str
    bytes: Annotated[int, Between(0, 1 << 62)]
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Speeds(JsonValue):
    """The roofline of one core: peak operations per second, and bandwidth from each level.

    `flops_per_second` is for float32. `levels` are ordered from the smallest cache to the memory.
    `dots` has the operations per second of dot-product instructions, for the types in DOTS for
    which the target has one.
    """

    json_form: ClassVar[JsonForm] = JsonForm("roofline", check=lambda found: found.check())

    flops_per_second: float
    levels: Annotated[tuple[Level, ...], Length(1)]
    dots: Mapping[str, float] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ValueError unless the last level is the memory."""
        if self.levels[-1].bytes:
            raise ValueError("the last level of a roofline is the memory")

    def level_for(self, size: int) -> Level:
        """Return the smallest level that holds `size` bytes."""
        return next(level for level in self.levels if not level.bytes or size <= level.bytes)


@dataclass(frozen=True, slots=True)
class Probes:
    """The addresses of the functions that are timed, and the bytes of the vectors that they use.

    `peak` is the address of `void peak(int64_t rounds, float *memory)`, which computes one
    multiply-add per round on each of CHAINS vectors; `memory` holds 3 vectors. `read` is the
    address of `void read(int64_t rounds, float *memory, int64_t bytes)`, which reads the memory
    once per round; `bytes` is a multiple of CHAINS vectors. `dots` has the addresses of functions
    like `peak` that use dot-product instructions, for types in DOTS.
    """

    peak: int
    read: int
    vector_bytes: int
    dots: Mapping[str, int] = field(default_factory=dict)

    def peak_flops(self, samples: int = PEAK_SAMPLES, rounds: int = PEAK_ROUNDS) -> float:
        """Measure the float32 operations per second of one core.

        Returns the best of `samples` runs of a few milliseconds.
        """
        return self._operations(self.peak, 1, samples, rounds)

    def dot_peaks(
        self, samples: int = PEAK_SAMPLES, rounds: int = PEAK_ROUNDS
    ) -> Mapping[str, float]:
        """Measure the operations per second of dot-product instructions.

        Returns the best of `samples` runs for each type in `Probes.dots`. Each run takes a few
        milliseconds.
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
        """Measure the bytes per second that a core reads repeatedly from a block of `size`
        bytes.
        """
        return max(self.read_rates(size, samples))

    def read_rates(self, size: int, samples: int) -> list[float]:
        """Measure the bytes per second that a core reads from `size` bytes, once per sample."""
        step = CHAINS * self.vector_bytes
        size = max(step, size // step * step)
        memory = aligned_empty(size)
        memory[:] = 0
        rounds = max(1, READ_BYTES // size)
        seconds = _timed(self.read, (rounds, memory.ctypes.data, size), samples)
        return [rounds * size / each for each in seconds]


def largest_block(cache_bytes: Sequence[int], memory_bytes: int) -> int:
    """Return the size in bytes of the block by which the bandwidth of the memory is measured.

    Args:
        cache_bytes: the size of each level of the data caches, the first level first; 0 for a level
            that does not exist.
        memory_bytes: the size of the machine's memory; 0 if it is unknown.
    """
    largest = max(cache_bytes, default=0)
    return max(READ_BYTES, min(MEMORY_BYTES, 4 * largest, memory_bytes // 8))


def _timed(address: int, arguments: tuple[int, ...], samples: int) -> list[float]:
    """CPU seconds of each of several calls, after an untimed one.

    It uses the thread's clock: under a limit of CPU time, as in sandboxes, Linux advances the
    process's clock in ticks of milliseconds.
    """
    run = ctypes.CFUNCTYPE(None, *(ctypes.c_int64 for _ in arguments))(address)
    run(*arguments)
    seconds = []
    for _ in range(samples):
        started = time.thread_time()
        run(*arguments)
        seconds.append(time.thread_time() - started)
    return seconds
