"""`--samples` and `--value`: real inputs of a model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.common import UserError, existing_file

if TYPE_CHECKING:
    import numpy as np

    from service.client import Client
    from service.jobs.given_inputs import GivenInputs
    from service.quantize.samples import Input

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
    values: list[str] | None,
    dims: Mapping[str, Sequence[int | str]],
) -> GivenInputs:
    """The real inputs that the options name.

    Args:
        model: an ONNX file.
        samples, values: what the options say.
        dims: of --dim; a dimension with one integer has it in each sample.

    Raises:
        UserError: if a value names no input, or one that cannot hold it.
        QuantizeError: naming the file, and the array in it, that is wrong.
    """
    from service.jobs.given_files import inputs_at
    from service.jobs.given_inputs import NONE_GIVEN, GivenInputs
    from service.quantize.samples import read_each

    if samples is None and not values:
        return NONE_GIVEN
    inputs = inputs_at(existing_file(model), dims)
    numbered = _values(values, inputs)
    found = () if samples is None else tuple(read_each(samples, inputs, numbered))
    return GivenInputs(found, numbered)


def upload_samples(client: Client, given: GivenInputs) -> list[str]:
    """Upload the samples as one file; the digests that a job names them by."""
    from service.arrays import save_arrays

    if not given.samples:
        return []
    with tempfile.TemporaryDirectory(prefix="tilewright-samples-") as work:
        file = Path(work, "samples.npz")
        numbered = enumerate(given.samples)
        save_arrays(file, ((f"{n}/{name}", a) for n, each in numbered for name, a in each.items()))
        return [client.upload_samples(file).digest]


def _held(dtype: np.dtype[Any]) -> str:
    return "text" if dtype.kind == "O" else str(dtype)


def _values(listed: list[str] | None, inputs: tuple[Input, ...]) -> dict[str, float]:
    """{"sr": 16000} from ["sr=16000"]. Raises UserError."""
    import numpy as np

    known = {one.name: one.dtype for one in inputs}
    found: dict[str, float] = {}
    for text in listed or ():
        name, _, number = text.rpartition("=")
        if name not in known:
            names = ", ".join(f"'{each}'" for each in known)
            raise UserError(f"--value '{text}': expected NAME=NUMBER, the inputs are {names}")
        try:
            if known[name].kind == "O":
                raise ValueError("a text")
            found[name] = float(number) if known[name].kind == "f" else int(number)
            np.array(found[name], known[name])
        except (ValueError, OverflowError) as error:
            raise UserError(
                f"--value '{text}': input '{name}' holds {_held(known[name])}"
            ) from error
    return found
