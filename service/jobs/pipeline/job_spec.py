"""The specification of a job: a model, its target, its options and its budget for tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tilewright.compiler.errors import InvalidArgumentError, unknown_choice
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.runtime.json_form import MalformedError
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs
from tilewright.service.jobs.plan.planning import ModelRequest, Planned
from tilewright.service.options import (
    JobBudget,
    JobOptions,
    given_values,
    of_earlier_releases,
)
from tilewright.service.version import version
from tilewright.tuner.options import TuneOptions, TuningError
from tilewright.tuner.search import strategies

LEAST_SECONDS = 1.0
"""Lower bound in seconds of the remaining time that a job gets, so that it ends normally."""


def tune_options(budget: JobBudget) -> TuneOptions:
    """Convert a job's budget to the options of the tuner.

    Raises:
        TuningError: if a limit is invalid, or the search strategy does not exist.
    """
    if budget.strategy is not None and budget.strategy not in strategies():
        raise TuningError(unknown_choice("the strategy", budget.strategy, sorted(strategies())))
    known_there = {each.name for each in fields(TuneOptions)}
    stated = {n: v for n, v in given_values(budget).items() if n in known_there and v is not None}
    return TuneOptions(
        **stated,
        target_seconds=None if budget.target_ms is None else budget.target_ms / 1000,
        codegen_version=CODEGEN_VERSION,
        compiler_version=version(),
    )


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A model to tune, with the mode and the options of the job.

    Attributes:
        model: an ONNX file, or its bytes.
        mode: the target, the threads, the numerics and the precision of the generated code.
        options: sizes, limits and the budget.
        digest: the SHA-256 of the model's bytes; "" if it is unknown.
        given: the inputs that the user gives. Programs are verified on these inputs, and tuned for
            their sizes.
    """

    model: Path | bytes
    mode: Mode = field(default_factory=Mode)
    options: JobOptions = field(default_factory=JobOptions)
    digest: str = ""
    given: GivenInputs = field(default=NONE_GIVEN, compare=False, repr=False)

    @classmethod
    def of_options(cls, request: ModelRequest, stored: Mapping[str, Any]) -> JobSpec:
        """Create the specification from a request for a model and the stored options of a job.

        Missing options get their defaults. Options of earlier releases are converted. The options
        for samples and values are not read here (`service.jobs.inputs.given_files`); the inputs in
        the request are used.

        Raises:
            TuningError: if an option is unknown or malformed.
        """
        stored = of_earlier_releases(stored)
        modal = {each.name for each in fields(request.mode)} - {"target"}
        mode = replace(request.mode, **{name: stored[name] for name in modal & set(stored)})
        try:
            options = JobOptions.from_json({n: v for n, v in stored.items() if n not in modal})
        except MalformedError as error:
            raise TuningError(str(error)) from error
        return cls(request.model, mode, options, request.digest, request.given)

    def check_deliverable(self, first: Planned) -> None:
        """Check, before tuning, that the job's result can be written in the format of the target.

        Only WebAssembly has restrictions: the result is one program, without padding.

        Args:
            first: the job's first plan.

        Raises:
            InvalidArgumentError: if the target is WebAssembly, and the job violates a restriction.
                Causes are padding, several sizes of a dimension, or a model that data-dependent
                sizes divide into several programs.
        """
        if not first.target.family.modules:
            return
        what = f"a module for '{first.target.name}'"
        several = next((name for name, sizes in self.options.sizes.items() if len(sizes) > 1), None)
        if several is not None:
            raise InvalidArgumentError(
                f"{what} holds one size or one range of each dimension, and '{several}' has several"
            )
        if self.options.pad:
            raise InvalidArgumentError(f"{what} cannot pad inputs: omit --pad")
        if first.stages is not None:
            raise InvalidArgumentError(
                f"{what} holds one program: the data decide sizes of this model, so that it runs "
                "in stages"
            )

    @property
    def request(self) -> ModelRequest:
        """The model with its mode (target, threads, numerics and precision) and the given inputs.

        The sizes of dimensions that the user requests are not included.
        """
        return ModelRequest(self.model, self.mode, digest=self.digest, given=self.given)
