"""Settings of one tuning run."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.targets.device import DeviceFacts


class TuningError(CompilerError):
    """A tuning run has invalid settings, such as a negative budget or an unknown strategy."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """Settings of one tuning run.

    Attributes:
        trials: limit for the number of candidates measured in screening, of all tasks together.
            Failed candidates count, and those of an earlier process with the same `job_id`. The
            comparisons of finalists do not count.
        seconds: limit of the wall time in seconds, including the comparisons of finalists; None for
            no limit.
        stop_gain: the run ends early if another minute is expected to save less than this fraction
            of the model's time; 0 disables this rule.
        target_seconds: the run ends early once the kernels of the model together take at most this
            time; None disables this rule.
        batch_size: number of candidates per batch.
        strategy: name of the search strategy (`tuner.search`).
        model: name of the cost model (`tuner.cost_model`).
        seed: the seed of all random choices of the run.
        finalists: number of candidates per task that are compared with the incumbent (the best
            earlier schedule) at the end.
        screen_samples: number of timed samples per candidate in screening.
        final_samples: number of pairs of samples per finalist.
        sample_seconds: the duration of one sample, which consists of as many runs as fit.
        limit_seconds: time limit for each step of measuring one candidate, such as its check or one
            sample.
        job_id: stored with every trial; empty without a job.
        codegen_version: stored with every trial; trials of other versions are not used.
        compiler_version: stored with every record.
    """

    trials: int = 256
    seconds: float | None = None
    stop_gain: float = 0.0
    target_seconds: float | None = None
    batch_size: int = 8
    strategy: str = "portfolio"
    model: str = "xgboost"
    base_model: bytes = field(default=b"", repr=False)
    """A saved cost model that the run starts from and corrects. Empty without one."""
    seed: int = 0
    unconstrained: bool = False
    """Search all schedules that can be lowered, also those that do not suit the target's registers
    and caches. Use this option for devices that differ from their target."""
    estimates: bool = True
    """Rank candidates by estimated times until measurements exist. If false, only the run's own
    measurements rank candidates, and determine how far estimates are trusted. Use false for devices
    that differ from their target."""
    finalists: int = 3
    screen_samples: int = 5
    final_samples: int = 15
    sample_seconds: float = 0.002
    limit_seconds: float = 10.0
    device: DeviceFacts | None = field(default=None, repr=False)
    """The machine that measures, or None if it is unknown. Estimates and features depend on its
    caches."""
    job_id: str = ""
    codegen_version: str = ""
    compiler_version: str = ""
    reuse_records: bool = True
    """Skip tasks that already have a record of the present `codegen_version`."""
    in_order: bool = True
    """Process results in the order in which their batches were proposed, so that a run can be
    repeated. Use false for fleets, where one slow worker would delay the others."""

    def __post_init__(self) -> None:
        positive = ("batch_size", "screen_samples", "final_samples")
        for name in ("trials", "finalists", *positive):
            least = 1 if name in positive else 0
            if getattr(self, name) < least:
                raise TuningError(f"{name}: must be at least {least}, not {getattr(self, name)}")
        for name in ("seconds", "target_seconds", "sample_seconds", "limit_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise TuningError(f"{name}: must be more than 0, not {value}")
        if not 0 <= self.stop_gain < 1:
            raise TuningError(f"stop_gain: must be at least 0 and below 1, not {self.stop_gain}")
