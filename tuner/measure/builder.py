"""Compilation of candidates in a pool of processes, with a time limit per candidate.

A failed build is reported as a result. A process builds one candidate at a time. If the process
crashes or hangs, it is replaced, and only this candidate fails. (With the pools of
`concurrent.futures`, other candidates would fail, too.)
"""

from __future__ import annotations

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from concurrent.futures import TimeoutError as BuildTimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import TYPE_CHECKING, Any, Protocol

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from tilewright.compiler.errors import CompilerError, memory_text
from tilewright.tuner.protocol.measurement import Status

# Every builder process imports this module first, then configures the garbage collector. The
# processes that compile import the compiler only afterwards, because it takes a third of a second.
if TYPE_CHECKING:
    from tilewright.compiler.mode import Mode
    from tilewright.compiler.schedule.schedule import Schedule
    from tilewright.compiler.timings import Timings
    from tilewright.tuner.tasks import Task

CACHE_ENTRIES = 4096
"""Number of cached builds. The fastest candidates of a task are linked again for the final
comparison."""


_LOOK_SECONDS = 1.0
"""Interval in seconds at which a thread that waits for a build checks whether the process pool
still works."""


_PARENT_SECONDS = 0.2
"""Interval in seconds at which a builder process checks whether its parent process still runs."""


@dataclass(frozen=True, slots=True)
class Built:
    """The result of the build of one candidate.

    Attributes:
        status: OK, or the kind of failure.
        error: the message of a failure.
        object: the object file; empty for a failure.
        object_digest: digest of the object without symbol names, so that equal code has equal
            digests.
        spec: the `KernelSpec` as JSON; empty for a failure.
        spills: a message if the code spills too many vectors to the stack; otherwise empty.
    """

    schedule: Schedule
    status: Status
    error: str = ""
    object: bytes = b""
    object_digest: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    build_seconds: float = 0.0
    spills: str = ""


