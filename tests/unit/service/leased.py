"""A small compiled model, and worker processes, for tests of runs on leased devices."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.unit.service.workers import Running
from tilewright.compiler import driver
from tilewright.compiler.codegen.link import link_shared
from tilewright.compiler.codegen.object import emit_object
from tilewright.compiler.program.builder import CompiledProgram
from tilewright.compiler.targets.host import host_target
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import RequestState
from tilewright.service.jobs.device.device import DeviceError, Loadable
from tilewright.service.jobs.process.interrupts import Interrupted, JobCancelled
from tilewright.service.worker.options import WorkerOptions
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.run_results import Race, RunResult, RunStatus


def loadable(compiled: CompiledProgram) -> Loadable:
    return Loadable(
        compiled.program,
        compiled.weights,
        partial(driver.load_program, compiled),
        partial(linked, compiled.objects),
    )


def linked(objects: Sequence[bytes]) -> bytes:
    """Objects as one shared library."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        link_shared(list(objects), library)
        return library.read_bytes()


def broken(model: Loadable, instruction: str, only: int | None = None) -> Loadable:
    """The model with other code: each kernel (or only the first ones) runs one LLVM instruction."""
    symbols = [stage.symbol for kernel in model.program.kernels for stage in kernel.stages]
    ends = "" if instruction.startswith(("br", "ret")) else "  unreachable\n"
    text = "declare void @llvm.trap()\n" + "".join(
        f'define void @"{symbol}"() {{\n  br label %entry\nentry:\n  {instruction}\n{ends}}}\n'
        for symbol in symbols[:only]
    )
    code = emit_object(text, host_target())
    return replace(model, link=lambda: linked([code]))


@contextmanager
def worker_process(
    url: str, token: str, spool: Path, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as a user starts it; it ends with the context, if it has not before."""
    spool.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tilewright.service.worker", "--server", url, "--token", token]
    with (spool / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--spool", str(spool), *options],
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            finally:
                process.kill()
                # shown where a test fails
                sys.stderr.write((spool / "log").read_text(errors="replace"))


@contextmanager
def worker_thread(url: str, token: str, spool: Path, **options: Any) -> Iterator[None]:
    """A worker in a thread, with the real harness: its process takes half a second to start."""
    running = Running(WorkerOptions(url, token, "board", spool, **options))
    try:
        yield
    finally:
        running.end()
        sys.stderr.write("\n".join(running.log))  # shown where a test fails


def claim_one(storage: Storage, worker: str) -> list[Any]:
    target = host_target().key
    return list(storage.leases.claim(worker, [target], limit=1, lease_seconds=60))


def answer(storage: Storage, leases: list[Any]) -> bool:
    """A race of one challenger, done by the worker that leased it."""
    (lease,) = leases
    race = Race(1.0, (Comparison("untuned", (0.9,) * 8),))
    result = RunResult(lease.request_id, RunStatus.OK, race=race, worker=lease.worker_id)
    storage.leases.complete(lease.lease_id, lease.worker_id, lease.lease_id, result.to_json())
    return True


class Call:
    """A call in a thread of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._found: Any = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._function()
        except (DeviceError, Interrupted, JobCancelled) as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._found


def states(storage: Storage, job: str) -> list[RequestState]:
    return [status.state for status in storage.leases.of_job(job)]
