"""A cache of the expected outputs (references) of a job's workloads, computed in child processes.

When a caller submits candidates to a builder, it also calls `ReferenceCache.prepare`. The
references are then computed during the builds, so that the device does not wait for them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.process.bounded import (
    LOOK_SECONDS,
    BoundedChild,
    Limits,
    NoAnswer,
    Reason,
    Stop,
)
from tilewright.compiler.timings import Timings, timed
from tilewright.tuner.measure.oracle import DRAWS, ExpectedOutput, make_reference
from tilewright.tuner.measure.points import ITSELF, SizePoint
from tilewright.tuner.measure.reference_cost import ReferenceLimit, is_quick
from tilewright.tuner.protocol.measurement import MOST_ERROR, Measurement, Phase, Status


@dataclass(frozen=True, slots=True)
class NoReference:
    """A result that states why an expected output could not be computed.

    Attributes:
        reason: the end of the sentence "the reference of 'NAME' ...", such as "needs 9 GiB, the
            limit is 4 GiB".
        ended: whether the output was not computed because the job has ended, which is not a
            failure.
    """

    reason: str
    ended: bool = False

    def measurement(self, name: str, build_seconds: float) -> Measurement:
        """Return the measurement to report for a candidate that cannot be checked.

        Args:
            name: the name of the candidate's task, for the message.
            build_seconds: the time of its build.
        """
        if self.ended:
            return Measurement(Status.CANCELLED, build_seconds=build_seconds)
        error = f"the reference of '{name}' {self.reason}"[:MOST_ERROR]
        return Measurement(Status.NO_REFERENCE, error, build_seconds=build_seconds)


ENDED = NoReference("is not wanted any more", ended=True)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The expected outputs for a batch of candidates, which are computed in the background.

    They stay available while this object exists, even if the cache drops them.

    Attributes:
        asked: for each output, the sizes of the workload's dynamic dimensions, and an index into
            DRAWS, the list of random distributions of its inputs.
        made: for each output, its future.
    """

    asked: tuple[tuple[SizePoint, int], ...]
    """In the order of the batch's cases."""
    made: tuple[Future[ExpectedOutput | NoReference], ...]

    def done(self) -> bool:
        """Whether all outputs are computed, so that `cases` returns without waiting."""
        return all(each.done() for each in self.made)

    def cases(self) -> tuple[ExpectedOutput, ...] | NoReference:
        """Wait until all expected outputs are computed, and return them in the order of `asked`.

        Candidates are checked with every output. They are timed only with the inputs of outputs
        whose attribute `point` is set. There is one such output for each size point: the one for
        the first set of random inputs. If an output could not be computed, the first NoReference is
        returned instead.
        """
        found: list[ExpectedOutput] = []
        for (point, draw), made in zip(self.asked, self.made, strict=True):
            output = _outcome(made)
            if isinstance(output, NoReference):
                return output
            first = point if draw == 0 else None
            found.append(replace(output, sizes=point.sizes, point=first))
        return tuple(found)