Compile = Callable[[str, Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""A function that compiles a candidate, given the workload's text, the schedule as JSON and the
mode as JSON.

It returns a dict with the keys `object`, `spec`, `digest`, and optionally `spills` (as in `Built`)
and `stages` (the seconds of each compilation step by name). It raises CompilerError for a candidate
that cannot be compiled. It must be picklable, because it runs in another process.
"""


class Ticket(Protocol):
    """A handle for a batch of candidates that is being built."""

    def done(self) -> bool:
        """Whether the build of every candidate has ended."""

    def results(self) -> list[Built]:
        """Wait for all builds, and return their results in the order of the schedules."""

    def cancel(self) -> None:
        """Cancel the unfinished builds; their results have the status CANCELLED."""


class Builder(Protocol):
    """Builds batches of candidates in the background."""

    def start(self) -> None:
        """Start processes or connections ahead of the first batch, to build it without delay."""

    def submit(self, task: Task, schedules: Sequence[Schedule]) -> Ticket:
        """Start to build a task's workload with each schedule, and return without waiting."""

    def close(self) -> None:
        """Stop the processes that build."""


class BuildFuture(Protocol):
    """A handle for one candidate that is being built."""

    def done(self) -> bool:
        """Whether the build has ended, so that `result` returns without waiting."""

    def cancelled(self) -> bool:
        """Whether the build was cancelled."""

    def cancel(self) -> bool:
        """Cancel the build. Return whether it is cancelled."""

    def result(self) -> Mapping[str, Any]:
        """Wait for the build, and return the dict of the compile function (`Compile`).

        The dict has the additional key `build_seconds`.

        Raises:
            CancelledError: if the build was cancelled, or the builder closed.
            BuildTimeoutError: if the build exceeded its time limit.
            ProcessExpired: if the builder's process died.
            CompilerError: if the compiler rejects the candidate.
        """


class CachingBuilder(ABC):
    """A builder that caches the results of its last CACHE_ENTRIES builds.

    Subclasses implement `begin`, which builds one candidate. Several tuning runs may share a
    builder, each from its own thread.
    """

    def __init__(self, timings: Timings | None = None) -> None:
        """Create the builder. `timings` records the seconds of each build step of all processes."""
        self._timings = timings
        self._cache: OrderedDict[tuple[str, Mode, str], Built] = OrderedDict()
        self._lock = threading.Lock()

    @abstractmethod
    def begin(self, text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]) -> BuildFuture:
        """Start to build one candidate, given the arguments of the compile function (`Compile`)."""

    def submit(self, task: Task, schedules: Sequence[Schedule]) -> Ticket:
        """Start to build a task's workload with each schedule that is not in the cache."""
        key, text, mode = task.key, task.workload.text(), task.mode.to_json()
        parts: list[Built | _Pending] = []
        for schedule in schedules:
            identity = key.workload_key, task.mode, schedule.digest
            found = self._known(identity)
            if found is not None:
                parts.append(found)
                continue
            future = self.begin(text, schedule.to_json(), mode)
            parts.append(_Pending(schedule, identity, future))
        return _CachingTicket(parts, self._remember, self._timings)

    def _known(self, identity: tuple[str, Mode, str]) -> Built | None:
        with self._lock:
            found = self._cache.get(identity)
            if found is not None:
                self._cache.move_to_end(identity)
            return found

    def _remember(self, identity: tuple[str, Mode, str], built: Built) -> None:
        with self._lock:
            self._cache[identity] = built
            while len(self._cache) > CACHE_ENTRIES:
                self._cache.popitem(last=False)


class ProcessBuilder(CachingBuilder):
    """Builds candidates in a pool of processes on this machine.

    If a process dies before it has reported which build it runs, the pool becomes unusable. Then a
    new pool repeats the unfinished builds.
    """

    def __init__(
        self,
        workers: int | None = None,
        limit_seconds: float = 20.0,
        compile_candidate: Compile | None = None,
        timings: Timings | None = None,
    ) -> None:
        """Create the builder; its processes start with the first batch, or with `start`.

        Args:
            workers: number of processes; None for one less than the number of CPUs.
            limit_seconds: the time limit of one build.
            compile_candidate: the compile function; None for the real compiler.
            timings: records the seconds of each build step.
        """
        super().__init__(timings)
        self._limit_seconds = limit_seconds
        self._compile = compile_candidate or compile_with_compiler
        self._workers = workers or max(1, (os.cpu_count() or 2) - 1)
        self._closed = False
        self._pool = self._new_pool()

    def start(self) -> None:
        """Start the processes now, so that they import the compiler before the first batch."""
        # Reading `active` starts the pool.
        assert self._pool.active

    def begin(self, text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]) -> BuildFuture:
        return _PooledBuild(lambda: self._scheduled(text, schedule, mode), lambda: self._closed)

    def close(self) -> None:
        """Stop all processes. Unfinished builds are cancelled."""
        with self._lock:
            self._closed = True
        self._pool.stop()
        self._pool.join()

    def _scheduled(
        self, text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]
    ) -> tuple[ProcessPool, ProcessFuture]:
        with self._lock:
            if self._closed:
                given_up = ProcessFuture()
                given_up.cancel()
                return self._pool, given_up
            if not self._pool.active:
                # Otherwise its other processes would continue, or fail at the start because shared
                # state is missing.
                self._pool.stop()
                self._pool.join()
                self._pool = self._new_pool()
            future = self._pool.schedule(
                timed_compile,
                args=(self._compile, text, schedule, mode),
                timeout=self._limit_seconds,
            )
            return self._pool, future

    def _new_pool(self) -> ProcessPool:
        # Not by fork, because this process has threads.
        return _Pool(
            max_workers=self._workers,
            context=_Context(),
            initializer=_prepare,
            initargs=(self._compile is compile_with_compiler, os.getpid()),
        )


class _PooledBuild:
    """The future of one build in a process pool.

    If the pool breaks because another candidate's process died, the build is repeated once.
    """

    def __init__(
        self,
        schedule: Callable[[], tuple[ProcessPool, ProcessFuture]],
        closed: Callable[[], bool],
    ) -> None:
        self._schedule = schedule
        self._closed = closed
        self._pool, self._future = schedule()
        self._may_retry = True

    def done(self) -> bool:
        self._retry_if_broken()
        return bool(self._future.done())

    def cancelled(self) -> bool:
        return bool(self._future.cancelled())

    def cancel(self) -> bool:
        return bool(self._future.cancel())

    def result(self) -> Mapping[str, Any]:
        while not self.done():  # a stopped pool does not wake threads that wait for dropped builds
            wait([self._future], _LOOK_SECONDS)
        made: Mapping[str, Any] = self._future.result()
        return made

    def _retry_if_broken(self) -> None:
        """Submit the build again, to a new pool, if its pool is broken.

        In a broken pool, running builds fail, and waiting builds never start.
        """
        if self._pool.active or self._future.cancelled():
            return
        if self._future.done() and not isinstance(self._future.exception(), BrokenProcessPool):
            return
        if self._may_retry or self._closed():
            self._may_retry = False
            self._pool, self._future = self._schedule()
        elif not self._future.done():
            self._future.set_exception(BrokenProcessPool("the pool of builders broke twice"))


class _Process(SpawnProcess):
    """A builder process that ignores Ctrl-C in the terminal; only its parent ends it.

    If Ctrl-C ended a build, the tuner would record a failure of the candidate. SIGINT is blocked
    before the process starts, because the process needs a second for imports before it can set a
    handler.
    """

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Process


