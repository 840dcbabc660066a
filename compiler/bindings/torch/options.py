"""What `torch.compile(..., backend="tilewright", options={...})` is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.mode import Mode
from tilewright.compiler.options import CompileOptions

if TYPE_CHECKING:
    from tilewright.compiler.frontend.model_file import ReadModel
    from tilewright.compiler.program.kernels import ScheduleSource
    from tilewright.compiler.runtime.model import Model

    Tuner: TypeAlias = Callable[[ReadModel, CompileOptions], Model | None]
    """Tunes a model for these options; gives the tuned program, or None for nothing new."""


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """How graphs are compiled.

    Attributes:
        threads: that a run uses; 0: as many as PyTorch does (`torch.get_num_threads`).
        numerics, precision: as in `Mode`.
        keep: whether other processes load what this one compiles.
        schedules: where tuned schedules are looked up, such as a tuning database's records.
        tuner: called in a thread of its own for each model that was compiled; what it gives serves
            from then on. `service.background.BackgroundTuner` is one. If it has a method `kept`
            with the same arguments, that is asked first for what was tuned before.
    """

    threads: int = 0
    numerics: str = "fast"
    precision: str = DType.FLOAT32
    keep: bool = True
    schedules: ScheduleSource | None = None
    tuner: Tuner | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> BackendOptions:
        """Raises InvalidArgumentError for an option that there is not, or an impossible one."""
        known = [each.name for each in fields(cls)]
        for name in given or {}:
            if name not in known:
                raise InvalidArgumentError(
                    f"backend 'tilewright' has no option '{name}', known are {', '.join(known)}"
                )
        options = cls(**(given or {}))
        options.compile_options({})  # checks the mode
        return options

    def compile_options(self, ranges: Mapping[str, range]) -> CompileOptions:
        """For a model whose dimensions have these ranges."""
        return CompileOptions(
            Mode(
                threads=self.threads or torch.get_num_threads(),
                numerics=self.numerics,
                precision=self.precision,
            ),
            dims=dict(ranges),
            schedules=self.schedules,
        )
