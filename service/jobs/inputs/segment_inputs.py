"""Generates inputs for a model with data-dependent sizes, which runs as several programs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from tilewright.compiler.errors import CompilerError, InvalidInputError
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.sizes.hinted_ranges import Shares
from tilewright.compiler.sizes.ranges import default_range
from tilewright.service.jobs.inputs.given_inputs import GivenInputs
from tilewright.service.jobs.report.shown_sizes import hinted_sizes

DRAWN = (
    "sizes in this model depend on the data, and it was timed with random inputs: "
    "real inputs may take more or less time"
)
"""Remark for the user on the measured times of a model with data-dependent sizes."""


def staged_inputs(
    executable: GuardedModel,
    given: GivenInputs,
    shares: Shares | None = None,
    ranges: Collection[str] = (),
) -> Iterator[tuple[dict[str, int], dict[str, Array]]]:
    """Yield (sizes of the dynamic dimensions, inputs of these sizes) on which a model runs.

    The sizes are size hints (expected sizes), or sizes spread over a range that the user has given.
    Inputs that the user does not give are random numbers or empty strings. The model is run once on
    each combination of sizes, to check that it does not fail.

    Args:
        executable: the model.
        given: the inputs that the user gives.
        shares: the size hints that the user states; each has the fraction of runs with this size.
        ranges: the names of the dimensions whose range the user has given.

    Raises:
        InvalidInputError: if the model fails on the random inputs; the message names the inputs
            that the user must give.
        InvalidArgumentError: if a hint names a dimension that is not dynamic, or a size that the
            dimension cannot have.
    """
    # a dimension without a given range may have any size
    open_ranges = [executable.ranges.get(n) or default_range(n) for n in executable.open]
    for sizes in hinted_sizes(executable.ports, open_ranges, shares, ranges):
        texts = executable.texts_at(sizes)
        drawn = given.draw(executable.inputs_at(sizes))
        inputs = {**drawn, **{name: np.full(shape, "") for name, shape in texts.items()}}
        try:
            executable.run(inputs)
        except CompilerError as error:
            raise InvalidInputError(
                f"the model fails for random inputs ({error}): give real ones of "
                f"{_named(inputs)} with --samples, or single numbers with --value"
            ) from error
        yield sizes, inputs


def _named(inputs: Mapping[str, Array]) -> str:
    return ", ".join(f"'{name}'" for name in inputs)