class _Pool(ProcessPool):  # type: ignore[misc]  # pebble has no types
    """A process pool that kills its processes before it deletes the locks that they share.

    The base class from the package pebble deletes the locks first. A process that is just starting
    then fails with a traceback, because its lock is missing.
    """

    def _stop_pool(self) -> None:
        if self._pool_manager_loop is not None:
            self._pool_manager_loop.join()  # it replaces processes that ended
        self._pool_manager.worker_manager.force_stop_workers()
        super()._stop_pool()


@dataclass(frozen=True, slots=True)
class _Pending:
    schedule: Schedule
    identity: tuple[str, Mode, str]
    future: BuildFuture


class _CachingTicket:
    def __init__(
        self,
        parts: list[Built | _Pending],
        remember: Callable[[tuple[str, Mode, str], Built], None],
        timings: Timings | None,
    ) -> None:
        self._parts = parts
        self._remember = remember
        self._timings = timings

    def done(self) -> bool:
        return all(isinstance(part, Built) or part.future.done() for part in self._parts)

    def results(self) -> list[Built]:
        return [part if isinstance(part, Built) else self._collect(part) for part in self._parts]

    def cancel(self) -> None:
        for part in self._parts:
            if isinstance(part, _Pending):
                part.future.cancel()

    def _collect(self, pending: _Pending) -> Built:
        if pending.future.cancelled():
            return Built(pending.schedule, Status.CANCELLED)
        try:
            made = pending.future.result()
        except CancelledError:
            return Built(pending.schedule, Status.CANCELLED)
        except BuildTimeoutError:
            return Built(pending.schedule, Status.BUILD_TIMEOUT, "the build took too long")
        except (ProcessExpired, BrokenProcessPool) as error:
            text = f"the compiler's process died: {error}"
            return Built(pending.schedule, Status.BUILD_ERROR, text)
        except CompilerError as error:
            return self._kept(pending, Built(pending.schedule, Status.BUILD_ERROR, str(error)))
        except MemoryError as error:
            return Built(pending.schedule, Status.BUILD_ERROR, memory_text(error, "for the build"))
        except Exception as error:  # noqa: BLE001 - a bug in one candidate's lowering is recorded
            text = f"internal error: {type(error).__name__}: {error}"
            return Built(pending.schedule, Status.BUILD_ERROR, text)
        if self._timings is not None:
            for stage, seconds in made.get("stages", {}).items():
                self._timings.add(stage, seconds)
        data = bytes(made["object"])
        built = Built(
            pending.schedule,
            Status.OK,
            object=data,
            object_digest=made["digest"],
            spec=made["spec"],
            build_seconds=made["build_seconds"],
            spills=made.get("spills", ""),
        )
        return self._kept(pending, built)

    def _kept(self, pending: _Pending, built: Built) -> Built:
        self._remember(pending.identity, built)
        return built


def compile_with_compiler(
    text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Compile a candidate with the real compiler; the default `Compile` function.

    The compiler is imported in this call, so that only builder processes load it.
    """
    from tilewright.tuner.measure.candidate import compile_candidate

    return compile_candidate(text, schedule, mode)


def _prepare(with_compiler: bool, parent: int) -> None:
    """Initialise a builder process: watch its parent, lower its priority, load the compiler.

    With a lower priority, builds do not delay measurements and the tuner. The compiler is loaded
    here, which takes a second, so that the build time of the first candidate does not include it.
    `with_compiler` is false for compile functions without the compiler; `parent` is a process id.
    """
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    os.nice(5)
    if with_compiler:
        load_compiler()


def load_compiler() -> None:
    """Configure this builder process, then import the compiler.

    The compiler imports NumPy, which reads its number of threads at import. So this number must be
    set first.
    """
    from tilewright.compiler.process import configure_process

    configure_process()
    from tilewright.tuner.measure.candidate import warm_up

    warm_up()


def _end_with(parent: int) -> None:
    """Wait until the process `parent` ends, then end this process at once.

    The function has its own thread, so that even a build in progress is aborted. Linux's own
    mechanism (PR_SET_PDEATHSIG) is not suitable: it reacts to the end of the thread that created
    the process, and this may be the thread of a single job.
    """
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


def timed_compile(
    compile_candidate: Compile,
    text: str,
    schedule: Mapping[str, Any],
    mode: Mapping[str, Any],
) -> dict[str, Any]:
    """Call a compile function, and add its duration to the result as `build_seconds`."""
    started = time.perf_counter()
    made = compile_candidate(text, schedule, mode)
    return {**made, "build_seconds": time.perf_counter() - started}
