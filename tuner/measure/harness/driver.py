"""Communication with the harness of a device through the standard input and output of a command.

`serve.c` documents the protocol. The device needs no NumPy, because this module generates the
random input arrays of each request (`tuner.measure.plain_form`). The device is not trusted: it
receives only the blobs that a request names, and its messages are validated as strictly as a
worker's messages to the service.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.compiler.targets.core_kinds import ranges_text
from tilewright.tuner.measure.harness.build import HarnessError
from tilewright.tuner.measure.harness.command import (
    FOLDER,
    START_SECONDS,
    DeviceCommand,
    DeviceLost,
    end,
    kill,
)
from tilewright.tuner.measure.job_queue import MOST_TOGETHER
from tilewright.tuner.measure.plain_form import MOST_ELEMENTS, PlainForms
from tilewright.tuner.measure.speed import Speed
from tilewright.tuner.protocol.batches import MeasureResult
from tilewright.tuner.protocol.measurement import Status
from tilewright.tuner.protocol.messages import Request, WorkResult, read_result
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import RunRequest
from tilewright.tuner.protocol.standard_input import AgentMessage, FailureCause, HarnessMessage
from tilewright.tuner.protocol.version import PROTOCOL, ProtocolError

PROBE_SECONDS = 20.0
"""Longest time in seconds between two measurements of a device's speed."""

Bytes = bytes | memoryview
Blob = Callable[[str], Bytes]
"""A function that returns the bytes of a blob, given its digest."""

Log = Callable[[str], None]

LINE_BYTES = 128 << 20
"""Limit of a message from the harness, in bytes. The result of a run contains output arrays."""

KEPT_BYTES = 256 << 20
"""Limit of the cached random arrays, in bytes. Further requests for the same workloads use these
arrays again."""

LOOK_SECONDS = 0.1
"""Interval in seconds at which a wait for the harness checks whether its work was cancelled."""

GOODBYE_SECONDS = 5.0
"""Seconds that a harness may take to exit before it is killed."""

SILENT_SECONDS = 120.0
"""Seconds without any message from a harness after which the harness counts as lost and is killed.

A harness sends its state every five seconds, except while it reads one large blob from a slow disk.
It is also lost if it reads nothing of a message for this time, or for `CANCEL_SECONDS` if its work
was cancelled.
"""

PIECE_BYTES = 1 << 18
"""Number of bytes of a message that are written at a time."""

CANCEL_SECONDS = 20.0
"""Seconds within which cancelled work must end."""

IDLE_LINE_BYTES = 1 << 20
"""Limit of a line from the harness in bytes while no work is in progress."""

MOST_WAITING = 16
"""Capacity of the queue of unread messages. A correct harness sends a message only on request."""

MOST_LOGGED = 1000
"""Limit of the log lines that are accepted from a harness. Further lines are dropped."""

_SAME = ("architecture", "system", "processor", "model", "cores")
"""Names of the properties by which a device is recognised when a harness connects again."""


SANDBOX_USERS = (61_000, 61_255)
"""First and last user id that the sandbox uses. No Linux distribution assigns these ids."""


def is_complete(result: WorkResult) -> bool:
    """Whether a result covers its whole request.

    A request is a run (of whole programs) or a batch (of candidates to measure). The result of a
    run is always complete. The result of a batch is complete if no candidate has the status
    CANCELLED.
    """
    return isinstance(result, RunResult) or all(
        measured.status is not Status.CANCELLED for _, measured in result.measurements
    )


@dataclass(slots=True)
class _Blobs:
    """The files (blobs) that the device may request for the measurements in progress.

    Attributes:
        given: returns the bytes of a blob of the caller, by digest.
        made: the blobs that this process generated because the device has no NumPy, by digest. They
            are input arrays and plans (which state how to fill the buffers).
        named: the digests of all blobs that the requests name.
    """

    given: Blob
    made: dict[str, bytes] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)

    def bytes_of(self, digest: str) -> Bytes:
        found = self.made.get(digest)
        return self.given(digest) if found is None else found


