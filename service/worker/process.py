"""Runs a measurement worker, which measures requests of the service on a device.

    python -m tilewright.service.worker --server http://127.0.0.1:8080 --token-file TOKEN

A worker has three threads, which share the state in `held_lease`. The first claims leases and
downloads their blobs (`claiming`), so that the device never waits for the network. The main thread
measures them with a harness (`measuring`). The third reports results and renews leases
(`reporting`). The harness (`tuner.measure.harness`) runs candidates in a sandbox, on this machine
or on a device that is reached by a command such as `ssh`. The worker needs only the standard
library and NumPy.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.service.worker.cache import BlobCache
from tilewright.service.worker.check import check_device, exit_status, report
from tilewright.service.worker.claiming import Claimer
from tilewright.service.worker.condition import device_condition
from tilewright.service.worker.facts import device_facts, registration_facts
from tilewright.service.worker.held_lease import InFlightLeases
from tilewright.service.worker.http import Api, Distrusted, Refused, Unreachable
from tilewright.service.worker.log import ErrorLog, WorkerLog
from tilewright.service.worker.measuring import Measuring
from tilewright.service.worker.options import WorkerOptions, parse_arguments
from tilewright.service.worker.registration import Registration
from tilewright.service.worker.reporting import KILLED, Reporter
from tilewright.service.worker.secrecy import hide_secrets
from tilewright.service.worker.state import StateFolder
from tilewright.tuner.measure.harness.build import HarnessError, harness_folder, local_harness
from tilewright.tuner.measure.harness.command import DeviceCommand, DeviceLost
from tilewright.tuner.measure.harness.driver import Harness, HarnessLimits
from tilewright.tuner.measure.harness.local import HERE

END_SECONDS = 10.0
"""Longest time in seconds that the worker waits for its threads when it ends."""


class Worker:
    """A worker process, from its registration until it is stopped."""

    def __init__(self, options: WorkerOptions, log: WorkerLog) -> None:
        self._log = log
        self._options = options
        api = Api(options.server, options.token)
        self._files = StateFolder(options.spool, api.server)
        self._in_flight = InFlightLeases(
            self._files, BlobCache(self._files.blobs, options.cache_bytes)
        )
        self._harness = _harness(options, log)
        facts = self._harness.facts()
        self._registration = Registration(
            options, api, self._files, facts, self._in_flight.stopping, log
        )
        state = self._harness.state if options.via else self._state_here
        self._reporter = Reporter(api, self._registration, self._in_flight, state, log)
        self._claimer = Claimer(
            api, self._registration, self._in_flight, self._reporter, _memory_bytes(facts), log
        )
        self._failure: Refused | Distrusted | OSError | None = None

    def stop(self) -> None:
        """Stop the worker. Call this method from a thread, not from a signal handler."""
        self._in_flight.stopping.set()

    def run(self) -> None:
        """Register the worker, and measure requests until `stop` is called.

        Raises:
            Refused: if the service rejects this worker, because of a wrong token or protocol
                version.
            Distrusted: if the server is not the service to which this worker was registered.
            OSError: if the spool folder cannot be written any more.
            HarnessError: if the harness cannot be started any more.
        """
        self._registration.register()
        if self._in_flight.stopping.is_set():
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
                self._harness, self._registration, self._in_flight, self._reporter, self._log
            ).serve()
        finally:
            self._harness.close()
            self._in_flight.stop()
            reporting.join(timeout=END_SECONDS)
            self._leave(claiming)
            self._files.close()
        if self._failure is not None:
            raise self._failure

    def _state_here(self) -> Mapping[str, Any]:
        """Return the state that heartbeats report: the harness's state and the condition of this
        machine.
        """
        return {**self._harness.state(), "condition": device_condition()}

    def _recover(self) -> None:
        """Report the finished results of an earlier process; report its other leases as failed."""
        backoff = self._registration.backoff()
        while not self._in_flight.stopping.is_set():
            try:
                self._reporter.report_spool()
                for request_id, lease_id in self._files.held().items():
                    # counted as an attempt: this lease may have killed the worker
                    self._reporter.fail(lease_id, KILLED, "the worker was killed")
                    self._files.drop(request_id)
                return
            except Unreachable:
                backoff.wait()

    def _leave(self, claiming: threading.Thread) -> None:
        """Unregister the worker and release its leases, without retries.

        Args:
            claiming: the thread that claims leases; it ends when the worker is unregistered.
        """
        try:
            # In this order: a waiting claim is answered now, and its leases go back with the rest.
            self._registration.leave()
            claiming.join(timeout=END_SECONDS)
            leases = self._in_flight.held()
            if leases:
                self._reporter.release(sorted(leases.values()))
            for name in leases:
                self._files.drop(name)
        except (Unreachable, Refused) as error:
            self._log(f"not unregistered: {error}", logging.INFO)
        self._log(f"stopped after {self._reporter.finished} requests", logging.INFO)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run the main function of a thread, and stop the worker when it ends.

        If the main function raises Refused, Distrusted or OSError, the method `run` raises this
        error.
        """
        try:
            work()
        except (Refused, Distrusted, OSError) as error:
            self._failure = error
        finally:
            self._in_flight.stopping.set()


