"""Selection of schedules for workloads, and compilation of each distinct kernel once.

A workload with dynamic sizes may be divided into pieces, each for some of the sizes and with its
own kernel (`compiler.plan.intervals`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol, TypeAlias

from tilewright.compiler.errors import CompilerError, ScheduleError
from tilewright.compiler.loops.expr import Role
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.intervals import (
    Box,
    RangePiece,
    SizeSplit,
    boxes,
    changed,
    holds,
    leaves,
    merged,
    piece_of,
)
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import (
    BuiltKernel,
    LoweredKernel,
    compile_lowered,
    lower_workload,
)
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, untuned_schedules
from tilewright.compiler.timings import Timings, timed


class ScheduleSource(Protocol):
    """A source of tuned schedules, such as the tuning database."""

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        """Return the best schedule that the source has for a workload in a mode; None if it has
        none.
        """
        ...


@dataclass(frozen=True, slots=True)
class ScheduledKernel:
    """A kernel for a piece of a workload, which serves some of the workload's sizes.

    Attributes:
        piece: the piece, with its own dimensions.
        lowered: the lowered kernel.
        schedule: the schedule of the kernel.
        known: whether the schedule is from a source of tuned schedules, not a default.
        keys: the workload keys of the pieces that the kernel serves. Neighbouring pieces with equal
            schedules share a kernel.
    """

    piece: RangePiece
    lowered: LoweredKernel
    schedule: Schedule
    known: bool
    keys: tuple[str, ...]


KernelTree: TypeAlias = ScheduledKernel | SizeSplit[ScheduledKernel]
"""The kernel of a workload, or a decision tree that selects a kernel by the sizes of a run."""


def weights_of(tree: KernelTree) -> tuple[BufferSpec, ...]:
    """Return the packed weights of a workload's kernels, as buffers without names.

    A weight that several kernels pack equally is listed once.
    """
    buffers = (buffer for kernel in leaves(tree) for buffer in kernel.lowered.spec.buffers)
    found = (replace(b, name="") for b in buffers if b.role is BufferRole.WEIGHT)
    return tuple(dict.fromkeys(found))


class KernelCache:
    """The kernels that the builders of one process have compiled or are compiling.

    Attributes:
        compiled: the future of each compilation, by the digest of the code.
    """

    def __init__(self) -> None:
        self.compiled: dict[str, Future[BuiltKernel]] = {}
        self._lowered: dict[tuple[Workload, Schedule, Mode], LoweredKernel] = {}

    def find(self, workload: Workload, schedule: Schedule, mode: Mode) -> LoweredKernel | None:
        """Return the kernel of a schedule if it is compiled or being compiled; else None."""
        found = self._lowered.get((workload, schedule, mode))
        return found if found is not None and found.digest in self.compiled else None

    def keep(
        self, workload: Workload, schedule: Schedule, mode: Mode, kernel: LoweredKernel
    ) -> LoweredKernel:
        """Add a kernel to the cache, and return it without its source text (such as LLVM IR).

        The cache does not store source texts. Workloads of different shapes, such as (1, 64, 3136)
        and (1, 64, 56, 56), may have equal code. Each of them has an entry with its own
        `KernelSpec`.
        """
        kept = self._lowered[workload, schedule, mode] = replace(kernel, text="")
        return kept

    def forget_cancelled(self) -> None:
        """Remove kernels whose compilation was cancelled."""
        for digest in [d for d, code in self.compiled.items() if code.cancelled()]:
            del self.compiled[digest]


class KernelCompiler:
    """Lowers workloads and compiles their kernels in a thread; equal code is compiled once.

    This is a context manager. Within it, `lower` queues kernels, which the thread compiles in
    order. The thread may still compile when the context ends; `objects` waits for it. More threads
    would not be faster, because llvmlite serialises calls of LLVM. Other threads run during a call,
    because llvmlite releases the GIL.
    """

    def __init__(
        self,
        mode: Mode,
        timings: Timings | None,
        kernels: KernelCache | None,
        *,
        any_rows: bool,
    ) -> None:
        self._any_rows = any_rows
        self._mode = mode
        self._timings = timings
        self._pool: ThreadPoolExecutor | None = None
        self._kernels = kernels or KernelCache()

    def __enter__(self) -> KernelCompiler:
        self._pool = ThreadPoolExecutor(1, "tilewright-llvm")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._pool is not None
        self._pool.shutdown(wait=False, cancel_futures=kind is not None)
        self._pool = None
        if kind is not None:
            self._kernels.forget_cancelled()

    def lower(
        self, workload: Workload, source: ScheduleSource | None, *, cut: bool = True
    ) -> KernelTree:
        """Lower a workload with a tuned schedule, or with the first default schedule that lowers.

        If `cut` is true, a workload with dynamic sizes is divided into pieces
        (`compiler.plan.intervals`). The result is then a decision tree with one kernel for
        neighbouring pieces that have equal schedules.

        Raises:
            CompilerError: if no schedule lowers.
        """
        whole = workload.dimensions
        found = boxes(workload) if cut else (whole,)
        if len(found) == 1:
            tried = self._schedules(workload, workload, source)
            return self._first(piece_of(workload, whole), (workload.key,), tried)
        parts = []
        for box in found:
            part = piece_of(workload, box).workload
            first = next(self._schedules(part, workload, source))
            parts.append((box, (part.key, first)))

        def scheduled(leaf: tuple[Box, tuple[str, tuple[Schedule, bool]]]) -> ScheduledKernel:
            box, (_, first) = leaf
            served = [(key, chosen) for other, (key, chosen) in parts if holds(box, other)]
            piece = piece_of(workload, box)
            schedules = chain(
                [(first[0], any(known for _, (_, known) in served))],
                self._schedules(piece.workload, workload, None),
            )
            return self._first(piece, tuple(key for key, _ in served), schedules)

        return changed(merged(parts, lambda a, b: a[1][0] == b[1][0]), scheduled)

    def simpler(self, workload: Workload, below: int) -> KernelTree:
        """Lower a workload with a default schedule whose packed weights take fewer than `below`
        bytes.

        Algorithms such as Strassen expand the weights. The method considers the algorithms that are
        estimated to be faster than the direct one, and uses the one with the largest weights below
        the limit: for example, one level of Strassen instead of two. If no algorithm remains, the
        weights are not expanded.

        Raises:
            CompilerError: if no schedule lowers.
        """
        mode = self._mode
        best: tuple[int, Schedule] | None = None
        for schedule in untuned_schedules(workload, mode, any_rows=self._any_rows):
            try:
                kernel = lower_schedule(workload, schedule, mode)
            except ScheduleError:
                continue
            if not kernel.transforms:
                break  # later candidates are slower
            packed = sum(t.bytes for t in kernel.nest.buffers if t.role is Role.WEIGHT)
            if packed < below and (best is None or packed > best[0]):
                best = packed, schedule
        tried: Iterable[tuple[Schedule, bool]]
        if best is None:
            # "strict" leaves out the algorithms that change rounding: they also expand the weights.
            tried = self._defaults(workload, workload, replace(mode, numerics="strict"))
        else:
            tried = [(best[1], False)]
        return self._first(piece_of(workload, workload.dimensions), (workload.key,), tried)

    def _first(
        self, piece: RangePiece, keys: tuple[str, ...], schedules: Iterable[tuple[Schedule, bool]]
    ) -> ScheduledKernel:
        """Lower a piece of a workload with the first schedule that fits it.

        `schedules` yields pairs of a schedule and whether it is tuned (not a default). `keys` are
        the workload keys that the kernel serves.

        Raises:
            CompilerError: if no schedule fits.
        """
        refused: list[str] = []
        for schedule, known in schedules:
            try:
                return ScheduledKernel(
                    piece, self._lower(piece.workload, schedule), schedule, known, keys
                )
            except ScheduleError as error:
                refused.append(f"{schedule}: {error}")
        operators = ", ".join(piece.workload.operators)
        # a piece numbers its own dimensions: errors use the workload's
        names = {f"s{own}": f"s{position}" for own, position in enumerate(piece.positions)}
        why = re.sub(r"\bs\d+\b", lambda found: names.get(found[0], found[0]), refused[-1])
        raise CompilerError(f"the fused workload of {operators} has no schedule ({why})")

    def objects(self, kernels: Iterable[LoweredKernel]) -> tuple[bytes, ...]:
        """Wait until kernels are compiled, and return their object files.

        Kernels with equal code share one object file.

        Raises:
            CompilerError: if LLVM rejects the code.
        """
        digests = dict.fromkeys(kernel.digest for kernel in kernels)
        with timed(self._timings, "wait for LLVM"):
            return tuple(self._kernels.compiled[digest].result().object for digest in digests)

    def _schedules(
        self, part: Workload, whole: Workload, source: ScheduleSource | None
    ) -> Iterator[tuple[Schedule, bool]]:
        """Yield the schedules to try for a part of a workload's sizes.

        The result has pairs (schedule, is tuned). The tuned schedule from the source is first, then
        the defaults.
        """
        with timed(self._timings, "schedules"):
            best = source.best(part.key, self._mode) if source else None
            if source and best is None and whole.dimensions:
                # the best schedule at typical sizes has the knobs of the dynamic workload
                best = source.best(whole.typical().key, self._mode)
        if best:
            yield best, True
        yield from self._defaults(part, whole, self._mode)

    def _defaults(
        self, part: Workload, whole: Workload, mode: Mode
    ) -> Iterator[tuple[Schedule, bool]]:
        """Yield the default schedules for a part of a workload's sizes, as pairs (schedule, False).

        False means that the schedule is not tuned. The defaults of the whole workload are first.
        """
        for workload in dict.fromkeys((whole, part)):
            defaults = untuned_schedules(workload, mode, any_rows=self._any_rows)
            while True:
                with timed(self._timings, "schedules"):
                    default = next(defaults, None)
                if default is None:
                    break
                yield default, False

    def _lower(self, workload: Workload, schedule: Schedule) -> LoweredKernel:
        kernels, mode = self._kernels, self._mode
        found = kernels.find(workload, schedule, mode)
        if found is not None:
            return found
        lowered = lower_workload(workload, schedule, mode, self._timings)
        if lowered.digest not in kernels.compiled:
            assert self._pool is not None
            code = self._pool.submit(compile_lowered, lowered, mode.target, self._timings)
            kernels.compiled[lowered.digest] = code
        return kernels.keep(workload, schedule, mode, lowered)
