"""Inputs and outputs of models with their dynamic dimensions, and texts for messages."""

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
"""A port's dimensions; a string names a dynamic one."""

Sizes = tuple[tuple[str, int], ...]
"""A size for each named dimension, sorted by name."""


@dataclass(frozen=True, slots=True)
class ModelPort:
    """An input or output of a model, as users see it.

    Attributes:
        name: its name in the model.
        dtype: element type; None for strings, dictionaries and lists.
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
        inputs: dimensions of each input.
        outputs: dimensions of each output; -1 for a dynamic dimension without a name.
        pad: whether inputs may be padded with zeros to the next served sizes. This is correct only
            for models that ignore the padding, such as transformers with a mask input.
        ranges: ranges of dimensions that are missing in the program, because it expresses them by
            other dimensions.
        hints: the sizes at which dimensions with a range were tuned, by name.
        dtypes: types of inputs and outputs, by name; strings and lists have none.
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
        """The names of the inputs' dynamic dimensions, each once, in order."""
        names = (dim for dims in self.inputs.values() for dim in dims if isinstance(dim, str))
        return tuple(dict.fromkeys(names))

    def described(self, ports: Mapping[str, Dims]) -> tuple[ModelPort, ...]:
        """Return a `ModelPort` for each of these inputs or outputs, in order.

        `ports` is `ModelPorts.inputs` or `ModelPorts.outputs`.
        """
        return tuple(ModelPort(n, self.dtypes.get(n), dims) for n, dims in ports.items())

    def fixed(self, sizes: Mapping[str, int]) -> ModelPorts:
        """Return the inputs and outputs with some dynamic dimensions fixed to `sizes`.

        A key is the name of a dimension, or its input and position (`x[0]`).
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
        """Raise InvalidArgumentError if `pad` is true, but outputs could not be cropped.

        A dynamic dimension of an output must be a dimension of an input.
        """
        for name, dims in self.outputs.items():
            unknown = [d for d in dims if d == -1 or (isinstance(d, str) and d not in self.open)]
            if self.pad and unknown:
                raise InvalidArgumentError(
                    f"output '{name}': dimension {dims.index(unknown[0])} depends on the sizes and "
                    "has no name, so that a padded result cannot be cut back"
                )


def checked_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Check a caller's mapping from names to sizes, and return it with plain integers.

    Raises:
        InvalidArgumentError: if it is not a mapping, a name is not a text, or a size is not an
            integer.
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
    """Format sizes for a message: `batch=1, sequence=128`."""
    return ", ".join(f"{name}={size}" for name, size in sizes) or "(no named dimension)"


def ranges_text(dimensions: Iterable[Dimension]) -> str:
    """Format dimensions for a message: `batch 1..64, sequence 1..512`; empty without dimensions."""
    return ", ".join(f"{dimension.name} {dimension.range_text}" for dimension in dimensions)


def dims_text(dims: Dims) -> str:
    """Format the dimensions of a port for a message: `(batch, 3, 224, 224)`."""
    return f"({', '.join(map(str, dims))})"


def element_name(listed: str, number: int, outputs: Collection[str]) -> str:
    """Return the name of element `number` of a list as a separate output, such as `boxes[0]`.

    Primes are appended as long as the name is in `outputs`, the names of other outputs.
    """
    name = f"{listed}[{number}]"
    while name in outputs:
        name += "'"
    return name


def dynamic_dims(shape: tuple[int, ...]) -> Dims:
    """Convert a shape to `Dims`: a dynamic size becomes its text, an integer is unchanged."""
    return tuple(size_text(extent) if is_dynamic(extent) else extent for extent in shape)


def size_text(size: int) -> str:
    """Format a size for messages; a size that is one dimension becomes the dimension's name."""
    text = str(size)
    for dimension in dimensions(size):
        if dimension.multiple > 1:
            whole = f"{dimension.multiple}*({dimension}//{dimension.multiple})"
            text = text.replace(whole, str(dimension))
    return dimensions(size)[0].name if text == str(dimensions(size)[0]) else text


def shape_text(shape: tuple[int, ...]) -> str:
    """Format a shape for a message: `(4, 3)`, or `(batch, 3)` with dynamic sizes."""
    return dims_text(dynamic_dims(shape)) if any(map(is_dynamic, shape)) else str(shape)
