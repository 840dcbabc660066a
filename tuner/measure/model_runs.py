"""Running whole models on the device: inputs that are drawn, outputs compared, races in pairs.

Everything here needs the standard library, NumPy and `compiler.runtime` alone, so that a worker
does the same as the process that compiles.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.memory import check_memory
from tilewright.compiler.runtime.packing import from_bfloat16
from tilewright.compiler.runtime.program import Port
from tilewright.tuner.measure.statistics import Comparison, may_be_faster
from tilewright.tuner.measure.wire import Distribution, InputSpec

PAIRS = 16
LEAST_PAIRS = 8
RACE_SECONDS = 4.0
"""A race ends after so long, if it has its least pairs: large models need no more."""

SAMPLE_SECONDS = 0.005

RUNS = 5
"""Runs of the incumbent; the fastest one is its time."""

INPUT_SEED = 7
"""Seed of the inputs that models are raced and timed on, and of the first that they are verified
on."""

Run = Callable[[], object]


def _nothing() -> None:
    """For callers that need not hear of rounds."""


@dataclass(frozen=True, slots=True)
class Race:
    """Programs against the first of them.

    Attributes:
        incumbent_seconds: of the first one's fastest run.
        comparisons: of the other programs that were run, in order.
        worker: the id of the worker that ran all of them; "" if it was none, or several.
    """

    incumbent_seconds: float
    comparisons: tuple[Comparison, ...]
    worker: str = ""


def input_spec(
    name: str,
    shape: Sequence[int],
    dtype: DType,
    seed: int,
    integers: tuple[int, int] | None = None,
) -> InputSpec:
    """The distribution of a model's random input: standard normal for floats, from the first of
    `integers` up to before the second (`Port.integers`), or else zero and one.

    The seed is of the name, so that the order of the inputs does not matter.
    """
    own = seed << 32 | zlib.crc32(name.encode())
    if dtype.is_float:
        return InputSpec(tuple(shape), dtype.value, own, Distribution.NORMAL)
    low, high = (0, 2) if integers is None or dtype is DType.BOOL else integers
    if dtype is not DType.BOOL:
        limits = np.iinfo(dtype.numpy)
        low = min(max(low, int(limits.min)), int(limits.max))
        high = min(max(high, low + 1), int(limits.max) + 1)
    return InputSpec(tuple(shape), dtype.value, own, Distribution.INTEGERS, low=low, high=high)


def draw_inputs(ports: Iterable[Port], seed: int = INPUT_SEED) -> dict[str, np.ndarray]:
    """Arrays for the inputs of a program, by name; bfloat16 as its raw bits.

    Raises:
        OutOfMemoryError: if the machine cannot hold them.
    """
    ports = tuple(ports)
    needed = sum(prod(port.shape) * port.dtype.bytes for port in ports)
    check_memory(needed, "for arrays of the inputs")
    return {p.name: input_spec(p.name, p.shape, p.dtype, seed, p.integers).draw() for p in ports}


def run_all(programs: Sequence[tuple[Executable, Mapping[str, np.ndarray]]]) -> Run:
    """One run of each program on its inputs."""

    def run() -> None:
        for executable, inputs in programs:
            executable.run(inputs, labels=False)

    return run


def race(
    incumbent: Run,
    challengers: Iterable[Callable[[], Run]],
    threads: int,
    begin_round: Callable[[], None] = _nothing,
) -> Race:
    """Each challenger in pairs with the incumbent.

    Each challenger is made just before its race. `begin_round` is called before each round, outside
    of what is timed.
    """
    found = [compare_runs(each(), incumbent, threads, begin_round) for each in challengers]
    begin_round()
    return Race(fastest_seconds(incumbent, threads), tuple(found))


def compare_runs(
    challenger: Run,
    incumbent: Run,
    threads: int,
    begin_round: Callable[[], None] = _nothing,
) -> Comparison:
    """Two programs interleaved, A B B A: CPU time of this thread with one thread, else wall time.

    It ends early once the challenger cannot be shown to be faster any more.
    """
    clock = _clock(threads)
    for run in (challenger, incumbent):
        begin_round()
        run()
    count = max(1, round(SAMPLE_SECONDS / max(1e-9, _timed(incumbent, 1, clock))))
    ratios: list[float] = []
    ends = time.perf_counter() + RACE_SECONDS
    while len(ratios) < PAIRS:
        begin_round()
        before, first = _timed(incumbent, count, clock), _timed(challenger, count, clock)
        second, after = _timed(challenger, count, clock), _timed(incumbent, count, clock)
        ratios += [ours / theirs for ours, theirs in ((first, before), (second, after)) if theirs]
        if len(ratios) >= LEAST_PAIRS and time.perf_counter() >= ends:
            break
        if not may_be_faster(ratios, PAIRS):
            break
    return Comparison("untuned", tuple(ratios))


def fastest_seconds(run: Run, threads: int, runs: int = RUNS) -> float:
    """Seconds of the fastest of a few runs: CPU time of this thread with one thread. After
    `RACE_SECONDS` none is begun."""
    clock = _clock(threads)
    ends = time.perf_counter() + RACE_SECONDS
    fastest = _timed(run, 1, clock)
    for _ in range(runs - 1):
        if time.perf_counter() >= ends:
            break
        fastest = min(fastest, _timed(run, 1, clock))
    return fastest


def largest_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference of an output, relative to the largest finite value expected.

    Infinite where the shapes differ, or NaNs and infinities are not at the same places.
    """
    if actual.shape != expected.shape:
        return math.inf
    mine, other = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(other)
    if not np.array_equal(mine[~finite], other[~finite], equal_nan=True):
        return math.inf
    difference = np.abs(mine[finite] - other[finite])
    if not difference.size:
        return 0.0
    scale = float(np.abs(other[finite]).max()) or 1.0
    return float(np.nan_to_num(difference, nan=np.inf).max()) / scale


def output_errors(
    executable: Executable, outputs: Sequence[np.ndarray], expected: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """The errors of those outputs of a run for which a value is expected."""
    ports = zip(executable.program.outputs, outputs, strict=True)
    return {p.name: output_error(p, a, expected[p.name]) for p, a in ports if p.name in expected}


def output_error(port: Port, actual: np.ndarray, expected: np.ndarray) -> float:
    """`largest_error` of one output by its numbers: bfloat16 arrays hold raw bits."""
    if port.dtype is DType.BFLOAT16:
        actual, expected = from_bfloat16(actual), from_bfloat16(expected)
    return largest_error(actual, expected)


def _clock(threads: int) -> Callable[[], float]:
    return time.thread_time if threads == 1 else time.perf_counter


def _timed(run: Run, count: int, clock: Callable[[], float]) -> float:
    started = clock()
    for _ in range(count):
        run()
    return clock() - started
