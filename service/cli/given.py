"""`--samples` and `--value`: real inputs of a model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import existing_file

if TYPE_CHECKING:
    from tilewright.service.client import Client
    from tilewright.service.jobs.inputs.given_inputs import GivenInputs

SamplesOption = Annotated[
    Path | None,
    typer.Option(
        "--samples",
        metavar="FILE.npz|DIR",
        help="Real inputs: their sizes are size hints, and programs are verified and timed on them",
    ),
]
ValuesOption = Annotated[
    list[str] | None,
    typer.Option("--value", metavar="NAME=NUMBER", help="Fills an input; repeatable"),
]


def given_inputs(
    model: Path,
    samples: Path | None,
    values: Mapping[str, float],
    dims: Mapping[str, Sequence[int | str]],
) -> GivenInputs:
    """The real inputs that the options name.

    Args:
        model: an ONNX file.
        samples, values: what the options state.
        dims: of --dim; a dimension with one integer has it in each sample.

    Raises:
        InvalidArgumentError: if it names no input, or one that cannot hold it.
        QuantizeError: naming the file, and the array in it, that is wrong.
    """
    from tilewright.service.jobs.inputs.given_files import checked_values, inputs_at
    from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs
    from tilewright.service.quantize.samples import read_each

    if samples is None and not values:
        return NONE_GIVEN
    inputs = inputs_at(existing_file(model), dims)
    numbered = checked_values(values, inputs)
    found = () if samples is None else tuple(read_each(samples, inputs, numbered))
    return GivenInputs(found, numbered)


def sampled_hints(
    model: Path, given: GivenInputs, dims: Mapping[str, Sequence[int | str]]
) -> dict[str, str]:
    """The sizes of samples as size hints of the dimensions that `dims` leave out, as --dim states
    them: the range that nobody gave holds them.

    Raises:
        InvalidArgumentError: if a sample has a size that a range of `dims` does not hold.
    """
    from tilewright.compiler.sizes.hinted_ranges import HintedRange, as_hinted
    from tilewright.service.jobs.inputs.given_files import inputs_at
    from tilewright.service.jobs.inputs.given_inputs import most_frequent

    if not given.samples:
        return {}
    hinted = {n: as_hinted(n, listed[0]).dimension for n, listed in dims.items()}
    ranges = {n: d for n, d in hinted.items() if d is not None}
    inputs = {one.name: one.dims for one in inputs_at(model, dims)}
    shares = most_frequent(given.sizes_within(inputs, ranges))
    return {name: HintedRange(None, tuple(each.items())).text for name, each in shares.items()}


def upload_samples(client: Client, given: GivenInputs) -> list[str]:
    """Upload the samples as one file; the digests that a job names them by."""
    from tilewright.service.arrays import save_arrays

    if not given.samples:
        return []
    with tempfile.TemporaryDirectory(prefix="tilewright-samples-") as work:
        file = Path(work, "samples.npz")
        numbered = enumerate(given.samples)
        save_arrays(file, ((f"{n}/{name}", a) for n, each in numbered for name, a in each.items()))
        return [client.upload_samples(file).digest]