class ReferenceCache:
    """A thread-safe cache that computes the expected outputs of workloads for one job.

    Two child processes, started on demand, compute the outputs: one for outputs that are quick to
    compute, and one for all others. If a computation fails, the callers that wait for it get the
    reason, and a later call repeats the computation. The cache is a context manager, which ends
    running computations at exit.
    """

    def __init__(
        self,
        limit_bytes: int = 512 << 20,
        each: ReferenceLimit | None = None,
        timings: Timings | None = None,
        stop: Stop | None = None,
    ) -> None:
        """Create an empty cache without starting a child process.

        Args:
            limit_bytes: the largest total size of the cached outputs.
            each: the limits for computing one output; None for the default limits.
            timings: records the seconds of the child processes, under "references".
            stop: a cancellation token. Once it is cancelled, the cache closes at once, even if the
                thread that entered the context is busy.
        """
        self._timings = timings
        self._limit_bytes = limit_bytes
        self._each = each or ReferenceLimit()
        self._known: dict[tuple[str, int], Future[ExpectedOutput | NoReference]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._stop = stop
        self._over = threading.Event()
        self._watch: threading.Thread | None = None
        self._quick, self._slow = _Lane(self._each), _Lane(self._each)

    def __enter__(self) -> Self:
        if self._stop is not None:
            watch = partial(self._close_when_stopped, self._stop)
            self._watch = threading.Thread(target=watch, name="references-stop", daemon=True)
            self._watch.start()
        return self

    def _close_when_stopped(self, stop: Stop) -> None:
        while not self._over.wait(LOOK_SECONDS):
            if stop.cancelled:
                self.close()
                return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._watch is not None:
            self._watch.join()
        self.close()

    def close(self) -> None:
        """End all running and queued computations, and free the cached outputs.

        Callers that wait for an output, and all later callers, get the error value `ENDED`: a
        NoReference which says that the job has ended.
        """
        with self._lock:
            self._closed = True
            self._known.clear()
        for lane in (self._quick, self._slow):
            lane.close()

    def prepare(
        self, workload: Workload, phase: Phase, points: Sequence[SizePoint] = ITSELF
    ) -> Prepared:
        """Start to compute the expected outputs with which candidates of a workload are checked.

        Return a handle from which the outputs can be read when they are computed.

        Args:
            workload: the computation that the candidates implement.
            phase: the tuning phase. In screening, candidates are checked on one set of random
                inputs for each size point. In other phases, two more sets are added, with the sizes
                of the middle point. They have other seeds and distributions (DRAWS). Candidates are
                timed only on the first set of each point.
            points: the size points: combinations of sizes of the workload's dynamic dimensions. The
                default is a single point, for a workload with fixed sizes.
        """
        asked = tuple(_asked(phase, points))
        made = tuple(self.begin(_at(workload, point), draw) for point, draw in asked)
        return Prepared(asked, made)

    def get(self, workload: Workload, draw: int = 0) -> ExpectedOutput | NoReference:
        """Return the expected output of a workload; compute it unless it is cached.

        Return a NoReference with the reason if the output cannot be computed. `draw` selects one of
        several sets of random inputs; DRAWS has their distributions.
        """
        return _outcome(self.begin(workload, draw))

    def begin(self, workload: Workload, draw: int) -> Future[ExpectedOutput | NoReference]:
        """Return a future for the expected output of a workload.

        Start to compute the output unless it is cached or is already being computed. If it cannot
        be computed, the future gives a NoReference with the reason. `draw` selects one of several
        sets of random inputs; DRAWS has their distributions.
        """
        identity = workload.key, draw
        with self._lock:
            found = self._known.get(identity)
            if found is None and self._closed:
                found = Future()
                found.set_result(ENDED)
            elif found is None:
                self._make_room()
                lane = self._lane(workload)
                found = lane.pool.submit(self._make, lane.child, workload, draw)
                self._known[identity] = found
        return found

    def _lane(self, workload: Workload) -> _Lane:
        try:
            return self._quick if is_quick(workload) else self._slow
        except CompilerError:  # `_make` raises it again and reports it
            return self._quick

    def _make(
        self, child: BoundedChild, workload: Workload, draw: int
    ) -> ExpectedOutput | NoReference:
        """Compute an expected output in the process `child`, and wait until it is computed.

        Return a NoReference with the reason if this fails; a failure is not cached. The method runs
        in a thread of its own for each child process. `draw` selects one of several sets of random
        inputs; DRAWS has their distributions.
        """
        made: ExpectedOutput | str = "cannot be computed"
        try:
            made = self._each.refusal(workload)
            if not made:
                with timed(self._timings, "references"):
                    found = child.ask(computed, (workload.text(), draw))
                made = _reason(found) if isinstance(found, NoAnswer) else found
        except CompilerError as error:
            made = f"cannot be computed: {error}"
        finally:
            with self._lock:
                closed = self._closed
                if isinstance(made, str):
                    self._known.pop((workload.key, draw), None)
        if isinstance(made, str):
            return ENDED if closed else NoReference(made)
        return made

    def _make_room(self) -> None:
        """Remove the oldest outputs from the cache until its size is at most the limit."""
        sizes = {
            identity: len(output.expected)
            for identity, made in self._known.items()
            if made.done() and isinstance(output := made.result(), ExpectedOutput)
        }
        held = sum(sizes.values())
        for identity, size in sizes.items():
            if held <= self._limit_bytes:
                return
            del self._known[identity]
            held -= size


class _Lane:
    """A child process that computes expected outputs, and a thread that waits for them."""

    def __init__(self, each: ReferenceLimit) -> None:
        self.child = BoundedChild(Limits(each.bytes, each.seconds))
        self.pool = ThreadPoolExecutor(1, "tilewright-references")

    def close(self) -> None:
        self.child.stop()
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.child.close()


def computed(text: str, draw: int) -> ExpectedOutput:
    """Compute the expected output of a workload; called in the child process.

    `text` is the workload in its serialised form (`Workload.text`). `draw` selects one of several
    sets of random inputs; DRAWS has their distributions.
    """
    return make_reference(Workload.parse(text), draw)


def _reason(failed: NoAnswer) -> str:
    if failed.reason is Reason.CRASHED:
        return f"cannot be computed: {failed.text}"
    return failed.text


def _outcome(made: Future[ExpectedOutput | NoReference]) -> ExpectedOutput | NoReference:
    try:
        return made.result()
    except CancelledError:
        return ENDED


def _at(workload: Workload, point: SizePoint) -> Workload:
    return workload.at(dict(point.sizes)) if point.sizes else workload


def _asked(phase: Phase, points: Sequence[SizePoint]) -> list[tuple[SizePoint, int]]:
    """Return the sets of random inputs on which candidates are checked in a phase of tuning.

    Each set is a pair: a size point (sizes of the dynamic dimensions), and an index in DRAWS, the
    list of the sets' distributions.
    """
    first = [(point, 0) for point in points]
    if phase is Phase.SCREEN:
        return first
    return [*first, *((points[len(points) // 2], draw) for draw in range(1, len(DRAWS)))]
