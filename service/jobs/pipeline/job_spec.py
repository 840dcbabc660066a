"""The request of a job: a model, what it is wanted for, and how much tuning may cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, SizeChoice
from tilewright.service.version import version
from tilewright.tuner.options import DEFAULT_STOP_GAIN, TuneOptions, TuningError
from tilewright.tuner.search import strategies

FIXED_SECONDS = 9.0
"""What the phases before the first trial and those after the last one may take beside a budget. A
command may take 10 s beside 1.25 times its budget, and a process takes one to start."""

LATE_SHARE, LATE_SECONDS = 1.25, 5.0
"""A command that took so many times its budget, and so many seconds, is late."""

MORE_SECONDS = (2.0, 10.0)
"""How long a program for ranges is verified at sizes beside its hints: at least, and at most."""


LEAST_SECONDS = 1.0
"""At least so many seconds are left to a job, so that it ends in order."""


@dataclass(frozen=True, slots=True)
class JobBudget:
    """How much a job may cost; it ends at the first limit that it meets.

    `stop_gain`: tuning goes on while another minute is expected to gain this share of the model's
    time. `target_ms`: tuning ends once the kernels add up to no more, in milliseconds. `strategy`
    None is the default; `unconstrained` is that of `TuneOptions`.
    """

    trials: int = 1000
    seconds: float | None = None
    seed: int = 0
    stop_gain: float = DEFAULT_STOP_GAIN
    target_ms: float | None = None
    strategy: str | None = None
    unconstrained: bool = False

    def after(self, spent: float) -> JobBudget:
        """What is left once the phases before the first trial took `spent` seconds.

        A user waits for a job and not for its trials. Whoever plans a model for long races and
        verifies it as long: what both take beyond FIXED_SECONDS, they take from the trials, of
        which half the time is left at least.
        """
        if self.seconds is None or 2 * spent <= FIXED_SECONDS:
            return self
        left = self.seconds - (2 * spent - FIXED_SECONDS)
        return replace(self, seconds=max(left, self.seconds / 2))

    def is_late(self, spent: float) -> bool:
        """Whether a command that took `spent` seconds leaves out what no artifact needs."""
        return self.seconds is not None and spent > LATE_SHARE * self.seconds + LATE_SECONDS

    @property
    def more_seconds(self) -> float:
        """How long the program is verified at sizes beside its hints: a tenth of the budget, within
        MORE_SECONDS."""
        least, most = MORE_SECONDS
        return most if self.seconds is None else min(max(self.seconds / 10, least), most)

    def options(self) -> TuneOptions:
        """What the tune loop is given.

        Raises:
            TuningError: if a limit is impossible, or there is no such strategy.
        """
        if self.strategy is not None and self.strategy not in strategies():
            known = ", ".join(sorted(strategies()))
            raise TuningError(f"strategy '{self.strategy}' is not known, known are {known}")
        options = TuneOptions(
            trials=self.trials,
            seconds=self.seconds,
            seed=self.seed,
            stop_gain=self.stop_gain,
            target_seconds=None if self.target_ms is None else self.target_ms / 1000,
            unconstrained=self.unconstrained,
            codegen_version=CODEGEN_VERSION,
            compiler_version=version(),
        )
        return options if self.strategy is None else replace(options, strategy=self.strategy)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A model to tune.

    Attributes:
        model: a file, or its bytes.
        mode: how code is generated.
        sizes: of the model's named dimensions; the artifact holds all combinations. A text is a
            range of sizes (`1..512`), for which it holds one program, with the size hints at which
            kernels are measured (`1..512@32:0.5,128:0.3`), or hints alone (`@128`).
        pad: whether inputs between the sizes are padded up to the next ones.
        weight_limit_bytes: most memory that packed weights may take; None: no limit.
        budget: when tuning ends.
        digest: the SHA-256 of the model's bytes, if known.
        given: real inputs, on which programs are verified, and whose sizes are hints.
    """

    model: Path | bytes
    mode: Mode = field(default_factory=Mode)
    sizes: Mapping[str, tuple[SizeChoice, ...]] = field(default_factory=dict)
    pad: bool = False
    weight_limit_bytes: int | None = None
    budget: JobBudget = JobBudget()
    digest: str = ""
    given: GivenInputs = field(default=NONE_GIVEN, compare=False, repr=False)

    @classmethod
    def of_options(cls, request: ModelRequest, options: Mapping[str, Any]) -> JobSpec:
        """The job that a request and the options stored with it describe.

        Options that are left out have their defaults. A dimension has one size or range, or a list.
        Given inputs are those of the request: what options say of them is read by `given_files`.

        Raises:
            TuningError: if an option is unknown: none is silently ignored.
        """
        given = dict(options)
        dims = given.pop("dims", None) or {}
        sizes = {name: (n,) if isinstance(n, int | str) else tuple(n) for name, n in dims.items()}
        for name, shares in (given.pop("shares", None) or {}).items():
            sizes[name] = _hinted(sizes.get(name, ("",)), shares)
        pad, limit = given.pop("pad", False), given.pop("weight_limit", None)
        for name in ("samples", "values"):
            given.pop(name, None)
        modal = {each.name for each in fields(request.mode)} - {"target"}
        mode = replace(request.mode, **{name: given.pop(name) for name in modal & set(given)})
        unknown = set(given) - {one.name for one in fields(JobBudget)}
        if unknown:
            raise TuningError(f"options that nobody knows: {', '.join(sorted(unknown))}")
        return cls(
            request.model,
            mode,
            sizes,
            pad,
            limit,
            JobBudget(**given),
            request.digest,
            request.given,
        )

    def check_deliverable(self, first: Planned) -> None:
        """Refuse what a module does not hold, before anything is tuned.

        Args:
            first: the job's first plan.

        Raises:
            InvalidArgumentError: if the target's programs are modules, and the job wants more than
                one holds.
        """
        if not first.target.family.modules:
            return
        what = f"a module for '{first.target.name}'"
        several = next((name for name, sizes in self.sizes.items() if len(sizes) > 1), None)
        if several is not None:
            raise InvalidArgumentError(
                f"{what} holds one size or one range of each dimension, and '{several}' has several"
            )
        if self.pad:
            raise InvalidArgumentError(f"{what} pads no inputs")
        if first.stages is not None:
            raise InvalidArgumentError(
                f"{what} holds one program: the data decide sizes of this model, so that it runs "
                "in stages"
            )

    @property
    def request(self) -> ModelRequest:
        """The model without its sizes."""
        return ModelRequest(self.model, self.mode, digest=self.digest, given=self.given)


def _hinted(sizes: tuple[SizeChoice, ...], shares: Mapping[str, float]) -> tuple[SizeChoice, ...]:
    """Sizes with the hints that jobs once stored apart from their range."""
    hints = ",".join(f"{size}:{share}" for size, share in shares.items())
    return tuple(f"{each}@{hints}" if isinstance(each, str) else each for each in sizes)
