"""Reads the inputs that a user gives a job: files of samples, and numbers for single inputs.

Callers read the files in a process with a memory limit, because a file of a few bytes may expand to
gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tilewright.compiler.errors import CompilerError, InvalidArgumentError, suggestion
from tilewright.compiler.frontend.dimensions import check_dims, model_ports
from tilewright.compiler.frontend.model_file import ModelSource, read_model
from tilewright.service.arrays import ArraysError, load_arrays
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs
from tilewright.service.quantize.samples import Input, model_inputs, samples_of

if TYPE_CHECKING:
    from tilewright.service.jobs.plan.planning import SizeChoice


class InvalidSamplesError(CompilerError):
    """A file of samples is invalid; the message names the file."""


@dataclass(frozen=True, slots=True)
class SamplesFile:
    """A file of samples.

    Attributes:
        name: the name of the file in messages to users.
        path: the path of the file.
    """

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """The files and numbers that a user gives a job as inputs of the model.

    Attributes:
        files: the files of samples, each an .npz file of arrays by input name.
        values: the numbers that fill inputs, by the name of the input.
        limit_bytes: the limit of the size of all samples together, in bytes.
    """

    files: tuple[SamplesFile, ...] = ()
    values: Mapping[str, float] | None = None
    limit_bytes: int = 0

    def read(self, model: ModelSource, sizes: Mapping[str, Sequence[SizeChoice]]) -> GivenInputs:
        """Read the files, and check that samples and values fit the model's inputs.

        Args:
            model: the model.
            sizes: the choices of sizes of each dimension, by name. A dimension whose only choice is
                an integer must have this size in each sample.

        Returns:
            the samples and values.

        Raises:
            InvalidArgumentError: if a value is for an unknown input, or for an input whose type
                cannot represent it.
            InvalidSamplesError: if a file is invalid; the message names the file.
            QuantizeError: if an array does not fit the model; the message names the file and the
                array.
        """
        if not self.files and not self.values:
            return NONE_GIVEN
        inputs = inputs_at(model, sizes)
        values = checked_values(self.values or {}, inputs)
        if not self.files:
            return GivenInputs((), values)
        return GivenInputs(tuple(samples_of(self._arrays(), inputs, values)), values)

    def _arrays(self) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
        left = self.limit_bytes
        for file in self.files:
            arrays = read_samples_file(file, left)
            left -= sum(array.nbytes for array in arrays.values())
            yield file.name, arrays


def shown_name(digest: str) -> str:
    """Return the name of an uploaded file in messages to users, such as `samples 3f9a0c12be47`."""
    return f"samples {digest[:12]}"


def read_samples_file(file: SamplesFile, limit_bytes: int) -> dict[str, np.ndarray]:
    """Return the arrays in a file of samples, by input name.

    Raises:
        InvalidSamplesError: if the file is not an archive of arrays, or exceeds the limit.
    """
    try:
        return load_arrays(file.path, file.name, limit_bytes)
    except ArraysError as error:
        raise InvalidSamplesError(str(error)) from error


def inputs_at(model: ModelSource, sizes: Mapping[str, Sequence[SizeChoice]]) -> tuple[Input, ...]:
    """Return the inputs of a model, with some of its dynamic dimensions fixed.

    Args:
        model: the model.
        sizes: the choices of sizes of each dimension, by name. A dimension whose only choice is an
            integer is fixed to this size.

    Raises:
        CompilerError: if a dimension is unknown, or an input is not a tensor of numbers.
    """
    graph = read_model(model).proto.graph
    single = {name: listed[0] for name, listed in sizes.items() if len(listed) == 1}
    numbers = {name: size for name, size in single.items() if isinstance(size, int)}
    check_dims(graph, numbers)
    return model_inputs(graph, model_ports(graph).fixed(numbers).inputs)


def checked_values(values: Mapping[str, float], inputs: Sequence[Input]) -> dict[str, float]:
    """Convert the numbers that a user gives to the types of their inputs.

    Args:
        values: the numbers by the name of the input.
        inputs: the inputs of the model.

    Raises:
        InvalidArgumentError: if an input is unknown, or its type cannot represent the number.
    """
    known = {one.name: one.dtype for one in inputs}
    found: dict[str, float] = {}
    for name, value in values.items():
        if name not in known:
            names = ", ".join(f"'{each}'" for each in known)
            raise InvalidArgumentError(
                f"the model has no input '{name}', its inputs are {names}{suggestion(name, known)}"
            )
        dtype = known[name]
        try:
            number = float(value) if dtype.kind == "f" else int(value)
            np.array(number, dtype)
            held = dtype.kind == "f" or (dtype.kind != "O" and number == value)
        except (OverflowError, ValueError):  # infinity and NaN are not integers
            held = False
        if not held:
            holds = "text" if dtype.kind == "O" else dtype
            raise InvalidArgumentError(f"input '{name}' cannot hold {value}: it takes {holds}")
        found[name] = number
    return found
