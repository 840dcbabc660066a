"""Background tuning for a running program, as an option of the `torch.compile` backend.

from tilewright.service.background import BackgroundTuner

options = {"tuner": BackgroundTuner(seconds=120)}
model = torch.compile(model, backend="tilewright", options=options)
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.frontend.model_file import write_model
from tilewright.compiler.package import run_module
from tilewright.compiler.sizes.hinted_ranges import as_hinted
from tilewright.compiler.specialise.store import CompilationCache, user_cache_folder
from tilewright.service.jobs.knowledge.known_model import KnownModel
from tilewright.service.options import ModeOptions, stated_words
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage

if TYPE_CHECKING:
    from tilewright.compiler.frontend.model_file import ReadModel
    from tilewright.compiler.options import CompileOptions
    from tilewright.compiler.runtime.model import Model

log = structlog.get_logger("tilewright.background")


@dataclass(frozen=True, slots=True)
class BackgroundTuner:
    """Tunes a model in a child process with `tilewright tune`, and compiles it with the result.

    The compiled program has the tuned schedules. If the untuned program was faster in the
    end-to-end comparison, the compiled program has the default schedules.

    Attributes:
        seconds: the limit of tuning time.
        trials: the limit of trials.
        settings: select the database; by default the settings of the environment.
        niceness: the niceness of the child process, so that the running program has priority.
        keep: whether to store the tuned model in the compilation cache, where later processes find
            it.
    """

    seconds: float = 60.0
    trials: int = 1000
    settings: Settings = field(default_factory=Settings)
    niceness: int = 10
    keep: bool = True

    def kept(self, model: ReadModel, options: CompileOptions) -> Model | None:
        """Return the tuned model from the compilation cache; None if no process has stored it."""
        return self._models().tuned(model, options)

    def _models(self) -> CompilationCache:
        return CompilationCache(user_cache_folder() if self.keep else None)

    def __call__(self, model: ReadModel, options: CompileOptions) -> Model | None:
        """Tune and return the model. If that fails, write a line to the log and return None."""
        with tempfile.TemporaryDirectory(prefix="tilewright-") as folder:
            path = Path(folder) / "model.onnx"
            write_model(model, path)
            process = subprocess.Popen(
                self.command(path, options),
                env=self.settings.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            atexit.register(process.terminate)  # this process's end makes tuning useless
            said = process.communicate()[1]
            atexit.unregister(process.terminate)
            if process.returncode == -signal.SIGTERM:
                return None  # this process is ending
            if process.returncode:
                log.warning("a model was not tuned", error=said.strip()[-400:])
                return None
            storage = open_storage(self.settings)
            known = KnownModel(path, storage, options.mode)
            try:
                return self._models().keep_tuned(
                    model, options, lambda into: known.compile(dict(options.dims), into)
                )
            except CompilerError as error:
                log.warning("a tuned model does not compile", error=str(error))
                return None
            finally:
                storage.close()

    def command(self, path: Path, options: CompileOptions) -> Sequence[str]:
        """Return the command, as a list of arguments, that tunes a model file with these options.

        If this process is killed, the child process deletes the folder that contains `path`. That
        folder must therefore contain no other file.
        """
        words = [*run_module("service.tuning_child"), str(os.getpid()), str(path.parent)]
        budget = {"seconds": self.seconds, "trials": self.trials}
        dims = {name: as_hinted(name, size).text for name, size in options.dims.items()}
        mode = ModeOptions.of(options.mode).to_json()
        words += ["tune", str(path), *stated_words({**budget, **mode, "dims": dims})]
        return ["nice", "-n", str(self.niceness), *words]
