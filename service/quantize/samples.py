"""Reads samples of a model's inputs from files, checks them against the model, and splits them.

An .npz file has an array per input, by name. It contains one sample. If each array has n times the
rows of its input, it contains n samples. A folder contains such files, or images (`images.py`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import suggestion
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import Dims, dims_text
from tilewright.service.arrays import ArraysError, load_arrays
from tilewright.service.quantize.errors import QuantizeError
from tilewright.service.quantize.images import SUFFIXES, ImageOptions, read_image
from tilewright.tuner.measure.model_runs import input_spec

RANDOM_SAMPLES = 16
_NUMBERED = re.compile(r"\d+/")

HELD_OUT = 4
"""Of every four samples, one is held out from calibration and used for the report."""

InputArrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a model.

    Attributes:
        name: the name of the input.
        dtype: the type of its elements; object for texts.
        dims: its dimensions: an integer for a fixed size, or a name for a dynamic dimension
            (`compiler.runtime.ports`).
    """

    name: str
    dtype: np.dtype
    dims: Dims


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of equal sizes, split into a set for calibration and a set for the report.

    Attributes:
        calibration: the samples that determine value ranges.
        held_out: the samples on which the models are compared for the report.
        dims: the sizes of the model's named dimensions.
        origin: the source of the samples: a path, or `"drawn"` for random ones.
    """

    calibration: tuple[InputArrays, ...]
    held_out: tuple[InputArrays, ...]
    dims: Mapping[str, int]
    origin: str

    @property
    def seen(self) -> bool:
        """Whether `held_out` has a calibration sample, because only one sample exists."""
        return self.held_out is self.calibration


def model_inputs(graph: onnx.GraphProto, ports: Mapping[str, Dims]) -> tuple[Input, ...]:
    """Return the graph inputs that are in `ports`, with their dimensions from `ports`.

    Raises:
        QuantizeError: if an input is not a tensor of numbers, booleans or texts.
    """
    found = []
    for info in graph.input:
        if info.name not in ports:
            continue
        try:
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        except (KeyError, ValueError) as error:
            raise QuantizeError(f"input '{info.name}' is not a tensor") from error
        if dtype.kind not in "biufO":
            raise QuantizeError(f"input '{info.name}' holds {dtype}, which no sample can have")
        found.append(Input(info.name, dtype, ports[info.name]))
    return tuple(found)


def read_samples(
    path: Path, inputs: Sequence[Input], images: ImageOptions, dims: Mapping[str, int]
) -> Samples:
    """Read all samples of a file or a folder, which must have equal sizes, and split them.

    Args:
        path: the file or folder.
        inputs: the inputs of the model.
        images: the normalisation of images.
        dims: the sizes of named dimensions that `inputs` already contains as integers;
            `Samples.dims` includes them.

    Raises:
        QuantizeError: if a sample is invalid; the message names the file and the array.
        OSError: if a file cannot be read.
    """
    samples: list[InputArrays] = []
    bound: dict[str, tuple[int, str]] = {}
    for where, arrays in _arrays(path, inputs, images):
        for sample in _rows(_checked(where, arrays, inputs), inputs):
            _bind(where, sample, inputs, bound)
            samples.append(sample)
    if not samples:
        raise QuantizeError(f"'{path}' holds no sample")
    return split(samples, {**dims, **{n: size for n, (size, _) in bound.items()}}, str(path))


def read_each(
    path: Path, inputs: Sequence[Input], values: Mapping[str, float]
) -> Iterator[InputArrays]:
    """Yield the samples of a file or a folder. The samples may have different sizes.

    Args:
        path: the file or folder.
        inputs: the inputs of the model.
        values: numbers that fill inputs, by name. A sample may lack such an input, if the input is
            a scalar or its dimensions are fixed.

    Raises:
        QuantizeError: if a sample is invalid; the message names the file and the array.
        OSError: if a file cannot be read.
    """
    count = 0
    for sample in samples_of(_arrays(path, inputs, ImageOptions()), inputs, values):
        count += 1
        yield sample
    if not count:
        raise QuantizeError(f"'{path}' holds no sample")


def samples_of(
    files: Iterable[tuple[str, Mapping[str, Array]]],
    inputs: Sequence[Input],
    values: Mapping[str, float],
) -> Iterator[InputArrays]:
    """Check the arrays of files against the model's inputs, and yield the samples; see `read_each`.

    A file with arrays named `0/NAME`, `1/NAME`, ... contains numbered samples, which may have
    different sizes.

    Args:
        files: for each file, its name for messages, and its arrays by name.
        inputs: the inputs of the model.
        values: numbers that fill inputs, by name.

    Raises:
        QuantizeError: if a sample is invalid; the message names the file and the array.
    """
    filled = {
        one.name: np.full([int(dim) for dim in one.dims], values[one.name], one.dtype)
        for one in inputs
        if one.name in values and all(isinstance(dim, int) for dim in one.dims)
    }
    names = {one.name for one in inputs}
    for where, arrays in (each for file in files for each in _numbered(*file, names)):
        for sample in _rows(_checked(where, {**filled, **arrays}, inputs), inputs):
            _bind(where, sample, inputs, {})
            yield sample


def random_samples(
    inputs: Sequence[Input],
    dims: Mapping[str, int],
    integers: Mapping[str, tuple[int, int] | None] | None = None,
) -> Samples:
    """Generate random samples with a fixed seed; inputs of texts get empty texts.

    Args:
        inputs: the inputs of the model, with fixed dimensions.
        dims: the sizes of named dimensions, for `Samples.dims`.
        integers: for each input, the range [low, high) of its random integers; None or a missing
            name for an input without such bounds.

    Raises:
        QuantizeError: if a dimension has no size.
    """
    shapes = {}
    for one in inputs:
        for dim in one.dims:
            if isinstance(dim, str):
                raise QuantizeError(f"dimension '{dim}' has no size; give one with --dim")
        shapes[one.name] = tuple(int(dim) for dim in one.dims)
    known = integers or {}

    def drawn(one: Input, seed: int) -> Array:
        shape, dtype = shapes[one.name], one.dtype
        if dtype.kind == "O":
            return np.full(shape, "", object)
        spec = input_spec(one.name, shape, DType(dtype.name), seed, known.get(one.name))
        return spec.draw()

    samples = [{one.name: drawn(one, seed) for one in inputs} for seed in range(RANDOM_SAMPLES)]
    return split(samples, dims, "drawn")


def split(samples: Sequence[InputArrays], dims: Mapping[str, int], origin: str) -> Samples:
    """Split samples into calibration samples and held-out samples for the report.

    Every fourth sample is held out. Of two or three samples the last one is held out, and a single
    sample is used for both. `dims` and `origin` become the attributes of the result.
    """
    every = min(HELD_OUT, len(samples))
    held = tuple(s for i, s in enumerate(samples) if i % every == every - 1)
    rest = tuple(s for i, s in enumerate(samples) if i % every != every - 1)
    return Samples(rest or held, held, dims, origin)


def _arrays(
    path: Path, inputs: Sequence[Input], images: ImageOptions
) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """Yield (file name, arrays by input name) for the file `path`, or for each file in this folder.

    Raises QuantizeError if the folder has no samples or mixes kinds, or if images do not suit the
    model.
    """
    if not path.exists():
        raise QuantizeError(f"no such file: '{path}'")
    if not path.is_dir():
        yield str(path), _load(path)
        return
    files = sorted(file for file in path.iterdir() if file.is_file())
    archives = [file for file in files if file.suffix.lower() == ".npz"]
    pictures = [file for file in files if file.suffix.lower() in SUFFIXES]
    if archives and pictures:
        raise QuantizeError(f"'{path}' holds .npz files and images: give a folder of one kind")
    if not archives and not pictures:
        raise QuantizeError(f"'{path}' holds neither .npz files nor images")
    for file in archives:
        yield str(file), _load(file)
    for file in pictures:
        if len(inputs) != 1:
            names = ", ".join(f"'{one.name}'" for one in inputs)
            raise QuantizeError(f"images are for a model of one input, this one has {names}")
        yield str(file), {inputs[0].name: read_image(file, inputs[0].dims, images)}


def _load(path: Path) -> Mapping[str, Array]:
    try:
        return load_arrays(path)
    except ArraysError as error:
        raise QuantizeError(str(error)) from error


def _numbered(
    where: str, arrays: Mapping[str, Array], inputs: Collection[str]
) -> Iterator[tuple[str, Mapping[str, Array]]]:
    """Split the arrays of a file into numbered samples, by name prefixes as in `0/NAME`.

    Yields (name of the sample for messages, arrays by input name). A file without numbers is one
    sample.
    """
    if arrays.keys() <= set(inputs) or not all(_NUMBERED.match(name) for name in arrays):
        yield where, arrays
        return
    found: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        number, _, own = name.partition("/")
        found.setdefault(number, {})[own] = array
    for number, sample in found.items():
        yield f"{where}, sample {number}", sample


def _checked(where: str, arrays: Mapping[str, Array], inputs: Sequence[Input]) -> InputArrays:
    """Convert the arrays of a sample to the types of the model's inputs.

    Raises QuantizeError if an array is missing, unknown, or not representable in the input's type.
    """
    names = {one.name for one in inputs}
    for name in arrays:
        if name not in names:
            wanted = ", ".join(f"'{n}'" for n in sorted(names))
            raise QuantizeError(
                f"'{where}': the model has no input '{name}', it has {wanted}"
                f"{suggestion(name, names)}"
            )
    sample = {}
    for one in inputs:
        if one.name not in arrays:
            raise QuantizeError(f"'{where}': there is no array for input '{one.name}'")
        array = arrays[one.name]
        kinds = {"f": "biuf", "b": "b", "O": "OU"}.get(one.dtype.kind, "biu")
        if array.dtype.kind not in kinds:
            raise QuantizeError(
                f"'{where}': '{one.name}' holds {array.dtype}, the model takes {one.dtype}"
            )
        taken = array.astype(one.dtype)
        if array.dtype.kind == "f" and not np.isfinite(taken).all():
            raise QuantizeError(
                f"'{where}': '{one.name}' holds NaN, infinity or values beyond the range of "
                f"{one.dtype}"
            )
        if array.dtype.kind in "biu" and not np.array_equal(taken, array):
            raise QuantizeError(
                f"'{where}': '{one.name}' holds values beyond the range of {one.dtype}"
            )
        sample[one.name] = taken
    return sample


def _rows(sample: InputArrays, inputs: Sequence[Input]) -> Iterator[InputArrays]:
    """Split a sample into n samples, if each array has n times the rows of its input.

    Otherwise, yield the sample unchanged. Rows are the elements along the first dimension.
    """
    counts = set()
    for one in inputs:
        rows, shape = (one.dims or (None,))[0], sample[one.name].shape
        whole = isinstance(rows, int) and rows and shape and shape[0] % rows == 0
        counts.add(shape[0] // rows if whole else 0)
    count = counts.pop() if len(counts) == 1 else 0
    if count < 2:
        yield sample
        return
    for index in range(count):
        yield {
            name: array[len(array) // count * index :][: len(array) // count]
            for name, array in sample.items()
        }


def _bind(
    where: str, sample: InputArrays, inputs: Sequence[Input], bound: dict[str, tuple[int, str]]
) -> None:
    """Check the shapes of a sample, and add the sizes of its named dimensions to `bound`.

    `bound` has (size, name of the file) by dimension. Raises QuantizeError if a shape does not
    match its input, or a dimension has another size in an earlier file.
    """
    for one in inputs:
        shape = sample[one.name].shape
        fits = len(shape) == len(one.dims) and all(
            size > 0 and (isinstance(dim, str) or dim == size)
            for dim, size in zip(one.dims, shape, strict=True)
        )
        if not fits:
            raise QuantizeError(
                f"'{where}': '{one.name}' has shape {shape}, the model takes {dims_text(one.dims)}"
            )
        for dim, size in zip(one.dims, shape, strict=True):
            if not isinstance(dim, str):
                continue
            other, before = bound.setdefault(dim, (size, where))
            if other != size:
                raise QuantizeError(
                    f"dimension '{dim}' is {size} in '{where}' and {other} in '{before}': give "
                    "samples of one size"
                )
