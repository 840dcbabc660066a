"""Functions run in a child of this process, within limits of memory, time and priority.

A model may be of any size, crafted or merely large: a thread inside NumPy cannot be stopped, and
memory that it takes is the whole process's. A child is killed at once when nobody wants its answer
any more. What it does not survive is data.

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
from tilewright.compiler.process import settle_process
from tilewright.compiler.process.child import ChildProcess

T = TypeVar("T")

OWN_BYTES = 512 << 20
"""What a child holds beside what it is asked for: Python and the compiler."""

START_SECONDS = 120.0
"""How long a child may take to load the compiler, on a machine that is busy."""

LOOK_SECONDS = 0.05
"""How often a question looks whether its answer is still wanted."""

NICENESS = 5
"""The niceness of children, as of the builders: measurements go first."""

MOST_WORDS = 1 << 16
"""Characters that are kept of what a child wrote before it ended."""

ALIGNMENT = 64
"""Of arrays in an answer, as NumPy aligns its own."""


class Stop(Protocol):
    """What says that an answer is not wanted any more, such as the token of a job."""

    @property
    def cancelled(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one question may take.

    Attributes:
        memory_bytes: of memory that the child allocates beside its own code. Linux alone counts it.
        seconds: by the clock on the wall.
        niceness: of the child.
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
    """Why a question was not answered.

    Attributes:
        reason: what a caller decides by; `ENDED` if the answer was not wanted any more.
        text: the same for people.
        words: all that the child wrote before it ended, such as the traceback of a bug.
    """

    reason: Reason
    text: str
    words: str = ""


Answers: TypeAlias = Callable[..., Any]
"""What a parent answers to a child that asks back."""


@dataclass(frozen=True, slots=True)
class _Asked:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    back: bool
    """Whether the function is given what asks this process."""


def run(
    function: Callable[..., T],
    arguments: tuple[Any, ...],
    limits: Limits,
    stop: Stop | None = None,
    answers: Answers | None = None,
) -> T | NoAnswer:
    """What a function returns, computed in a child of its own.

    Args:
        function: one that its module has by its name.
        arguments: values that `pickle` takes; so must the answer be. Their arrays cannot be written
            to there, those of the answer can be here.
        limits: what it may take.
        stop: kills the child at once when it is cancelled.
        answers: what this process does for the child, such as to run a program on a device. The
            function gets one more argument then: calling that calls `answers` here with the same
            arguments, for what it returns or for the CompilerError that it raises. The time that it
            takes is not the child's.

    Raises:
        CompilerError: that the function raised. Of another class, with the same text, if its own
            cannot be sent.
    """
    child = BoundedChild(limits)
    try:
        return child.ask(function, arguments, stop, answers)
    finally:
        child.stop()
        child.close()


class BoundedChild:
    """One child for many questions, started when it is first needed, and anew after it died.

    One thread asks it, and that must live as long: Linux ends a child with the thread that started
    it. Any thread may stop it.
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
        """What a function returns for these arguments (`run`)."""
        answered = False
        try:
            child = self._ready()
            if child is None:
                return _ENDED
            answer = self._answer(child, function, arguments, stop, answers)
            answered = not isinstance(answer, NoAnswer)
        except MemoryError:
            return NoAnswer(Reason.MEMORY, "does not fit the memory of this process")
        except OSError as error:  # no child can be started, or no file be mapped
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
        """End the child at once, for good. Who waits in `ask` is told."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.stop()

    def close(self) -> None:
        """Clear away what is left after `stop`, when no thread is in `ask`."""
        self.drop()

    def drop(self) -> None:
        """End the child; the next question gets a new one."""
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
            child.pipe.recv()  # it has loaded what it was asked for
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
        """Until the child says something; otherwise, why nobody waits any longer."""
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
    """A question of the child to its parent."""

    arguments: tuple[Any, ...]


class _OursError(Exception):
    """What the parent raised while it answered, which says nothing about the child."""

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
    """Why a child ended before it answered."""
    status = child.wait()
    lines = child.last_words()
    words = "\n".join(lines)[-MOST_WORDS:]
    if sys.platform != "win32" and status == -signal.SIGXCPU:
        return _late(limits)
    if status < 0:
        text = f"its process was ended by {signal.Signals(-status).name}"
    else:
        text = lines[-1] if lines else f"its process ended with {status}"
    return NoAnswer(Reason.CRASHED, text, words)


def serve(pipe: Connection) -> None:
    """Answer what comes through the pipe until it is closed: what the child runs.

    It answers what is expected to fail. Any other error ends it, and its last line says why.
    """
    settle_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for its parent
    with pipe:
        try:
            limits: Limits = pipe.recv()
            limit_memory(limits.memory_bytes)
            go_last(limits.niceness)
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
    """What the parent answers, in the child."""
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
    """The error itself if it can be sent, or else one with its text."""
    plain = error.with_traceback(None)
    try:
        same = pickle.loads(pickle.dumps(plain))
    except (TypeError, ValueError, LookupError, AttributeError, pickle.PicklingError):
        return CompilerError(str(error))
    return plain if str(same) == str(error) else CompilerError(str(error))


def _send(pipe: Connection, value: Any, to: int) -> None:
    """A value in a file that both processes map: neither copies its large arrays.

    Args:
        to: the process at the other end.
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
    """What was sent. Writing to its arrays, if that is possible, changes no file.

    Linux counts memory that may be written to, so that questions are not `writable`.
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
    """Let this process allocate no more. Linux alone counts what is allocated."""
    if sys.platform == "linux":
        import resource

        most = _within(most_bytes + OWN_BYTES, resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def go_last(niceness: int) -> None:
    """Let other processes go first."""
    if sys.platform != "win32":
        os.nice(niceness)


def _limit_time(limits: Limits) -> None:
    """End this process after so many seconds on all cores, also when nobody waits for it."""
    if sys.platform != "win32":
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        used = int(usage.ru_utime + usage.ru_stime) + 1
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        most = used + int(limits.seconds * (os.cpu_count() or 1))
        resource.setrlimit(resource.RLIMIT_CPU, (_within(most, resource.RLIMIT_CPU), hard))


def _within(most: int, kind: int) -> int:
    """Nobody may go beyond a limit that this process was given."""
    import resource

    hard = resource.getrlimit(kind)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)
