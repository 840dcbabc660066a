"""A model tuned on this machine, with the embedded database and no service."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.compiler.package import run_module
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.compiler.target import resolve_target
from tilewright.compiler.timings import Timings
from tilewright.db.storage import Storage
from tilewright.service.jobs import builders, local_device
from tilewright.service.jobs.bounded_verification import verification_limits
from tilewright.service.jobs.job_spec import JobSpec
from tilewright.service.jobs.run_job import JobOutcome, JobWatcher, Workshop, run_job
from tilewright.service.settings import Settings
from tilewright.tuner.cancel import AnyToken, CancelToken
from tilewright.tuner.options import TuningError

if TYPE_CHECKING:
    from tilewright.compiler.runtime.executable import Executable
    from tilewright.compiler.runtime.sized import SizedExecutable
    from tilewright.compiler.runtime.stages import StagedExecutable

Watch = Callable[["LocalJob", local_device.LocalDevice], AbstractContextManager[JobWatcher]]
"""What opens a watcher of a job on this machine."""


@dataclass(frozen=True, slots=True)
class LocalJob:
    """A job of this process, its stores, and how long each part of its work took.

    Every job has an id of its own: two at once keep their trials apart.
    """

    spec: JobSpec
    storage: Storage
    token: CancelToken = field(default_factory=CancelToken)
    id: str = field(default_factory=lambda: f"tune-{secrets.token_hex(8)}")
    timings: Timings = field(default_factory=Timings)
    loop: Timings = field(default_factory=Timings)
    beside: Timings = field(default_factory=Timings)

    def run(
        self,
        settings: Settings,
        output: Path | None = None,
        watch: Watch = lambda *_: nullcontext(JobWatcher()),
    ) -> JobOutcome:
        """Tune, verify, and write the artifact of the winner to a folder if one is given.

        Verification runs in a child with limits of memory and time. Planning runs in this process,
        which keeps the kernels that planning compiles.

        Raises:
            TuningError: if this machine does not run the target.
            CompilerError: if the model does not compile, or `output` cannot hold an artifact.
        """
        chosen = self.spec.target
        target = resolve_target(chosen) if isinstance(chosen, str) else chosen
        builder = builders.open_builder(settings, self.beside)
        workshop = Workshop(
            self.storage,
            builder,
            verification=verification_limits(settings),
            timings=self.timings,
            loop=self.loop,
            beside=self.beside,
        )
        try:
            with local_device.LocalDevice(self.spec.given) as device:
                if not device.runs(target):
                    raise TuningError(
                        f"this machine does not run target '{target.name}': `tilewright serve`, a "
                        "worker on a device that does, and `tilewright submit` tune for it"
                    )
                with watch(self, device) as watcher:
                    return run_job(
                        self.spec,
                        device,
                        workshop,
                        watcher,
                        job_id=self.id,
                        token=self.token,
                        output=output,
                        deliver_cancelled=True,
                        stop=AnyToken(()),  # Ctrl-C after the tuning ends the program itself
                    )
        finally:
            builder.close()


def tune(
    model: str | Path,
    output: str | Path,
    *,
    seconds: float | None = 60.0,
    trials: int = 1000,
    target: str = "host",
    threads: int = 1,
    dims: Mapping[str, int | str] | None = None,
    numerics: str = "fast",
    precision: str = "float32",
) -> Executable | SizedExecutable | StagedExecutable:
    """Tune a model on this machine and load the result: `tilewright tune MODEL -o OUTPUT`.

    The command runs as a child process, so a script that calls this needs no guard for
    multiprocessing. Measurements and records stay in the database that the settings name
    (TILEWRIGHT_DATA_FOLDER).

    Args:
        model: an ONNX file.
        output: the folder for the artifact; it may hold an older artifact, and nothing else.
        seconds: the budget of the whole job; None: only `trials` limit it.
        trials: the most candidates that are measured.
        dims: a size or range for named dimensions, such as 8 or "1..64@8".
        target, threads, numerics, precision: as of `tilewright.compile_model`.

    Raises:
        TuningError: with the command's message, if it fails.
    """
    command = [*run_module("service.cli"), "tune", str(model), "--output", str(output), "--json"]
    command += ["--trials", str(trials), "--threads", str(threads), "--target", target]
    command += ["--numerics", numerics, "--precision", precision]
    command += [] if seconds is None else ["--seconds", str(seconds)]
    for name, size in (dims or {}).items():
        command += ["--dim", f"{name}={size}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"tune ended with {done.returncode}"]
        raise TuningError(lines[-1].removeprefix("error: "))
    return load_artifact(output, threads=threads)
