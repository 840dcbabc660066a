"""The options `--samples` and `--value`, which give a model real inputs."""

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
    """Return the samples and values that `--samples` and `--value` give for a model's inputs.

    Args:
        model: an ONNX file.
        samples: the file or folder of --samples.
        values: values of --value by input name.
        dims: sizes of --dim. A dimension with one integer has this size in each sample.

    Raises:
        InvalidArgumentError: if a value names an unknown input, or an input that cannot hold it.
        QuantizeError: if a sample is invalid; the message names the file and the array.
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
    """Return the most frequent sizes of the samples as size hints: {"batch": "@1:3,8:5"}.

    The texts have the form of --dim. Here 3 samples have the size 1, and 5 samples the size 8. The
    result has an entry for each dynamic dimension of an input that `dims` does not fix to one size.

    Raises:
        InvalidArgumentError: if a sample's size is outside the dimension's range in `dims`.
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
    """Upload the samples as one file. Return a list with the file's digest.

    The list is the value of the job option `samples`. It is empty without samples.
    """
    from tilewright.service.arrays import save_arrays

    if not given.samples:
        return []
    with tempfile.TemporaryDirectory(prefix="tilewright-samples-") as work:
        file = Path(work, "samples.npz")
        numbered = enumerate(given.samples)
        save_arrays(file, ((f"{n}/{name}", a) for n, each in numbered for name, a in each.items()))
        return [client.upload_samples(file).digest]