def _command(options: WorkerOptions, log: WorkerLog) -> DeviceCommand:
    """Return the command that starts the harness, the program that runs candidates on the device.

    The device is this machine, or the machine that the option `--via` reaches, for example by
    `ssh`. The environment of a `--via` command does not contain the worker's token. A harness on
    this machine gets no environment variables.

    Raises:
        HarnessError: if the command is malformed, or this machine has no harness.
    """
    seen = {key: value for key, value in os.environ.items() if not key.startswith("TILEWRIGHT_")}
    own = options.spool.absolute() / "harness"
    built = harness_folder(os.environ, own)
    if not options.via:
        local_harness(built)
        seen = {}

    def relay(text: str) -> None:
        log(text, logging.INFO)

    return DeviceCommand(options.via or HERE, built, relay, seen, own / "device")


def _memory_bytes(facts: Mapping[str, Any]) -> int:
    """Return the memory of a device in bytes, from the result of `Harness.facts`; 0 if unknown."""
    found = facts.get("memory_bytes")
    return found if isinstance(found, int) else 0


def _limits(options: WorkerOptions) -> HarnessLimits:
    cores = options.cores
    return HarnessLimits(
        options.cache_bytes, options.sandbox_bytes, options.sandbox_users, cores, not cores
    )


def _harness(options: WorkerOptions, log: WorkerLog) -> Harness:
    """Create the harness, which starts candidates on the device in a sandbox.

    The device is this machine, or the machine that the option `--via` reaches, for example by
    `ssh`.

    Raises:
        HarnessError: if no harness is available for the device.
    """
    if options.via:
        limits = replace(_limits(options), all_cores=False)
        return Harness(_command(options, log), limits, log)
    facts, device = registration_facts(options.cores), device_facts(options.cores)
    return Harness(_command(options, log), _limits(options), log, facts, device)


def _without_harness(options: WorkerOptions, error: HarnessError) -> str:
    """Return a sentence for the user on why the harness cannot be started."""
    return f"--via: {error}" if options.via else str(error)


def _check(options: WorkerOptions, log: WorkerLog) -> int:
    """Check the device, print the findings, and return the exit status.

    Raises:
        HarnessError: if no harness is available for the device.
        DeviceLost: if the device is unreachable.
    """
    if options.via:
        started = _command(options, log).start(
            ["--check", *(["--json"] if options.as_json else [])]
        )
        found, _ = started.process.communicate()
        print(found.decode(errors="replace"), end="")
        return started.process.returncode
    with closing(_harness(options, log)) as harness:
        findings = check_device(Path("/"), options.cores, harness.readings)
    print(report(findings, options.as_json))
    return exit_status(findings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker until SIGTERM or SIGINT, and return the exit status.

    With `--check`, check the device instead and print the findings.

    Args:
        arguments: the words of the command line; None for those of the process.

    Returns:
        0, or 1 if the worker could not start or the service rejected it; with `--check`, see
        `check.exit_status`.
    """
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments, os.environ)
    log = ErrorLog(options.log_level, as_json=options.as_json)
    if options.token:
        hide_secrets(options.token, log)
    try:
        if options.check:
            return _check(options, log)
        worker = Worker(options, log)
    except HarnessError as error:
        log(_without_harness(options, error), logging.ERROR)
        return 1
    except DeviceLost as error:
        log(str(error), logging.ERROR)
        return 1
    except OSError as error:
        log(f"the spool folder '{options.spool}' cannot be used: {error}", logging.ERROR)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        # in a thread: a handler runs between any two instructions, also while the main thread
        # holds the lock of the event that `stop` sets
        signal.signal(number, lambda *_: threading.Thread(target=worker.stop).start())
    try:
        worker.run()
    except Refused as error:
        log(f"the service refuses this worker: {error}", logging.ERROR)
        return 1
    except Distrusted as error:
        log(str(error), logging.ERROR)
        return 1
    except HarnessError as error:
        log(_without_harness(options, error), logging.ERROR)
        return 1
    except OSError as error:
        log(f"the spool folder '{options.spool}' cannot be used: {error}", logging.ERROR)
        return 1
    return 0