@dataclass(slots=True)
class _Connection:
    """A connection to a running harness.

    Attributes:
        process: the process of the command that started the harness.
        said: the harness's messages that have not been processed yet.
        ended: set when no more messages will arrive.
        heard_at: the time of the last message, by time.monotonic().
        sending_since: the time at which the write in progress began (a message is written in chunks
            of PIECE_BYTES); infinity if nothing is being sent.
        cancelled: returns whether the caller has cancelled the work in progress; None without work.
    """

    process: subprocess.Popen[bytes]
    said: queue.Queue[Mapping[str, Any]] = field(default_factory=lambda: queue.Queue(MOST_WAITING))
    ended: threading.Event = field(default_factory=threading.Event)
    heard_at: float = field(default_factory=time.monotonic)
    sending_since: float = float("inf")
    cancelled: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class HarnessLimits:
    """The resources of a device that the harness may use, as configured by the user.

    Attributes:
        cache_bytes: the size of the device's blob cache.
        sandbox_bytes: the memory limit of candidates; 0 for all memory of the device.
        sandbox_users: a range of user ids, first and last. A harness that runs as root selects one
            that no other harness uses, and runs candidates with it. None to run them as root.
        cores: the logical cores on which candidates run; empty for the fastest type of cores.
        all_cores: whether candidates run on all cores; `cores` is then ignored.
    """

    cache_bytes: int = 1 << 30
    sandbox_bytes: int = 0
    sandbox_users: tuple[int, int] | None = SANDBOX_USERS
    cores: tuple[int, ...] = ()
    all_cores: bool = False

    @property
    def arguments(self) -> list[str]:
        """The command-line arguments with which a harness with these limits is started."""
        users = "none" if self.sandbox_users is None else "{}-{}".format(*self.sandbox_users)
        made = ["--serve", FOLDER, "--cache-mib", str(self.cache_bytes >> 20)]
        made += ["--sandbox-users", users]
        if self.sandbox_bytes:
            made += ["--sandbox-mib", str(self.sandbox_bytes >> 20)]
        if self.all_cores or self.cores:
            made += ["--cores", "all" if self.all_cores else ranges_text(self.cores)]
        return made


