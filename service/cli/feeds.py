"""Inputs on which a command runs a model: samples, or random arrays of each size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.service.cli.terminal import complain, note

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from tilewright.compiler.runtime.guarded import GuardedModel
    from tilewright.compiler.runtime.model import Model
    from tilewright.compiler.sizes.hinted_ranges import Shares
    from tilewright.service.jobs.inputs.given_inputs import GivenInputs


@dataclass(frozen=True, slots=True)
class Feed:
    """The input arrays for one run of a model, with a text that states their sizes.

    Attributes:
        sizes: for random inputs, the sizes of the model's dynamic dimensions, such as
            `batch=1, sequence=128`; "" if it has none. For a sample that the user gave, the names
            and shapes of its arrays, such as `ids 1x12, mask 1x12`.
        arrays: the arrays by the name of the input.
    """

    sizes: str
    arrays: Mapping[str, Any]


def feeds_of(
    executable: Model,
    model: Path,
    shares: Shares,
    ranges: Mapping[str, int | str],
    given: GivenInputs,
) -> list[Feed]:
    """Return the inputs on which a command runs a model, one feed per size.

    With samples, the result has one sample of each size. Otherwise it has random arrays from a
    fixed seed. Their sizes come from --dim, from the model's typical sizes (size hints), and from
    the programs of an artifact.

    Args:
        executable: the loaded or compiled `model`.
        model: an ONNX file, or the folder of a compiled model (an artifact).
        shares: size hints of --dim, with the fraction of runs that have each size.
        ranges: sizes and ranges of --dim.
        given: samples, and values for random inputs.
    """
    from tilewright.compiler.runtime.guarded import GuardedModel

    if given.samples:
        return [Feed(_shapes_text(each), each) for each in given.of_each_size()]
    feeds = _feeds(executable, shares, ranges, given)
    if not feeds and isinstance(executable, GuardedModel):
        return _feeds_at_hints(executable, model, ranges, given)
    return feeds


def _feeds_at_hints(
    executable: GuardedModel,
    model: Path,
    ranges: Mapping[str, int | str],
    given: GivenInputs,
) -> list[Feed]:
    """Return random inputs at the typical sizes (size hints) of a model with one program per size.

    The compiled programs do not contain the hints. So this function reads and partitions the ONNX
    model again to find them.
    """
    from tilewright.compiler.runtime.ports import sizes_text
    from tilewright.service.jobs.plan.planning import ModelRequest, plan_sizes

    dims = {name: (size,) for name, size in ranges.items()}
    found = []
    for planned in plan_sizes(ModelRequest(model), dims):
        for said in planned.notes:
            note(said)
        at = planned.request.dims or {}
        sizes = {name: at[name] for name in executable.open}
        inputs = given.draw(executable.executable(sizes).program.inputs)
        found.append(Feed(sizes_text(tuple(sorted(sizes.items()))), inputs))
    return found


def _feeds(
    executable: Model,
    shares: Shares,
    ranges: Collection[str],
    given: GivenInputs,
) -> list[Feed]:
    """Return random inputs, one feed for each size at which the model is timed.

    A dimension with a range of sizes is timed at its typical sizes (size hints). An artifact is
    also timed at each size for which it has a separate program. Return an empty list if the model
    has neither typical sizes nor separate programs.

    Args:
        executable: the loaded or compiled model.
        shares: size hints of --dim, with the fraction of runs that have each size.
        ranges: the names of the dimensions for which --dim states a size or a range.
        given: values for random inputs.
    """
    from tilewright.compiler.runtime.executable import Executable
    from tilewright.compiler.runtime.guarded import GuardedModel
    from tilewright.compiler.runtime.ports import sizes_text
    from tilewright.service.jobs.inputs.segment_inputs import DRAWN, staged_inputs
    from tilewright.service.jobs.report.shown_sizes import hinted_sizes, stated_sizes

    if isinstance(executable, Executable):
        stated_sizes(executable.dimensions, shares)  # rejects hints of fixed dimensions
        return [Feed("", given.draw(executable.program.inputs))]
    assert isinstance(executable, GuardedModel)
    if executable.is_segmented:
        complain(f"warning: {DRAWN}")
        return [
            Feed(sizes_text(tuple(sorted(sizes.items()))) if sizes else "", inputs)
            for sizes, inputs in staged_inputs(executable, given, shares, ranges)
        ]
    ranged = executable.ranged
    found = []
    if ranged is None and executable.served:
        stated_sizes((), shares)
    if ranged is not None:
        for sizes in hinted_sizes(executable.ports, ranged.dimensions, shares, ranges):
            inputs = given.draw(ranged.program.at(sizes).inputs)
            found.append(Feed(sizes_text(tuple(sorted(sizes.items()))), inputs))
    return found + [
        Feed(sizes_text(sizes), given.draw(executable.executable(dict(sizes)).program.inputs))
        for sizes in executable.served or ()
    ]


def _shapes_text(arrays: Mapping[str, Any]) -> str:
    """Return the names and shapes of arrays: `ids 1x12, mask 1x12`."""
    return ", ".join(
        f"{name} {'x'.join(map(str, array.shape)) or 'scalar'}" for name, array in arrays.items()
    )
