"""A measurement worker: leases candidates over HTTP, times them in a sandbox, reports results.

    python -m service.worker --server http://127.0.0.1:8080 --token-file TOKEN

Three threads: one claims leases and fetches what they need, so that the device never waits for the
network; the main one measures; one reports results and renews leases. It needs the standard library
and NumPy alone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from service.worker.facts import device_facts, registration_facts
from service.worker.http import LAST_PAUSE_SECONDS, Api, Backoff, Refused, Unreachable
from service.worker.options import WorkerOptions, parse_arguments
from service.worker.state import BlobCache, Spooled, StateFolder
from tuner.measure.interpreter import THIS_PYTHON, InterpreterError, check_python
from tuner.measure.job_queue import JobQueue
from tuner.measure.measurement import Status
from tuner.measure.sandbox import Sandbox
from tuner.measure.wire import PROTOCOL, MeasureRequest, MeasureResult, ProtocolError

PREFETCHED = 4
"""Leases in hand: those that were ready are measured, in turns, and the next ones lie ready."""

PROBE_SECONDS = 20.0
"""Longest time between two readings of the device's speed."""

END_SECONDS = 10.0
"""How long the worker's end waits for its threads."""

Log = Callable[[str], None]


@dataclass(slots=True)
class InHand:
    """A lease that this process works on. `lost` is set when the service says so."""

    request: MeasureRequest
    fencing_token: int
    lost: threading.Event = field(default_factory=threading.Event)


