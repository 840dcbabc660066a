"""Functions that run in a child process, within limits of memory, time and priority.

An uploaded model may be too large, by accident or by intent. A thread inside NumPy cannot be
stopped, and its memory counts for the whole process. A child process, in contrast, is killed as
soon as its result is no longer needed. A call that exceeds a limit returns a `NoAnswer`. For
example, this call plans a model with at most 4 GiB of memory in at most 120 s:

    found = bounded.run(plan, (model,), Limits(4 << 30, 120.0), token)
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeAlias, TypeVar

from tilewright.compiler.errors import CompilerError, OutOfMemoryError
from tilewright.compiler.process import configure_process
from tilewright.compiler.process.child import ChildProcess

T = TypeVar("T")

OWN_BYTES = 512 << 20
"""Memory limit in bytes for Python and the compiler in a child process. The limit for the child's
task is added to it."""

START_SECONDS = 120.0
"""Maximum time in seconds in which a child starts and loads the compiler, on a busy machine."""

LOOK_SECONDS = 0.05
"""Interval in seconds at which `ask` checks whether the call was cancelled."""

NICENESS = 5
"""Niceness of child processes, equal to that of the builders. Measurements have priority."""

MOST_WORDS = 1 << 16
"""Maximum number of characters of a crashed child's last output that are kept."""

ALIGNMENT = 64
"""Alignment in bytes of the arrays in a result, equal to NumPy's own."""