class Harness:
    """A device's harness, which is started on first use and restarted if it is lost.

    Only one thread may call `work` and `look`.

    Args:
        command: the command that reaches the device.
        limits: the settings of the harness.
        log: receives log lines for the user.
        facts: the device's properties for its registration; None to let the harness detect them.
        device: the properties stored in every measurement; None to let the harness detect them.
    """

    most_together = MOST_TOGETHER

    def __init__(
        self,
        command: DeviceCommand,
        limits: HarnessLimits,
        log: Log,
        facts: Mapping[str, Any] | None = None,
        device: Mapping[str, Any] | None = None,
    ) -> None:
        self._command = command
        self._arguments = limits.arguments
        self._log = log
        self._given_facts = facts
        self._device = device
        self._forms = PlainForms(KEPT_BYTES)
        self._worker_id = ""
        self._connection: _Connection | None = None
        self._facts: Mapping[str, Any] = {}
        self._state: Mapping[str, Any] = {"speed": None, "condition": None}
        self._looked_at = float("-inf")
        self._room = 0

    def facts(self) -> Mapping[str, Any]:
        """Return the device's properties, such as its processor and cores, as JSON.

        The format is that of a worker's registration. If necessary, start the harness to detect
        them.

        Raises:
            DeviceLost: if the device is unreachable.
            HarnessError: if the harness cannot be started.
        """
        if self._given_facts is not None:
            return self._given_facts
        if not self._facts:
            self._connected()
        return self._facts

    def state(self) -> Mapping[str, Any]:
        """Return the latest speed and condition that the harness reported, as JSON.

        The keys are `speed` (see `Speed`) and `condition` (such as temperature and load), as in a
        worker's heartbeat. Both are None before the first report. Any thread may call this method.
        """
        return self._state

    def begin(self, worker_id: str) -> None:
        """Start the harness, and set the worker id that measurements state.

        Raises:
            DeviceLost: if the device is unreachable.
            HarnessError: if the harness cannot be started.
        """
        self._worker_id = worker_id
        self._connected()
        self.look()

    def work(
        self, requests: Sequence[Request], blob: Blob, cancelled: Callable[[], bool]
    ) -> Sequence[WorkResult | None]:
        """Execute one run of whole programs, or measure several batches of candidates together.

        Args:
            requests: one run, or batches that may be measured together (`job_queue.go_together`).
            blob: returns the bytes of a blob that a request names, by digest.
            cancelled: called regularly; once it returns true, the work is cancelled.

        Returns:
            A result per request. It is None if the work was cancelled before it began, or if the
            run was cancelled. If batches are cancelled later, their unfinished candidates have the
            status CANCELLED.

        Raises:
            DeviceLost: if the device is unreachable.
            ProtocolError: if the device cannot parse a request.
            OSError, RuntimeError, ValueError: if the device cannot execute the request.
        """
        connection = self._connected()
        blobs = _Blobs(blob)
        plain = [self._spelled_out(request, blobs) for request in requests]
        refused = [self._refusal(request) for request in plain]
        if any(refused):
            return refused
        texts = [request.to_json() for request in plain]
        connection.cancelled = cancelled
        try:
            self._send({"do": AgentMessage.WORK, "worker": self._worker_id, "requests": texts})
            found = self._answer(plain, blobs, cancelled)
        finally:
            connection.cancelled = None
        return [None] * len(requests) if found is None else found

    def look(self) -> None:
        """Update the device's speed in `state` if it is older than PROBE_SECONDS.

        The harness then times its reference kernel. Callers use this method while they have no
        requests.

        Raises:
            DeviceLost: if the device is unreachable, or the harness has ended.
            HarnessError: if the harness cannot be started.
        """
        if time.monotonic() >= self._looked_at + PROBE_SECONDS:
            self._send({"do": AgentMessage.PROBE})
            self._looked_at = time.monotonic()
        elif self._connected().ended.is_set():
            raise self._lost("it ended")

    def readings(self, count: int) -> Sequence[Speed]:
        """Measure the device's speed `count` times, under the same conditions as candidates.

        The harness times its reference kernel in the sandbox.

        Raises:
            HarnessError, OSError, RuntimeError: if the harness is missing, or cannot run a sandbox.
        """
        self._send({"do": AgentMessage.PROBE, "times": count})
        ends = time.monotonic() + START_SECONDS + count
        while time.monotonic() < ends:
            match self._heard(LOOK_SECONDS):
                case {HarnessMessage.READINGS: list(found)}:
                    return [Speed(float(arithmetic), float(memory)) for arithmetic, memory in found]
                case {HarnessMessage.FAILED: str(why)}:
                    raise RuntimeError(why)
                case None:
                    continue
                case _:
                    break
        raise self._lost("its answer is malformed")

    def close(self) -> None:
        """End the harness and its child processes. Without a running harness, do nothing."""
        if self._connection is None:
            return
        process, self._connection = self._connection.process, None
        with contextlib.suppress(OSError):  # the process may have ended already
            assert process.stdin is not None
            process.stdin.close()  # the end of its input ends the harness
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GOODBYE_SECONDS)
        end(process)

    def _spelled_out(self, request: Request, blobs: _Blobs) -> Request:
        plain, made = self._forms.expanded(request, blobs.bytes_of, self._most_elements())
        blobs.made.update(made)
        blobs.named.update(plain.digests)
        return plain

    def _most_elements(self) -> int:
        """Return how many float32 elements fit into the device's memory.

        The random input arrays of a request may not have more elements.
        """
        match self._facts.get("memory_bytes"):
            case int(memory) if memory > 0:
                return memory // 4
            case _:
                return MOST_ELEMENTS

    def _refusal(self, request: Request) -> RunResult | None:
        """Return a result with the status REFUSED if a run needs too many bytes of blobs (files).

        A run executes whole programs. The device's cache must hold all its blobs at once. The
        result is None if they fit, and for all other requests.
        """
        if not isinstance(request, RunRequest) or request.blob_bytes <= self._room:
            return None
        why = (
            f"the run needs {request.blob_bytes} bytes of blobs, "
            f"the device has room for {self._room}"
        )
        worker = self._worker_id
        return RunResult(request.request_id, RunStatus.REFUSED, why, worker=worker)

    def _answer(
        self, requests: Sequence[Request], blobs: _Blobs, cancelled: Callable[[], bool]
    ) -> Sequence[WorkResult] | None:
        """Wait for the results of the work in progress, and send the blobs that the device lacks.

        Return None if the work was cancelled and the harness has no results.
        """
        over_at: float | None = None  # when cancelled work must have ended
        while True:
            said = self._heard(LOOK_SECONDS)
            if over_at is None and cancelled():
                over_at = time.monotonic() + CANCEL_SECONDS
                self._send({"do": AgentMessage.CANCEL})
            match said:
                case None if over_at is not None and time.monotonic() >= over_at:
                    raise self._lost("it does not end cancelled work")
                case None:
                    continue
                case {HarnessMessage.NEED: list(digests)}:
                    if over_at is None and not self._given(digests, blobs, cancelled):
                        over_at = time.monotonic() + CANCEL_SECONDS
                case {HarnessMessage.RESULTS: list(results)}:
                    self._looked_at = time.monotonic()
                    found = self._read_all(requests, results)
                    if over_at is None and not all(map(is_complete, found)):
                        raise RuntimeError("the device gave up work that was not cancelled")
                    return found
                case {HarnessMessage.FAILED: str(why), "cause": FailureCause.SERVICE}:
                    raise ProtocolError(f"the device: {why[:400]}")
                case {HarnessMessage.FAILED: str(why)}:
                    raise RuntimeError(f"the device: {why[:400]}")
                case {HarnessMessage.CANCELLED: True} if over_at is not None:
                    return None
                case _:
                    raise self._lost("its answer is malformed")

    def _given(
        self, digests: Sequence[object], blobs: _Blobs, cancelled: Callable[[], bool]
    ) -> bool:
        """Call `_give` to send blobs to the device, and return its result.

        If it raises an error, end the harness, which would otherwise wait for the blobs forever.
        """
        try:
            return self._give(digests, blobs, cancelled)
        except BaseException:
            self._end()
            raise

    def _give(
        self, digests: Sequence[object], blobs: _Blobs, cancelled: Callable[[], bool]
    ) -> bool:
        """Send the blobs with the given digests, which the device lacks; return whether all were
        sent.

        If the work is cancelled meanwhile, notify the device and return false.

        Raises:
            DeviceLost: if the device requests a blob that its work does not name.
        """
        for digest in digests:
            if not isinstance(digest, str) or digest not in blobs.named:
                raise self._lost("it requested a blob that is not part of the request")
            if cancelled():
                self._send({"do": AgentMessage.CANCEL})
                return False
            data = blobs.bytes_of(digest)
            self._send({"blob": digest, "bytes": len(data)}, data)
        return True

    def _read_all(
        self, requests: Sequence[Request], results: Sequence[object]
    ) -> Sequence[WorkResult]:
        if len(results) != len(requests):
            raise RuntimeError("the device's results belong to other requests")
        return [self._read(*each) for each in zip(requests, results, strict=True)]

    def _read(self, request: Request, result: object) -> WorkResult:
        try:
            found = read_result(result)
        except ProtocolError as error:
            raise RuntimeError(f"the device's result is malformed: {error}") from error
        if (found.kind, found.request_id) != (request.kind, request.request_id):
            raise RuntimeError("the device's result belongs to another request")
        if self._device is not None and isinstance(found, MeasureResult):
            named = ((trial, replace(m, device=self._device)) for trial, m in found.measurements)
            found = replace(found, measurements=tuple(named))
        return found

    def _connected(self) -> _Connection:
        """Return the connection to the harness, which is started if it is not running.

        Raises:
            DeviceLost: if the device is unreachable.
            HarnessError: if the harness cannot be started and has never run. Later failures to
                start it count as a lost device.
        """
        if self._connection is not None:
            return self._connection
        for again in (False, True):
            try:
                started = self._command.start(self._arguments, again)
            except HarnessError as error:
                if not self._facts:
                    raise
                raise DeviceLost(str(error)) from error
            connection = self._connection = _Connection(started.process)
            for body in (self._listen, self._watch):
                threading.Thread(target=body, args=(connection,), daemon=True).start()
            match self._said(connection, START_SECONDS):
                case {
                    HarnessMessage.HELLO: int(protocol),
                    "digest": str(digest),
                    "facts": dict(facts),
                    "cache_bytes": int(room),
                } if (protocol, digest) == (PROTOCOL, started.digest):
                    self._met(facts)
                    self._room = room
                    return connection
            self.close()
        raise self._command.failure("the harness does not start there")

    def _met(self, facts: Mapping[str, Any]) -> None:
        """Store the properties that the device reported when the harness started.

        Raises:
            DeviceLost: if they differ from those in an earlier connection, so that the command now
                reaches another device.
        """
        changed = [name for name in _SAME if facts.get(name) != self._facts.get(name)]
        if self._facts and changed:
            raise self._lost(f"another device answers: its {changed[0]} differs")
        self._facts = facts
        self._looked_at = float("-inf")

    def _send(self, message: Mapping[str, Any], data: Bytes = b"") -> None:
        """Send a message to the harness, followed by the blob that it announces, if any.

        If the device reads nothing for too long, another thread kills the harness, and this call
        fails.

        Raises:
            DeviceLost: if the connection ends.
        """
        connection = self._connected()
        text = json.dumps(message, separators=(",", ":")).encode()
        assert connection.process.stdin is not None
        try:
            for part in (memoryview(text + b"\n"), memoryview(data)):
                for start in range(0, len(part), PIECE_BYTES):
                    connection.sending_since = time.monotonic()
                    connection.process.stdin.write(part[start : start + PIECE_BYTES])
                    connection.process.stdin.flush()
        except (OSError, ValueError) as error:  # also if the watch has closed the pipe
            raise self._lost("it ended") from error
        finally:
            connection.sending_since = float("inf")

    def _heard(self, seconds: float) -> Mapping[str, Any] | None:
        """Return the next message of the harness; None if none arrives within `seconds`.

        Raises:
            DeviceLost: if the harness has ended.
        """
        assert self._connection is not None
        said = self._said(self._connection, seconds)
        if said is None and self._connection.ended.is_set() and self._connection.said.empty():
            raise self._lost("it ended")
        return said

    def _said(self, connection: _Connection, seconds: float) -> Mapping[str, Any] | None:
        """Return the next message; None if none arrives within `seconds` or the harness ends."""
        until = time.monotonic() + seconds
        while True:
            try:
                return connection.said.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if connection.ended.is_set() and connection.said.empty():
                    return None
            if time.monotonic() >= until:
                return None

    def _lost(self, why: str) -> DeviceLost:
        """End the connection, and return the exception to raise. `why` describes the failure."""
        self._end()
        return self._command.failure(why)

    def _end(self) -> None:
        if self._connection is not None:
            end(self._connection.process)
            self._connection = None

    def _watch(self, connection: _Connection) -> None:
        """Kill a harness that has sent or read nothing for too long; runs in its own thread."""
        while not connection.ended.wait(1.0):
            now = time.monotonic()
            if now >= connection.heard_at + SILENT_SECONDS:
                self._log(f"the device has said nothing for {SILENT_SECONDS:.0f} seconds")
            else:
                cancelled = connection.cancelled
                most = CANCEL_SECONDS if cancelled is not None and cancelled() else SILENT_SECONDS
                if now < connection.sending_since + most:
                    continue
                self._log(f"the device has read nothing for {most:.0f} seconds")
            kill(connection.process)
            return

    def _listen(self, connection: _Connection) -> None:
        """Receive the harness's messages until it ends or one is malformed; runs in its own thread.

        Log lines and states are processed here. Other messages are put into the connection's queue.
        """
        assert connection.process.stdout is not None
        try:
            with connection.process.stdout:
                self._note_all(connection)
        finally:
            connection.ended.set()

    def _note_all(self, connection: _Connection) -> None:
        assert connection.process.stdout is not None
        logged = 0
        while True:
            most = IDLE_LINE_BYTES if connection.cancelled is None else LINE_BYTES
            line = connection.process.stdout.readline(most)
            connection.heard_at = time.monotonic()
            try:
                said = json.loads(line)
            except (ValueError, RecursionError):  # malformed, or the end of the output
                return
            match said:
                case {HarnessMessage.LOG: str(text)}:
                    logged += 1
                    if logged <= MOST_LOGGED:
                        self._log(text[:1000])
                case {HarnessMessage.STATE: {"speed": dict() | None, "condition": dict()} as state}:
                    self._state = state
                case dict() if not connection.said.full():
                    connection.said.put(said)
                case _:
                    return
