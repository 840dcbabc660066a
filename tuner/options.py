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
        trials: limit for the number of screened candidates of all tasks together. Failures and
            candidates of an earlier process with the same `job_id` count; candidates of the finals
            do not.
        seconds: wall-time limit, including the finals.
        stop_gain: the run ends early if another minute is expected to gain less than this fraction
            of the model's time (0: off).
        target_seconds: the run ends early if the kernels together take at most this time (None:
            off).
        codegen_version: stored with every trial; trials of other versions are not used.
    """

    trials: int = 256
    seconds: float | None = None
    stop_gain: float = 0.0
    target_seconds: float | None = None
    batch_size: int = 8
    strategy: str = "portfolio"
    model: str = "xgboost"
    base_model: bytes = field(default=b"", repr=False)
    """A saved cost model that this run starts from and corrects; empty: none."""
    seed: int = 0
    unconstrained: bool = False
    """Search every schedule that lowers, whether or not it suits the target's registers and caches:
    for devices that differ from their target."""
    estimates: bool = True
    """Rank candidates by estimated times until measurements exist. If off, only the run's own
    measurements rank, and decide how far estimates can be trusted: for devices that differ from
    their target."""
    finalists: int = 3
    screen_samples: int = 5
    final_samples: int = 15
    sample_seconds: float = 0.002
    limit_seconds: float = 10.0
    device: DeviceFacts | None = field(default=None, repr=False)
    """The measuring machine, if known: estimates and features depend on its caches."""
    job_id: str = ""
    codegen_version: str = ""
    compiler_version: str = ""
    reuse_records: bool = True
    """Skip tasks that have a record of this codegen version."""
    in_order: bool = True
    """Learn from batches in the order in which they were proposed, so that a run can be repeated.
    Off for fleets, where one slow worker would hold up the others."""

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