class Worker:
    """The life of a worker, from registration to good-bye."""

    def __init__(self, options: WorkerOptions, log: Log) -> None:
        self._options = options
        self._log = log
        self._python = options.python
        self._api = Api(options.server, options.token)
        self._files = StateFolder(options.spool, self._api.server)
        self._cache = BlobCache(self._files.blobs, options.cache_bytes)
        self._device = device_facts()
        self._stopping = threading.Event()
        self._report_now = threading.Event()
        self._room = threading.Condition()
        self._in_hand: dict[str, InHand] = {}
        self._unreported: set[str] = set()
        self._ready: JobQueue[InHand] = JobQueue(lambda work: work.request)
        self._id = ""
        self._heartbeat_seconds = 5.0
        self._long_poll_seconds = 20.0
        self._longest_pause = LAST_PAUSE_SECONDS
        self._failure: Refused | OSError | None = None
        self._measured = 0
        self._speed: dict[str, Any] | None = None
        self._draining = False

    def stop(self) -> None:
        """Ask the worker to end; safe in a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Work until `stop`.

        Raises:
            Refused: if the service does not want this worker (a wrong token or protocol).
            OSError: if the spool folder cannot be written any more.
        """
        self._register()
        if self._stopping.is_set():
            return
        self._recover()
        helpers = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._fetch_leases, self._report_and_renew)
        ]
        for helper in helpers:
            helper.start()
        sandbox = Sandbox(self._id, self._device, python=self._python)
        try:
            while not self._stopping.is_set():
                together = self._ready.take(0.2)
                if not together:
                    self._probe(sandbox)
                    continue
                self._measure(sandbox, together)
                self._speed = sandbox.speed.status()
        finally:
            sandbox.close()
            self._stopping.set()
            self._report_now.set()
            helpers[1].join(timeout=END_SECONDS)
            self._leave(helpers[0])
            self._files.close()
        if self._failure is not None:
            raise self._failure

    # ---- starting and ending

    def _register(self) -> None:
        backoff = Backoff(self._stopping)
        said = False
        while not self._stopping.is_set():
            body = {
                "name": self._options.name,
                "device": registration_facts(),
                "targets": list(self._options.targets),
                "protocol": PROTOCOL,
                "worker_id": self._files.worker_id,
            }
            try:
                answer = self._api.call("POST", "/v1/workers", body)
            except Unreachable as error:
                if not said:
                    self._log(f"waiting for the service: {error}")
                    said = True
                backoff.wait()
                continue
            except Refused as error:
                if error.status in (403, 404) and self._files.worker_id is not None:
                    # another database or another token: our id means nothing there
                    self._files.worker_id = ""
                    continue
                raise
            self._id = str(answer["worker"]["id"])
            self._files.worker_id = self._id
            self._heartbeat_seconds = float(answer["heartbeat_seconds"])
            self._long_poll_seconds = float(answer["long_poll_seconds"])
            # a service that comes back gives every lease a new term: report well within it
            self._longest_pause = min(LAST_PAUSE_SECONDS, float(answer["lease_seconds"]) / 4)
            keys = answer["worker"]["target_keys"]
            self._log(f"registered as {self._id} for {len(keys)} targets")
            return

    def _recover(self) -> None:
        """Report what an earlier life finished, give back what it did not."""
        backoff = Backoff(self._stopping, self._longest_pause)
        while not self._stopping.is_set():
            try:
                self._report_spool()
                for request_id, fencing_token in self._files.held().items():
                    # counted as an attempt: this lease may be what killed the worker
                    self._fail(request_id, fencing_token, "the worker was killed", retry=True)
                    self._files.drop(request_id)
                return
            except Unreachable:
                backoff.wait()

    def _leave(self, fetching: threading.Thread) -> None:
        """Say good-bye and give leases back, without insisting."""
        try:
            # In this order: now a claim that still waits is answered, and what it brings along
            # goes back with the rest.
            self._api.call("DELETE", f"/v1/workers/{self._id}")
            fetching.join(timeout=END_SECONDS)
            with self._room:
                leases = {name: work.fencing_token for name, work in self._in_hand.items()}
            if leases:
                body = {"worker_id": self._id, "leases": leases}
                self._api.call("POST", "/v1/leases/release", body)
            for name in leases:
                self._files.drop(name)
        except (Unreachable, Refused) as error:
            self._log(f"no good-bye: {error}")
        self._log(f"stopped after {self._measured} requests")

    def _guarded(self, work: Callable[[], None]) -> None:
        """A thread's body: a refusal or a full disk ends the worker, the reason kept for `run`."""
        try:
            work()
        except (Refused, OSError) as error:
            self._failure = error
        finally:
            self._stopping.set()

    # ---- claiming

    def _fetch_leases(self) -> None:
        backoff = Backoff(self._stopping, self._longest_pause)
        while not self._stopping.is_set():
            with self._room:
                if not self._room.wait_for(self._may_claim, timeout=0.5):
                    continue
                limit = PREFETCHED - len(self._in_hand)
            try:
                # while something is measured, a short poll: more room appears in a moment
                wait = self._long_poll_seconds if limit == PREFETCHED else 1.0
                body = {"worker_id": self._id, "limit": limit, "wait_seconds": wait}
                answer = self._api.call("POST", "/v1/leases/claim", body, extra_seconds=wait)
                backoff.reset()
            except Unreachable as error:
                self._log(f"no leases: {error}")
                backoff.wait()
                continue
            except Refused as error:
                if error.status == 404:
                    self._log("the service does not know this worker any more")
                    self._register()
                    continue
                raise
            for lease in answer["leases"]:
                self._accept(lease)

    def _may_claim(self) -> bool:
        """Whether there is room for a lease.

        Results are reported first: the service would offer a request again whose lease ran out.
        """
        return len(self._in_hand) < PREFETCHED and not self._unreported

    def _accept(self, lease: Mapping[str, Any]) -> None:
        """Take a lease over: fetch what it needs, or use the result that lies ready for it."""
        request_id, fencing_token = str(lease["request_id"]), int(lease["fencing_token"])
        with self._room:
            # ours already: its lease ran out while the service was away
            known = self._in_hand.get(request_id)
            if known is not None:
                known.fencing_token = fencing_token
                self._files.hold(request_id, fencing_token)
            spooled = self._files.find_spooled(request_id)
            if spooled is not None:
                self._files.spool(replace(spooled, fencing_token=fencing_token))
                self._report_now.set()
            if known is not None or spooled is not None:
                return
        try:
            request = MeasureRequest.from_json(lease["payload"])
        except ProtocolError as error:
            self._fail_quietly(request_id, fencing_token, str(error), retry=False)
            return
        self._files.hold(request_id, fencing_token)
        work = InHand(request, fencing_token)
        with self._room:
            self._in_hand[request_id] = work
        if self._fetch_blobs(request_id, work):
            self._ready.put(work)
        elif not self._stopping.is_set():  # else `_leave` gives it back
            self._put_down(request_id)

    def _fetch_blobs(self, request_id: str, work: InHand) -> bool:
        """Whether everything that a request names lies on disk."""
        backoff = Backoff(self._stopping, self._longest_pause)
        for digest in work.request.digests:
            while digest not in self._cache:
                if work.lost.is_set() or self._stopping.is_set():
                    return False
                try:
                    self._api.download(f"/v1/blobs/{digest}", digest, self._cache.path(digest))
                except Unreachable as error:
                    self._log(str(error))
                    backoff.wait()
                except Refused as error:
                    self._fail_quietly(request_id, work.fencing_token, str(error), retry=False)
                    return False
        with self._room:
            keep = {d for other in self._in_hand.values() for d in other.request.digests}
        self._cache.trim(keep)
        return True

    # ---- measuring

    def _probe(self, sandbox: Sandbox) -> None:
        """Between batches, now and then: how fast the device is."""
        if sandbox.speed.age_seconds < PROBE_SECONDS:
            return
        try:
            sandbox.probe()
        except (OSError, RuntimeError) as error:
            self._log(f"the reference kernel: {error}")
            self._stopping.wait(self._heartbeat_seconds)
        self._speed = sandbox.speed.status()

    def _measure(self, sandbox: Sandbox, together: Sequence[InHand]) -> None:
        def cancelled() -> bool:
            return self._stopping.is_set() or all(work.lost.is_set() for work in together)

        if not cancelled():
            requests = [work.request for work in together]
            try:
                results = sandbox.measure(requests, self._cache.path, cancelled)
            except (OSError, RuntimeError) as error:
                for work in together:
                    request_id = work.request.request_id
                    self._log(f"request {request_id}: {error}")
                    self._fail_quietly(request_id, work.fencing_token, str(error), retry=True)
                    self._put_down(request_id)
                return
            for work, result in zip(together, results, strict=True):
                if _complete(result):
                    self._spool(work, result)
        for work in together:
            request_id = work.request.request_id
            if self._stopping.is_set() and self._files.find_spooled(request_id) is None:
                continue  # `_leave` gives the lease back
            self._put_down(request_id)

    def _spool(self, work: InHand, result: MeasureResult) -> None:
        request_id = work.request.request_id
        with self._room:
            token = work.fencing_token
            entry = Spooled(request_id, token, uuid.uuid4().hex, result.to_json())
            try:
                self._files.spool(entry)
                self._unreported.add(request_id)
            except OSError as error:
                # the disk is full: the result is reported from memory, or lost with the process
                self._log(f"the spool cannot be written: {error}")
                self._report_directly(entry)
                return
        self._measured += 1
        self._log(f"measured {request_id}")
        self._report_now.set()

    def _report_directly(self, entry: Spooled) -> None:
        backoff = Backoff(self._stopping, self._longest_pause)
        while not self._stopping.is_set():
            try:
                self._report(entry)
                return
            except Unreachable:
                backoff.wait()

    def _put_down(self, request_id: str) -> None:
        """The lease is measured, lost or failed."""
        with self._room:
            work = self._in_hand.pop(request_id, None)
            self._files.drop(request_id)
            if work is not None:
                shared = {d for other in self._in_hand.values() for d in other.request.digests}
                if work.request.library_digest not in shared:
                    # no other request uses this library; references are shared
                    self._cache.path(work.request.library_digest).unlink(missing_ok=True)
            self._room.notify_all()

    # ---- reporting

    def _report_and_renew(self) -> None:
        backoff = Backoff(self._stopping, self._longest_pause)
        next_heartbeat = 0.0
        while True:
            last = self._stopping.is_set()
            self._report_now.clear()
            try:
                self._report_spool()
                if time.monotonic() >= next_heartbeat and not last:
                    self._heartbeat()
                    next_heartbeat = time.monotonic() + self._heartbeat_seconds
                backoff.reset()
            except Unreachable as error:
                if last:
                    return
                self._log(str(error))
                backoff.wait()
                continue
            if last:
                return
            self._report_now.wait(max(0.05, next_heartbeat - time.monotonic()))

    def _report_spool(self) -> None:
        for entry in self._files.spooled():
            self._report(entry)
            with self._room:
                current = self._files.find_spooled(entry.request_id)
                # a new lease of the same request may have readdressed it meanwhile
                if current is not None and current.fencing_token == entry.fencing_token:
                    self._files.forget(entry.request_id)
                    self._unreported.discard(entry.request_id)
                    self._room.notify_all()

    def _report(self, entry: Spooled) -> None:
        """Send a result. A refusal that concerns this result alone ends the matter."""
        body = {
            "worker_id": self._id,
            "fencing_token": entry.fencing_token,
            "result_key": entry.result_key,
            "result": entry.result,
        }
        try:
            self._api.call("POST", f"/v1/leases/{entry.request_id}/result", body)
        except Refused as error:
            if error.status in (401, 403):
                raise
            self._log(f"result of {entry.request_id} is not wanted: {error}")

    def _heartbeat(self) -> None:
        with self._room:
            leases = {name: work.fencing_token for name, work in self._in_hand.items()}
        try:
            body = {"leases": leases, "speed": self._speed}
            answer = self._api.call("POST", f"/v1/workers/{self._id}/heartbeat", body)
        except Refused as error:
            if error.status != 404:
                raise
            return  # the claiming thread registers again
        draining = answer["health"] == "draining"
        if draining != self._draining:
            self._draining = draining
            self._log("drained: nothing new comes" if draining else "used again")
        with self._room:
            for name, token in leases.items():
                work = self._in_hand.get(name)
                lost = work is not None and name not in answer["renewed"]
                # unless it was claimed again since we asked
                if work is not None and lost and work.fencing_token == token:
                    work.lost.set()

    def _fail(self, request_id: str, fencing_token: int, error: str, *, retry: bool) -> None:
        body = {
            "worker_id": self._id,
            "fencing_token": fencing_token,
            "error": error[:2000],
            "retry": retry,
        }
        try:
            self._api.call("POST", f"/v1/leases/{request_id}/failure", body)
        except Refused as refusal:
            if refusal.status in (401, 403):
                raise
            self._log(f"request {request_id} is not ours any more: {refusal}")

    def _fail_quietly(
        self, request_id: str, fencing_token: int, error: str, *, retry: bool
    ) -> None:
        """As `_fail`; if the service is away, the lease runs out by itself."""
        try:
            self._fail(request_id, fencing_token, error, retry=retry)
        except Unreachable as unreachable:
            self._log(str(unreachable))


def _complete(result: MeasureResult) -> bool:
    """Whether every candidate was measured: a cancelled batch is no result."""
    return all(m.status is not Status.CANCELLED for _, m in result.measurements)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker until SIGTERM or SIGINT; the exit status is 1 if the service refuses it."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments, os.environ)

    def log(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    try:
        if options.python != THIS_PYTHON:
            check_python(options.python)
        worker = Worker(options, log)
    except InterpreterError as error:
        log(f"--python: {error}")
        return 1
    except OSError as error:
        log(f"the spool folder '{options.spool}' cannot be used: {error}")
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        # in a thread: a handler runs between any two instructions, also while the main thread
        # holds the lock of the event that `stop` sets
        signal.signal(number, lambda *_: threading.Thread(target=worker.stop).start())
    try:
        worker.run()
    except Refused as error:
        log(f"the service refuses this worker: {error}")
        return 1
    except OSError as error:
        log(f"the spool folder '{options.spool}' cannot be used: {error}")
        return 1
    return 0
