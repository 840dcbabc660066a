"""`--samples` and `--value`: real inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.common import UserError, existing_file

if TYPE_CHECKING:
    import numpy as np

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
    from compiler.frontend.dimensions import check_dims, model_ports
    from compiler.frontend.model_file import read_model
    from service.jobs.given_inputs import NONE_GIVEN, GivenInputs
    from service.quantize.samples import model_inputs, read_each

    if samples is None and not values:
        return NONE_GIVEN
    graph = read_model(existing_file(model)).proto.graph
    single = {name: listed[0] for name, listed in dims.items() if len(listed) == 1}
    numbers = {name: size for name, size in single.items() if isinstance(size, int)}
    check_dims(graph, numbers)
    ports = model_ports(graph).fixed(numbers)
    inputs = model_inputs(graph, ports.inputs)
    numbered = _values(values, inputs)
    found = () if samples is None else tuple(read_each(samples, inputs, numbered))
    return GivenInputs(found, numbered)


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