class Stop(Protocol):
    """A cancellation token: `cancelled` is true once the result of a call is no longer needed."""

    @property
    def cancelled(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call in a child process.

    Attributes:
        memory_bytes: memory that the child may allocate in addition to `OWN_BYTES` for Python and
            the compiler. Enforced on Linux only.
        seconds: maximum wall-clock time of each call, without the child's start.
        niceness: value that the child adds to its niceness.
    """

    memory_bytes: int
    seconds: float
    niceness: int = NICENESS


class Reason(StrEnum):
    MEMORY = "memory"
    TIME = "time"
    ENDED = "ended"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The reason why a call in a child process returned no result.

    Attributes:
        reason: the kind of the reason; `ENDED` if the result was no longer needed.
        text: the reason as a phrase for a message, such as "takes more than 120 s".
        words: the last output of a crashed child to standard error, such as a traceback; at most
            `MOST_WORDS` characters.
    """

    reason: Reason
    text: str
    words: str = ""


Answers: TypeAlias = Callable[..., Any]
"""A function of the parent process that the child may call while it computes a result."""


@dataclass(frozen=True, slots=True)
class _Asked:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    back: bool
    """Whether the function gets one more argument: a function that calls `answers` in the parent
    process."""


def run(
    function: Callable[..., T],
    arguments: tuple[Any, ...],
    limits: Limits,
    stop: Stop | None = None,
    answers: Answers | None = None,
) -> T | NoAnswer:
    """Run a function in a new child process and return its result.

    Args:
        function: a function that can be imported from its module by name.
        arguments: picklable values; the result must be picklable too. Arrays are read-only in the
            child and writable in the result.
        limits: memory, time and niceness of the child.
        stop: a cancellation token. Within `LOOK_SECONDS` of its cancellation the child is killed,
            and the result is a `NoAnswer`.
        answers: a function of this process that the child may call, for example to run a program on
            a device. `function` then gets one more argument: a function that calls `answers` in
            this process and returns its result or raises its CompilerError. The time of these calls
            does not count towards the limit.

    Returns:
        The result of the function; a `NoAnswer` if a limit is exceeded, the child crashes, or the
        call is cancelled.

    Raises:
        CompilerError: if the function raises one. An error that cannot be pickled is replaced by a
            plain CompilerError with the same text.
    """
    child = BoundedChild(limits)
    try:
        return child.ask(function, arguments, stop, answers)
    finally:
        child.stop()
        child.close()


class BoundedChild:
    """A child process for many calls, started on first use and restarted after it ended.

    A single thread must make all calls of `ask`, and outlive the child, because Linux ends the
    child together with the thread that started it. Any thread may call `stop`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._child: ChildProcess | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def ask(
        self,
        function: Callable[..., T],
        arguments: tuple[Any, ...],
        stop: Stop | None = None,
        answers: Answers | None = None,
    ) -> T | NoAnswer:
        """Run a function in the child process, and return its result or a `NoAnswer`.

        Arguments, result and errors are as in the module's function `run`.
        """
        answered = False
        try:
            child = self._ready()
            if child is None:
                return _ENDED
            answer = self._answer(child, function, arguments, stop, answers)
            answered = not isinstance(answer, NoAnswer)
        except MemoryError:
            return NoAnswer(Reason.MEMORY, "does not fit the memory of this process")
        except OSError as error:  # starting a child or mapping a file failed
            return NoAnswer(Reason.CRASHED, str(error))
        except _OursError as error:
            raise error.cause from None
        finally:
            if not answered:
                self.drop()
        if isinstance(answer, _Raised):
            raise answer.error
        if isinstance(answer, _OutOfMemory):
            return NoAnswer(Reason.MEMORY, f"takes more memory than it may{answer.text}")
        found: T | NoAnswer = answer
        return found

    def stop(self) -> None:
        """Kill the child; no other child is started.

        A thread that waits in `ask` gets a `NoAnswer`.
        """
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.stop()

    def close(self) -> None:
        """Release the pipe and the process handle after `stop`, while no thread is in `ask`."""
        self.drop()

    def drop(self) -> None:
        """Kill the child; the next call of `ask` starts a new one."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _ready(self) -> ChildProcess | None:
        with self._lock:
            if self._child is None and not self._stopped:
                self._child = ChildProcess(__name__, "serve", with_parent=True)
                self._child.pipe.send(self._limits)
            return None if self._stopped else self._child

    def _answer(
        self,
        child: ChildProcess,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        stop: Stop | None,
        answers: Answers | None,
    ) -> Any:
        try:
            _send(child.pipe, _Asked(function, arguments, answers is not None), child.pid)
            late = self._wait(child, START_SECONDS, stop)
            if late is not None:
                return late
            child.pipe.recv()  # the child has loaded its modules
            left = self._limits.seconds
            while True:
                begun = time.monotonic()
                late = self._wait(child, left, stop)
                if late is not None:
                    return late
                said = _receive(child.pipe, writable=True)
                if answers is None or not isinstance(said, _Back):
                    return said
                left -= time.monotonic() - begun
                _send(child.pipe, _told(answers, said), child.pid)
        except (EOFError, ConnectionError):
            return _ENDED if self._stopped else _last(child, self._limits)

    def _wait(self, child: ChildProcess, seconds: float, stop: Stop | None) -> NoAnswer | None:
        """Wait until the child sends a message.

        Returns None if it sent one. Returns a `NoAnswer` if `seconds` elapsed or `stop` was
        cancelled first.
        """
        end = time.monotonic() + seconds
        while not child.pipe.poll(LOOK_SECONDS):
            if stop is not None and stop.cancelled:
                return _ENDED
            if time.monotonic() >= end:
                return _late(self._limits)
        return None


_ENDED = NoAnswer(Reason.ENDED, "is not wanted any more")


def _late(limits: Limits) -> NoAnswer:
    return NoAnswer(Reason.TIME, f"takes more than {limits.seconds:g} s")


@dataclass(frozen=True, slots=True)
class _Raised:
    error: CompilerError


@dataclass(frozen=True, slots=True)
class _OutOfMemory:
    text: str


@dataclass(frozen=True, slots=True)
class _Back:
    """A message from the child: call the parent's `answers` function with these arguments."""

    arguments: tuple[Any, ...]


class _OursError(Exception):
    """An exception of the parent's `answers` function that is not a CompilerError.

    The parent raises the original exception, `cause`, to its caller, instead of treating it as a
    failure of the child.
    """

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _told(answers: Answers, back: _Back) -> Any:
    try:
        return answers(*back.arguments)
    except CompilerError as error:
        return _Raised(_sendable(error))
    except BaseException as error:
        raise _OursError(error) from error


def _last(child: ChildProcess, limits: Limits) -> NoAnswer:
    """The reason why a child process ended without sending a result."""
    status = child.wait()
    lines = child.error_lines()
    words = "\n".join(lines)[-MOST_WORDS:]
    if sys.platform != "win32" and status == -signal.SIGXCPU:
        return _late(limits)
    if status < 0:
        text = f"its process was ended by {signal.Signals(-status).name}"
    else:
        text = lines[-1] if lines else f"its process ended with {status}"
    return NoAnswer(Reason.CRASHED, text, words)


def serve(pipe: Connection) -> None:
    """Run the functions that arrive on the pipe until it is closed: the child's main function.

    A CompilerError or a MemoryError of a function is sent to the parent. Any other exception ends
    the child, with its message on the last line of standard error.
    """
    configure_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is handled by the parent
    with pipe:
        try:
            limits: Limits = pipe.recv()
            limit_memory(limits.memory_bytes)
            lower_priority(limits.niceness)
            while True:
                asked: _Asked = _receive(pipe, writable=False)
                pipe.send("ready")
                _limit_time(limits)
                arguments = (
                    (*asked.arguments, partial(_back, pipe)) if asked.back else asked.arguments
                )
                _send(pipe, _made(asked.function, arguments), os.getppid())
                del asked, arguments
        except (EOFError, BrokenPipeError):
            return


def _back(pipe: Connection, *arguments: Any) -> Any:
    """Call the parent's `answers` function from the child, and return its result.

    Raises:
        CompilerError: if the function raises one.
    """
    _send(pipe, _Back(arguments), os.getppid())
    answer = _receive(pipe, writable=False)
    if isinstance(answer, _Raised):
        raise answer.error
    return answer


def _made(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except CompilerError as error:
        if isinstance(error, OutOfMemoryError) and isinstance(error.__cause__, MemoryError):
            return _OutOfMemory(_behind(error.__cause__))
        return _Raised(_sendable(error))
    except MemoryError as error:
        return _OutOfMemory(_behind(error))


def _behind(error: MemoryError) -> str:
    return f": {error}" if str(error) else ""


def _sendable(error: CompilerError) -> CompilerError:
    """Return the error itself if it can be pickled, or else an error with the same text."""
    plain = error.with_traceback(None)
    try:
        same = pickle.loads(pickle.dumps(plain))
    except (TypeError, ValueError, LookupError, AttributeError, pickle.PicklingError):
        return CompilerError(str(error))
    return plain if str(same) == str(error) else CompilerError(str(error))


def _send(pipe: Connection, value: Any, to: int) -> None:
    """Send a picklable value to process `to`, in a temporary file that both processes map.

    Large arrays are thus not copied through the pipe.
    """
    apart: list[pickle.PickleBuffer] = []
    with tempfile.TemporaryFile() as file:
        pickle.dump(value, file, 5, buffer_callback=apart.append)
        sizes = [file.tell()]
        for view in (each.raw() for each in apart):
            file.write(bytes(-sizes[-1] % ALIGNMENT))
            file.write(view)
            sizes.append(view.nbytes)
        file.flush()
        pipe.send(sizes)
        reduction.send_handle(pipe, file.fileno(), to)


def _receive(pipe: Connection, *, writable: bool) -> Any:
    """Receive a value that `_send` sent.

    If `writable`, its arrays may be changed, which does not change the file. Linux counts writable
    mappings as allocated memory, so the child receives its arguments read-only.
    """
    sizes = pipe.recv()
    with os.fdopen(reduction.recv_handle(pipe), "rb") as file:
        access = mmap.ACCESS_COPY if writable else mmap.ACCESS_READ
        whole = memoryview(mmap.mmap(file.fileno(), 0, access=access))
    text, *arrays = _views(whole, sizes)
    return pickle.loads(text, buffers=arrays)


def _views(whole: memoryview, sizes: list[int]) -> Iterator[memoryview]:
    start = 0
    for size in sizes:
        yield whole[start : start + size]
        start += size + -size % ALIGNMENT


def limit_memory(most_bytes: int) -> None:
    """Limit the memory that this process may allocate, and disable core dumps; on Linux only.

    The limit is `most_bytes` plus OWN_BYTES, the memory for Python and the compiler.
    """
    if sys.platform == "linux":
        import resource

        most = _within(most_bytes + OWN_BYTES, resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def lower_priority(niceness: int) -> None:
    """Add `niceness` to the niceness of this process; has no effect on Windows."""
    if sys.platform != "win32":
        os.nice(niceness)


def _limit_time(limits: Limits) -> None:
    """Limit this process to `limits.seconds` of CPU time for each core of the machine.

    The limit ends a child whose parent has died and can no longer stop it.
    """
    if sys.platform != "win32":
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        used = int(usage.ru_utime + usage.ru_stime) + 1
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        most = used + int(limits.seconds * (os.cpu_count() or 1))
        resource.setrlimit(resource.RLIMIT_CPU, (_within(most, resource.RLIMIT_CPU), hard))


def _within(most: int, kind: int) -> int:
    """Reduce a limit to the hard limit that this process inherited, which it may not exceed.

    `kind` is the constant of the resource, such as `RLIMIT_CPU`.
    """
    import resource

    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)
