"""Discrete Fourier transforms, as products with constant matrices.

Real and imaginary parts of a row form one vector, so that a short transform is a single matrix
product. A long transform of n = a * b points takes two products: a-point transforms of every b-th
value, multiplied by n-th roots of unity, then b-point transforms of the results (Cooley and Tukey
1965). The work is proportional to n * (a + b), or to the square of n if n is a prime.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isqrt, prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.builder import GENERATED_LIMIT_BYTES
from tilewright.compiler.ops.cast import ONNX_TYPES
from tilewright.compiler.ops.moves import part, transposed, window
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import is_dynamic


def _matrix(given: int, length: int, parts: int, kept: int, *, inverse: bool) -> np.ndarray:
    """Return the matrix of a discrete Fourier transform, (given * parts, kept * 2).

    Rows are real and imaginary parts of the inputs, and columns those of the outputs.

    Args:
        given: inputs per row of data.
        length: points of the transform; missing inputs count as zero.
        parts: 1 for real inputs, 2 for complex ones.
        kept: outputs per row of data.
        inverse: whether this is the inverse transform, which divides by `length`.
    """
    turns = np.outer(np.arange(given), np.arange(kept)) % length
    angle = 2 * np.pi * turns / length
    cosine, sine = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    matrix = np.stack([np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)][:parts], 1)
    return matrix.reshape(given * parts, kept * 2) / (length if inverse else 1)


def _half_matrix(given: int, length: int) -> np.ndarray:
    """Return the matrix of the inverse transform to real values, (given * 2, length).

    The inputs are the first `given` frequencies, about half of all, because the others are their
    conjugates.
    """
    count = np.full((given, 1), 2.0)
    count[0] = 1
    if length % 2 == 0 and given == length // 2 + 1:
        count[-1] = 1
    angle = 2 * np.pi * (np.outer(np.arange(given), np.arange(length)) % length) / length
    matrix = np.stack([count * np.cos(angle), -count * np.sin(angle)], 1)
    return matrix.reshape(given * 2, length) / length


def _constant(
    node: OnnxNode, shape: tuple[int, ...], dtype: DType, made: Callable[[], np.ndarray]
) -> str:
    """Add a constant to the graph and return its name.

    `made` computes the elements. It is called only after a check that the size of the constant is
    within the limit.

    Raises:
        InvalidModelError: if all generated constants together exceed the limit.
    """
    node.reserve(f"a transform {show(shape)}", prod(shape) * dtype.bytes)
    return node.constant(to_memory(made().reshape(shape).astype(np.float64), dtype), dtype)


def _length(node: OnnxNode, position: int, what: str, default: int) -> int:
    stated = node.static_ints(position, what)
    if stated is None:
        return default
    if len(stated) != 1 or stated[0] < 1:
        raise node.invalid(f"{what} {stated} is not a positive number")
    return stated[0]


def _axis(node: OnnxNode) -> int:
    stated = node.static_ints(2, "axis")
    return stated[0] if stated else -2


def _onnx_dft(node: OnnxNode) -> str:
    x = node.input(0)
    shape, dtype = node.shape(x), node.type(x).dtype
    rank, parts = len(shape), shape[-1] if shape else 0
    if rank < 2 or parts not in (1, 2):
        raise node.invalid(
            f"the input is {show(shape)}, expected two dimensions or more, the last of them 1 or 2"
        )
    inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
    axis = node.integer("axis", 1) if node.opset < 20 else _axis(node)
    if not -rank <= axis < rank or axis % rank == rank - 1:
        raise node.invalid(
            f"axis is {axis}, expected one of the first {rank - 1} dimensions of the input"
        )
    dim = axis % rank
    order = [d for d in range(rank) if d not in (dim, rank - 1)] + [dim, rank - 1]
    values = transposed(node, x, order)
    real = inverse and onesided
    length = _length(node, 1, "dft_length", 2 * (shape[dim] - 1) if real else shape[dim])
    if not is_dynamic(length) and length * dtype.bytes > GENERATED_LIMIT_BYTES:
        # its matrices would have more elements; also, the search for a factor would take long
        raise node.invalid(
            f"dft_length is {length}: its matrix exceeds the limit of {GENERATED_LIMIT_BYTES} bytes"
        )
    whole = length // 2 + 1 if real else length
    values = window(node, values, {rank - 2: (0, min(shape[dim], whole))})
    given = node.shape(values)[rank - 2]
    if real and (parts != 2 or length < 1):
        raise node.invalid(
            f"the input is {show(shape)}: an inverse onesided transform takes complex numbers, "
            "with a last dimension of 2"
        )
    lead = node.shape(values)[: rank - 2]
    if real:
        flat = node.reshape(values, (*(lead or (1,)), given * parts))
        made = partial(_half_matrix, given, length)
        matrix = _constant(node, (given * 2, length), dtype, made)
        result = node.emit("matmul", [flat, matrix])
        result = node.reshape(result, (*lead, length, 1))
    else:
        result = _transform(node, values, length, inverse=inverse, onesided=onesided)
    return transposed(node, result, [order.index(d) for d in range(rank)])


def _transform(node: OnnxNode, rows: str, length: int, *, inverse: bool, onesided: bool) -> str:
    """Emit the Fourier transform of rows (..., given, parts), as (..., outputs, 2).

    `parts` is 1 for real numbers and 2 for complex ones. If `given` is less than `length`, the
    missing inputs count as zero. With `onesided`, only the first length // 2 + 1 outputs are
    computed.
    """
    *lead, given, parts = node.shape(rows)
    dtype, kept = node.type(rows).dtype, length // 2 + 1 if onesided else length
    # 16-bit elements would be rounded between two steps.
    first = _factor(given, length, parts, onesided=onesided) if dtype.bytes >= 4 else 0
    if first:
        rows = window(node, rows, {len(lead): (0, length)})
        return _in_two_steps(node, rows, length, first, inverse=inverse, onesided=onesided)
    flat = node.reshape(rows, (*(lead or (1,)), given * parts))
    made = partial(_matrix, given, length, parts, kept, inverse=inverse)
    matrix = _constant(node, (given * parts, kept * 2), dtype, made)
    result = node.emit("matmul", [flat, matrix])
    return node.reshape(result, (*lead, kept, 2))


_FEWER = 2
"""Minimum saving for which two matrix products replace one. The two must need at most 1 / this
number of its multiplications, because small products are less efficient, and values are moved
between them."""


def _factor(given: int, length: int, parts: int, *, onesided: bool) -> int:
    """Return how many points the first of two shorter transforms has, or 0 for a single product.

    A Fourier transform of `length` points is either one matrix product or two steps with shorter
    transforms. The result is the divisor of `length` for which two steps need the fewest
    multiplications. It is 0 unless two steps need at most half the multiplications of a single
    product.

    Args:
        given: the number of points in the input; further points are zero.
        length: the number of points of the transform.
        parts: 1 for real numbers, 2 for complex ones.
        onesided: whether only the first length // 2 + 1 outputs are computed.
    """
    kept = length // 2 + 1 if onesided else length

    def work(first: int) -> int:
        second = min(length // first, kept // first + 1)
        return length * (parts * 2 * first + 4 * second)

    factors = [f for f in range(2, isqrt(length) + 1) if length % f == 0]
    both = [*factors, *(length // f for f in factors)]
    best = min(both, key=work, default=1)
    return best if both and _FEWER * work(best) <= given * parts * 2 * kept else 0


def _in_two_steps(
    node: OnnxNode, rows: str, length: int, first: int, *, inverse: bool, onesided: bool
) -> str:
    """Emit the Fourier transform of rows (..., length, parts) in two steps, as (..., outputs, 2).

    `parts` is 1 for real numbers and 2 for complex ones. With `onesided`, only the first length //
    2 + 1 outputs are computed. The first step transforms `first` points at a time, the second
    `length // first` points.
    """
    *lead, _, parts = node.shape(rows)
    second, dtype, dim = length // first, node.type(rows).dtype, len(lead)
    whole = length // 2 + 1 if onesided else length
    kept = min(second, (whole - 1) // first + 1)
    split = node.reshape(rows, (*lead, first, second, parts))
    split = transposed(node, split, [*range(dim), dim + 2, dim, dim + 1])
    split = node.reshape(split, (*lead, parts * first, second))

    def roots(rows: int, columns: int, pace: int) -> np.ndarray:
        # powers of one root would multiply its rounding error
        turns = np.outer(np.arange(rows), np.arange(columns)) * pace % length
        return np.asarray(np.exp((2j if inverse else -2j) * np.pi / length * turns))

    def far() -> np.ndarray:
        return _real(roots(first, first, second), parts)

    def near() -> np.ndarray:
        factors = roots(kept, second, first) / (length if inverse else 1)
        return _real(factors, 2).transpose(2, 3, 1, 0)

    matrix = _constant(node, (2 * first, parts * first), dtype, far)
    mixed = node.emit("matmul", [matrix, split])
    mixed = node.reshape(mixed, (*lead, 2, first, second))
    cosine = _constant(node, (first, second), dtype, lambda: roots(first, second, 1).real)
    sine = _constant(node, (first, second), dtype, lambda: roots(first, second, 1).imag)
    real, imaginary = (
        node.reshape(part(node, mixed, dim, c, 1), (*lead, first, second)) for c in (0, 1)
    )

    def times(left: str, right: str) -> str:
        return node.emit("mul", [left, right])

    turned = [
        node.emit("sub", [times(real, cosine), times(imaginary, sine)]),
        node.emit("add", [times(real, sine), times(imaginary, cosine)]),
    ]
    vectors = node.emit("concat", turned, axis=dim + 1)
    matrix = _constant(node, (2 * second, kept * 2), dtype, near)
    result = node.emit("matmul", [vectors, matrix])
    result = node.reshape(result, (*lead, first, kept, 2))
    result = transposed(node, result, [*range(dim), dim + 1, dim, dim + 2])
    return window(node, node.reshape(result, (*lead, kept * first, 2)), {dim: (0, whole)})


def _real(factors: np.ndarray, parts: int) -> np.ndarray:
    """Convert a matrix of complex factors to real factors (2, outputs, parts, inputs).

    Dimension 0 selects the real or imaginary part of an output, and dimension 2 that of an input.
    `parts` is 1 if the inputs are real, so that only their real part is needed, else 2.
    """
    cosine, sine = factors.real, factors.imag
    rows = [[cosine, -sine], [sine, cosine]]
    return np.stack([np.stack(row[:parts], axis=1) for row in rows])


def _onnx_stft(node: OnnxNode) -> str:
    """Import STFT: multiply each frame of a signal by a window; compute its Fourier transform."""
    signal, weights = node.input(0), node.optional(2)
    shape = node.shape(signal)
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3 or shape[2] not in (1, 2):
        raise node.invalid(
            f"signal (input 0) is {show(node.shape(signal))}, expected (batch, samples), or three "
            "dimensions with a last one of 1 or 2"
        )
    batch, samples, parts = shape
    step = _length(node, 1, "frame_step", 1)
    default = samples if weights is None else node.shape(weights)[0]
    length = _length(node, 3, "frame_length", default)
    if length > samples or (weights is not None and node.shape(weights) != (length,)):
        given = "missing" if weights is None else show(node.shape(weights))
        raise node.invalid(
            f"frame_length (input 3) is {length}, expected at most the {samples} samples and the "
            f"length of the window (input 2), which is {given}"
        )
    frames = 1 + (samples - length) // step
    places = np.arange(frames, dtype=np.int64)[:, None] * step + np.arange(length)
    node.reserve(f"{places.size} positions", places.nbytes)
    pieces = node.emit("gather", [node.reshape(signal, shape), node.constant(places)], axis=1)
    if weights is not None:
        pieces = node.emit("mul", [pieces, node.reshape(weights, (length, 1))])
    rows = node.reshape(pieces, (batch, frames, length, parts))
    onesided = bool(node.integer("onesided", 1))
    return _transform(node, rows, length, inverse=False, onesided=onesided)


def _onnx_mel_weight_matrix(node: OnnxNode) -> str:
    """Import MelWeightMatrix: a constant (frequencies, bins), whose columns are triangular filters.

    The corners of the triangles are equidistant on the mel scale.
    """
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    numbers = [node.static(position, name) for position, name in enumerate(names)]
    known = [float(number.item()) for number in numbers if number is not None and number.size == 1]
    dtype = ONNX_TYPES.get(node.integer("output_datatype", 1))
    if len(known) != len(names) or dtype is None:
        raise node.invalid(
            f"{', '.join(names)} must be five numbers, and output_datatype an element type"
        )
    bins, length, rate = int(known[0]), int(known[1]), known[2]
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in known[3:])
    shape = max(length // 2 + 1, 0), max(bins, 0)
    node.reserve(f"weights {show(shape)}", prod(shape) * dtype.bytes)
    mels = np.arange(shape[1] + 2) * (high - low) / (bins + 2) + low
    hertz = 700 * (10 ** (mels / 2595) - 1)
    corners = ((length + 1) * hertz // rate).astype(np.int64)
    matrix = np.zeros(shape)
    if bins < 1 or corners.min() < 0 or corners.max() >= len(matrix):
        raise node.invalid(
            f"{bins} bins from {known[3]} to {known[4]} Hz do not fit in a spectrum of "
            f"{len(matrix)} points at a sample rate of {rate:g} Hz"
        )
    for column, (left, centre, right) in enumerate(
        zip(corners[:-2], corners[1:-1], corners[2:], strict=True)
    ):
        rising, falling = np.arange(left, centre), np.arange(centre, right)
        matrix[rising, column] = (rising - left) / max(centre - left, 1)
        matrix[centre, column] = 1
        matrix[falling, column] = (right - falling) / max(right - centre, 1)
    return node.constant(to_memory(matrix, dtype), dtype)


RULES = (
    OnnxRule("DFT", _onnx_dft, limits="the work for a prime length grows with its square"),
    OnnxRule("STFT", _onnx_stft, limits="the work for a prime frame length grows with its square"),
    OnnxRule("MelWeightMatrix", _onnx_mel_weight_matrix),
)
