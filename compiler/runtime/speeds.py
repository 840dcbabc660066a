"""How fast a core computes and reads, measured on the device by two functions that it is given.

`tuner.measure.roofline` makes the code of both. Nothing here knows a target.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Annotated, ClassVar

import numpy as np

from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import JsonForm, Length
from tilewright.compiler.runtime.packing import aligned_empty

CHAINS = 12
"""Sums that do not wait for each other: more than latency x units, and they stay in registers."""

LEAST_BYTES, MEMORY_BYTES = 16 << 20, 256 << 20
"""What is read to time memory at least and at most, in bytes: more than caches hold."""

DOTS = {"int8": 4, "bfloat16": 2}
"""Narrow types whose products a core may add in groups of so many, where an instruction does."""

PEAK_SAMPLES, PEAK_ROUNDS = 20, 100_000
READ_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Level:
    """A cache or the memory: its name, its size in bytes (0: no limit), bytes read a second."""

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    name: str
    bytes: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Speeds(JsonValue):
    """Rates of one core: float32 operations a second, and bytes a second read from each level.

    `levels` run from the smallest cache to the memory. `dots` are the operations a second of the
    types in DOTS for which the target has an instruction.
    """

    json_form: ClassVar[JsonForm] = JsonForm("roofline", check=lambda found: found.check())

    flops_per_second: float
    levels: Annotated[tuple[Level, ...], Length(1)]
    dots: Mapping[str, float] = field(default_factory=dict)

    def check(self) -> None:
        """Raises ValueError unless the levels end with the memory."""
        if self.levels[-1].bytes:
            raise ValueError("the last level of a roofline is the memory")

    def level_for(self, size: int) -> Level:
        """The smallest level that holds so many bytes."""
        return next(level for level in self.levels if not level.bytes or size <= level.bytes)


@dataclass(frozen=True, slots=True)
class Probes:
    """Where the two functions lie, and the bytes of the vectors that their code works on.

    `peak` is the address of `void peak(int64_t rounds, float *memory)`: on each of CHAINS vectors
    one multiply-add a round; `memory` holds 3 vectors. `read` is the address of
    `void read(int64_t rounds, float *memory, int64_t bytes)`: reads the memory once a round;
    `bytes` is a multiple of CHAINS vectors. `dots` has functions like `peak` for types in DOTS.
    """

    peak: int
    read: int
    vector_bytes: int
    dots: Mapping[str, int] = field(default_factory=dict)

    def peak_flops(self, samples: int = PEAK_SAMPLES, rounds: int = PEAK_ROUNDS) -> float:
        """Float32 operations a second of one core: the best of some runs of a few milliseconds."""
        return self._operations(self.peak, 1, samples, rounds)

    def dot_peaks(
        self, samples: int = PEAK_SAMPLES, rounds: int = PEAK_ROUNDS
    ) -> Mapping[str, float]:
        """As `peak_flops`, of the narrow types."""
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
        """Bytes that one core reads a second from a block of about `size` bytes, over and over."""
        return max(self.read_rates(size, samples))

    def read_rates(self, size: int, samples: int) -> list[float]:
        """As `read_bytes_per_second`, of each sample."""
        step = CHAINS * self.vector_bytes
        size = max(step, size // step * step)
        memory = aligned_empty(size)
        memory[:] = 0
        rounds = max(1, (16 << 20) // size)
        seconds = _timed(self.read, (rounds, memory.ctypes.data, size), samples)
        return [rounds * size / each for each in seconds]

    def speeds(self, cache_bytes: Sequence[int], memory_bytes: int) -> Speeds:
        """Measure this machine; takes about a second.

        Args:
            cache_bytes: of each level of the data caches, the first level first; 0 where there is
                none.
            memory_bytes: of the machine; 0 where it is unknown.
        """
        levels: list[Level] = []
        smaller = 1 << 12
        for number, size in enumerate(cache_bytes, 1):
            if size:
                # The block is too large for the next smaller cache and leaves room in this one.
                rate = self.read_bytes_per_second(isqrt(smaller * size))
                levels.append(Level(f"L{number}", size, rate))
                smaller = size
        rate = self.read_bytes_per_second(largest_block(cache_bytes, memory_bytes))
        levels.append(Level("memory", 0, rate))
        return Speeds(self.peak_flops(), tuple(levels), self.dot_peaks())


def largest_block(cache_bytes: Sequence[int], memory_bytes: int) -> int:
    """Bytes that are read to time memory; the arguments are those of `Probes.speeds`."""
    largest = max(cache_bytes, default=0)
    return max(LEAST_BYTES, min(MEMORY_BYTES, 4 * largest, memory_bytes // 8))


def _timed(address: int, arguments: tuple[int, ...], samples: int) -> list[float]:
    """CPU seconds of each of some calls, after an untimed one.

    On the clock of the thread: under a limit of processor time, as sandboxes have one, Linux moves
    that of the process in ticks of milliseconds.
    """
    run = ctypes.CFUNCTYPE(None, *(ctypes.c_int64 for _ in arguments))(address)
    run(*arguments)
    seconds = []
    for _ in range(samples):
        started = time.thread_time()
        run(*arguments)
        seconds.append(time.thread_time() - started)
    return seconds
