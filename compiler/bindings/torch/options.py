"""Options of `torch.compile(..., backend="tilewright", options={...})`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError, suggestion
from tilewright.compiler.mode import Mode
from tilewright.compiler.options import CompileOptions

if TYPE_CHECKING:
    from tilewright.compiler.frontend.model_file import ReadModel
    from tilewright.compiler.program.kernels import ScheduleSource
    from tilewright.compiler.runtime.model import Model

    Tuner: TypeAlias = Callable[[ReadModel, CompileOptions], Model | None]
    """Tunes a model for the given options. Returns the tuned program, or None if tuning found no
    improvement."""


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Options of the backend.

    Attributes:
        threads: threads per run; 0 for as many as PyTorch uses (`torch.get_num_threads`).
        numerics: "strict", "fast" or "loose": whether algorithms with larger rounding errors, such
            as Winograd convolution, are allowed (`Mode`).
        precision: element type in which values and the factors of products are stored (`Mode`).
        keep: whether compiled programs are stored in the compilation cache on disk, where other
            processes find them.
        schedules: the source of tuned schedules, such as a tuning database's records.
        tuner: a callable, such as `service.background.BackgroundTuner`. It is called in a separate
            thread for each compiled model. It returns a tuned program, which replaces the untuned
            one, or None. If the callable has a method `kept`, this method is called first, with the
            same arguments. It returns a model that was tuned earlier, or None.
    """

    threads: int = 0
    numerics: str = "fast"
    precision: str = DType.FLOAT32
    keep: bool = True
    schedules: ScheduleSource | None = None
    tuner: Tuner | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> BackendOptions:
        """Convert the `options` of `torch.compile` to an instance; None selects the defaults.

        Raises:
            InvalidArgumentError: if an option is unknown, or its value is invalid.
        """
        known = [each.name for each in fields(cls)]
        for name in given or {}:
            if name not in known:
                raise InvalidArgumentError(
                    f"backend 'tilewright' has no option '{name}', known are {', '.join(known)}"
                    f"{suggestion(name, known)}"
                )
        options = cls(**(given or {}))
        options.compile_options({})  # checks the mode
        return options

    def compile_options(self, ranges: Mapping[str, range]) -> CompileOptions:
        """Return the compile options for a model.

        `ranges` are the ranges of the model's dynamic dimensions, by name.
        """
        return CompileOptions(
            Mode(
                threads=self.threads or torch.get_num_threads(),
                numerics=self.numerics,
                precision=self.precision,
            ),
            dims=dict(ranges),
            schedules=self.schedules,
        )
