"""Inputs and outputs of models with their dynamic dimensions, and their formatting for messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import index
from typing import ClassVar

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import JsonForm
from tilewright.compiler.runtime.kernel import DynamicRanges
from tilewright.compiler.sizes import Dimension, dimensions, is_dynamic

Dims = tuple[int | str, ...]
"""The dimensions of an input or output. A string is the name of a dynamic dimension."""

Sizes = tuple[tuple[str, int], ...]
"""Pairs of a dimension's name and its size, sorted by name."""


@dataclass(frozen=True, slots=True)
class ModelPort:
    """The public description of a model's input or output.

    Attributes:
        name: the name of the input or output in the model.
        dtype: the element type; None for strings, dictionaries and lists.
        shape: the size of each fixed dimension, and the name of each dynamic one; -1 for a dynamic
            dimension without a name.
    """

    name: str
    dtype: DType | None
    shape: Dims


@dataclass(frozen=True, slots=True)
class ModelPorts(JsonValue):
    """The inputs and outputs of a model, in order and by name, with their dimensions.

    Attributes:
        inputs: the dimensions of each input.
        outputs: the dimensions of each output; -1 for a dynamic dimension without a name.
        pad: whether inputs may be padded with zeros to the next larger sizes that have a program.
            This is correct only for models that ignore the padding, such as transformers with a
            mask input.
        ranges: ranges of dimensions whose sizes a program computes from other dimensions, so that
            they are not in `Program.dimensions`.
        hints: maps the name of a dynamic dimension to the sizes at which it was tuned.
        dtypes: maps the names of inputs and outputs to element types; strings and lists are
            omitted.
    """

    json_form: ClassVar[JsonForm] = JsonForm("ports", sparse=("ranges", "hints", "dtypes"))

    inputs: Mapping[str, Dims]
    outputs: Mapping[str, Dims]
    pad: bool = False
    ranges: DynamicRanges = ()
    hints: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: Mapping[str, DType] = field(default_factory=dict)

    @property
    def open(self) -> tuple[str, ...]:
        """The names of all dynamic dimensions of the inputs, without duplicates, in order."""
        names = (dim for dims in self.inputs.values() for dim in dims if isinstance(dim, str))
        return tuple(dict.fromkeys(names))

    def described(self, ports: Mapping[str, Dims]) -> tuple[ModelPort, ...]:
        """Return a `ModelPort` for each of these inputs or outputs, in order.

        `ports` is `ModelPorts.inputs` or `ModelPorts.outputs`.
        """
        return tuple(ModelPort(n, self.dtypes.get(n), dims) for n, dims in ports.items())

    def fixed(self, sizes: Mapping[str, int]) -> ModelPorts:
        """Return the inputs and outputs with some dynamic dimensions replaced by sizes.

        A key of `sizes` is the name of a dimension, or an input's name and a position, such as
        `x[0]`. Other dynamic dimensions are unchanged.
        """
        inputs = {
            name: tuple(
                sizes.get(f"{name}[{position}]", sizes.get(dim, dim))
                if isinstance(dim, str)
                else dim
                for position, dim in enumerate(dims)
            )
            for name, dims in self.inputs.items()
        }
        outputs = {
            name: tuple(sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)
            for name, dims in self.outputs.items()
        }
        return replace(self, inputs=inputs, outputs=outputs)

    def check_padding(self) -> None:
        """Raise InvalidArgumentError if `pad` is true, but a padded output could not be cropped.

        Cropping requires that each dynamic dimension of an output is also a dimension of an input.
        """
        for name, dims in self.outputs.items():
            unknown = [d for d in dims if d == -1 or (isinstance(d, str) and d not in self.open)]
            if self.pad and unknown:
                raise InvalidArgumentError(
                    f"output '{name}': dimension {dims.index(unknown[0])} depends on the sizes and "
                    "has no name, so that a padded result cannot be cut back"
                )


def checked_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Check a caller's mapping from dimension names to sizes, and return it with sizes of type int.

    Raises:
        InvalidArgumentError: if `sizes` is not a mapping, a name is not a string, or a size is not
            an integer.
    """
    if not isinstance(sizes, Mapping):
        raise InvalidArgumentError(f"sizes are a mapping such as {{'batch': 1}}, not {sizes!r}")
    found = {}
    for name, size in sizes.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"{name!r} is not the name of a dimension")
        try:
            found[name] = index(size)
        except TypeError as error:
            raise InvalidArgumentError(f"dimension '{name}': {size!r} is not an integer") from error
    return found


def sizes_text(sizes: Sizes) -> str:
    """Format sizes for a message, such as `batch=1, sequence=128`."""
    return ", ".join(f"{name}={size}" for name, size in sizes) or "(no named dimension)"


def ranges_text(dimensions: Iterable[Dimension]) -> str:
    """Format the names and ranges of dimensions, such as `batch 1..64, sequence 1..512`."""
    return ", ".join(f"{dimension.name} {dimension.range_text}" for dimension in dimensions)


def dims_text(dims: Dims) -> str:
    """Format the dimensions of an input or output for a message, such as `(batch, 3, 224, 224)`."""
    return f"({', '.join(map(str, dims))})"


def element_name(listed: str, number: int, outputs: Collection[str]) -> str:
    """Return a unique name for element `number` of the list output `listed`, such as `boxes[0]`.

    If the name is one of `outputs`, apostrophes are appended until it is unique.
    """
    name = f"{listed}[{number}]"
    while name in outputs:
        name += "'"
    return name


def dynamic_dims(shape: tuple[int, ...]) -> Dims:
    """Convert a shape to `Dims`: dynamic sizes become strings, and integers are unchanged."""
    return tuple(size_text(extent) if is_dynamic(extent) else extent for extent in shape)


def size_text(size: int) -> str:
    """Format a fixed or dynamic size for a message, such as `batch` or `2*batch+1`."""
    text = str(size)
    for dimension in dimensions(size):
        if dimension.multiple > 1:
            whole = f"{dimension.multiple}*({dimension}//{dimension.multiple})"
            text = text.replace(whole, str(dimension))
    return dimensions(size)[0].name if text == str(dimensions(size)[0]) else text


def shape_text(shape: tuple[int, ...]) -> str:
    """Format a shape for a message, such as `(4, 3)`, or `(batch, 3)` with a dynamic size."""
    return dims_text(dynamic_dims(shape)) if any(map(is_dynamic, shape)) else str(shape)
