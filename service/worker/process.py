"""A measurement worker: leases work over HTTP, does it in a sandbox, reports results.

    python -m tilewright.service.worker --server http://127.0.0.1:8080 --token-file TOKEN

Three threads: one claims leases and fetches what they need (`claiming`), so that the device never
waits for the network; the main one has a harness measure them (`measuring`); one reports results
and renews leases (`reporting`). What they share is in `hand`. The harness is that of this machine
(`local_harness`), or of a device that a command reaches (`remote_harness`). It needs the standard
library and NumPy alone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tilewright.service.sentences import one_sentence
from tilewright.service.worker.cache import BlobCache
from tilewright.service.worker.check import check_device, exit_status, report, sandbox_probe
from tilewright.service.worker.claiming import Claimer
from tilewright.service.worker.held_lease import Hand, Log
from tilewright.service.worker.http import Api, Distrusted, Refused, Unreachable
from tilewright.service.worker.local_harness import Harness, LocalHarness, memory_bytes
from tilewright.service.worker.measuring import Measuring
from tilewright.service.worker.options import WorkerOptions, parse_arguments
from tilewright.service.worker.registration import Registration
from tilewright.service.worker.reporting import KILLED, Reporter
from tilewright.service.worker.secrecy import hide_secrets
from tilewright.service.worker.state import StateFolder
from tilewright.tuner.measure.confinement import Confinement
from tilewright.tuner.measure.harness.command import DeviceCommand, DeviceLost, ViaError
from tilewright.tuner.measure.harness.driver import RemoteHarness
from tilewright.tuner.measure.interpreter import THIS_PYTHON, InterpreterError, check_python
from tilewright.tuner.measure.sandbox import Sandbox

END_SECONDS = 10.0
"""How long the worker's end waits for its threads."""


class Worker:
    """The life of a worker, from registration to good-bye."""

    def __init__(self, options: WorkerOptions, log: Log) -> None:
        self._log = log
        self._options = options
        api = Api(options.server, options.token)
        self._files = StateFolder(options.spool, api.server)
        self._hand = Hand(self._files, BlobCache(self._files.blobs, options.cache_bytes))
        self._harness = _harness(options, self._files, log)
        facts = self._harness.facts()
        self._registration = Registration(
            options, api, self._files, facts, self._hand.stopping, log
        )
        self._reporter = Reporter(api, self._registration, self._hand, self._harness.state, log)
        self._claimer = Claimer(
            api, self._registration, self._hand, self._reporter, memory_bytes(facts), log
        )
        self._failure: Refused | Distrusted | OSError | None = None

    def stop(self) -> None:
        """Ask the worker to end; to be called from a thread, not from a signal handler."""
        self._hand.stopping.set()

    def run(self) -> None:
        """Work until `stop`.

        Raises:
            Refused: if the service does not want this worker (a wrong token or protocol).
            Distrusted: if whoever answers is not the service that this worker knows.
            OSError: if the spool folder cannot be written any more.
        """
        self._registration.register()
        if self._hand.stopping.is_set():
            self._harness.close()
            return
        self._recover()
        claiming, reporting = (
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._claimer.serve, self._reporter.serve)
        )
        claiming.start()
        reporting.start()
        try:
            Measuring(
                self._harness, self._registration, self._hand, self._reporter, self._log
            ).serve()
        finally:
            self._harness.close()
            self._hand.stop()
            reporting.join(timeout=END_SECONDS)
            self._leave(claiming)
            self._files.close()
        if self._failure is not None:
            raise self._failure

    def _recover(self) -> None:
        """Report what an earlier life finished, give back what it did not."""
        backoff = self._registration.backoff()
        while not self._hand.stopping.is_set():
            try:
                self._reporter.report_spool()
                for request_id, lease_id in self._files.held().items():
                    # counted as an attempt: this lease may be what killed the worker
                    self._reporter.fail(lease_id, KILLED, "the worker was killed")
                    self._files.drop(request_id)
                return
            except Unreachable:
                backoff.wait()

    def _leave(self, claiming: threading.Thread) -> None:
        """Say good-bye and give leases back, without insisting."""
        try:
            # In this order: now a claim that still waits is answered, and what it brings along
            # goes back with the rest.
            self._registration.leave()
            claiming.join(timeout=END_SECONDS)
            leases = self._hand.held()
            if leases:
                self._reporter.release(sorted(leases.values()))
            for name in leases:
                self._files.drop(name)
        except (Unreachable, Refused) as error:
            self._log(f"no good-bye: {error}")
        self._log(f"stopped after {self._reporter.finished} requests")

    def _guarded(self, work: Callable[[], None]) -> None:
        """A thread's body: a refusal or a full disk ends the worker, the reason kept for `run`."""
        try:
            work()
        except (Refused, Distrusted, OSError) as error:
            self._failure = error
        finally:
            self._hand.stopping.set()


def _command(options: WorkerOptions, log: Log) -> DeviceCommand:
    """What reaches the device; neither of them sees a token. Raises ViaError."""
    seen = {key: value for key, value in os.environ.items() if not key.startswith("TILEWRIGHT_")}
    return DeviceCommand(options.via, options.spool.absolute() / "harness", log, seen)


def _harness(options: WorkerOptions, files: StateFolder, log: Log) -> Harness:
    """That of this machine, or of the device that a command reaches. Raises ViaError."""
    if options.via:
        via = _command(options, log)
        return RemoteHarness(via, options.cache_bytes, options.sandbox_bytes, log)
    confinement = _confinement(options, files.number, str(files.blobs))
    return LocalHarness(options.python, confinement, options.cores, log)


def _confinement(options: WorkerOptions, number: int, folder: str) -> Confinement:
    """Of the worker of this number on its machine."""
    user = None
    if options.sandbox_users is not None:
        first, last = options.sandbox_users
        user = first + number % (last - first + 1)
    return Confinement(user, options.sandbox_bytes, options.cores, folder)


def _check(options: WorkerOptions, log: Log) -> int:
    """Look at the device; the exit status says what was found. Raises ViaError, DeviceLost."""
    if options.via:
        started = _command(options, log).start(
            ["--check", *(["--json"] if options.as_json else [])]
        )
        found, _ = started.process.communicate()
        print(found.decode(errors="replace"), end="")
        return started.process.returncode
    confinement = _confinement(options, 0, "")
    probe = sandbox_probe(lambda: Sandbox("check", python=options.python, confinement=confinement))
    findings = check_device(Path("/"), options.cores, probe)
    print(report(findings, options.as_json))
    return exit_status(findings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker until SIGTERM or SIGINT; the exit status is 1 if the service refuses it.

    With --check, say what is wrong with the device instead.
    """
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments, os.environ)

    def log(text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {one_sentence(text)}", file=sys.stderr, flush=True)

    if options.token:
        hide_secrets(options.token, log)
    try:
        if options.python != THIS_PYTHON:
            check_python(options.python)
        if options.check:
            return _check(options, log)
        worker = Worker(options, log)
    except InterpreterError as error:
        log(f"--python: {error}")
        return 1
    except ViaError as error:
        log(f"--via: {error}")
        return 1
    except DeviceLost as error:
        log(str(error))
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
    except Distrusted as error:
        log(str(error))
        return 1
    except OSError as error:
        log(f"the spool folder '{options.spool}' cannot be used: {error}")
        return 1
    return 0
