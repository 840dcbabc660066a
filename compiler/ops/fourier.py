"""Discrete Fourier transforms, as products with constant matrices.

Real and imaginary parts of a row are one vector, so that a transform is a single matrix product;
its work grows with the square of the length.
"""

from __future__ import annotations

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.cast import ONNX_TYPES
from tilewright.compiler.ops.moves import transposed, window
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show


def _matrix(given: int, length: int, parts: int, kept: int, *, inverse: bool) -> np.ndarray:
    """(given * parts, kept * 2): what each input gives to each output.

    Args:
        given: inputs of a row.
        length: points of the transform; what is not given is zero.
        parts: 1 for real inputs, 2 for complex ones.
        kept: outputs of a row.
        inverse: whether frequencies become values; that divides by the length.
    """
    turns = np.outer(np.arange(given), np.arange(kept)) % length
    angle = 2 * np.pi * turns / length
    cosine, sine = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    matrix = np.stack([np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)][:parts], 1)
    return matrix.reshape(given * parts, kept * 2) / (length if inverse else 1)


def _half_matrix(given: int, length: int) -> np.ndarray:
    """(given * 2, length): half of the frequencies of a real row to its values."""
    count = np.full((given, 1), 2.0)
    count[0] = 1
    if length % 2 == 0 and given == length // 2 + 1:
        count[-1] = 1
    angle = 2 * np.pi * (np.outer(np.arange(given), np.arange(length)) % length) / length
    matrix = np.stack([count * np.cos(angle), -count * np.sin(angle)], 1)
    return matrix.reshape(given * 2, length) / length


def _constant(node: OnnxNode, matrix: np.ndarray, dtype: DType) -> str:
    node.reserve(f"a transform {show(matrix.shape)}", matrix.size * dtype.bytes)
    return node.constant(to_memory(matrix.astype(np.float64), dtype), dtype)


def _length(node: OnnxNode, position: int, what: str, default: int) -> int:
    stated = node.static_ints(position, what)
    if stated is None:
        return default
    if len(stated) != 1 or stated[0] < 1:
        raise node.invalid(f"{what} {stated} is no positive number")
    return stated[0]


def _axis(node: OnnxNode) -> int:
    stated = node.static_ints(2, "axis")
    return stated[0] if stated else -2


def _onnx_dft(node: OnnxNode) -> str:
    x = node.input(0)
    shape, dtype = node.shape(x), node.type(x).dtype
    rank, parts = len(shape), shape[-1] if shape else 0
    if rank < 2 or parts not in (1, 2):
        raise node.invalid(f"the input {show(shape)} has no last dimension of 1 or 2")
    inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
    axis = node.integer("axis", 1) if node.opset < 20 else _axis(node)
    if not -rank <= axis < rank or axis % rank == rank - 1:
        raise node.invalid(f"axis {axis} for an input of rank {rank}")
    dim = axis % rank
    order = [d for d in range(rank) if d not in (dim, rank - 1)] + [dim, rank - 1]
    values = transposed(node, x, order)
    real = inverse and onesided
    length = _length(node, 1, "dft_length", 2 * (shape[dim] - 1) if real else shape[dim])
    whole = length // 2 + 1 if real else length
    values = window(node, values, {rank - 2: (0, min(shape[dim], whole))})
    given = node.shape(values)[rank - 2]
    if real and (parts != 2 or length < 1):
        raise node.invalid(f"the input {show(shape)} holds no half of the frequencies")
    lead = node.shape(values)[: rank - 2]
    flat = node.reshape(values, (*lead, given * parts))
    if real:
        matrix, kept, width = _half_matrix(given, length), length, 1
    else:
        kept, width = (length // 2 + 1 if onesided else length), 2
        matrix = _matrix(given, length, parts, kept, inverse=inverse)
    rows = flat if lead else node.reshape(flat, (1, given * parts))
    result = node.emit("matmul", [rows, _constant(node, matrix, dtype)])
    result = node.reshape(result, (*lead, kept, width))
    return transposed(node, result, [order.index(d) for d in range(rank)])


def _onnx_stft(node: OnnxNode) -> str:
    """Transforms of pieces of a signal, each times a window."""
    signal, weights = node.input(0), node.optional(2)
    shape, dtype = node.shape(signal), node.type(signal).dtype
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) != 3 or shape[2] not in (1, 2):
        raise node.invalid(f"the signal is {show(node.shape(signal))}")
    batch, samples, parts = shape
    step = _length(node, 1, "frame_step", 1)
    default = samples if weights is None else node.shape(weights)[0]
    length = _length(node, 3, "frame_length", default)
    if length > samples or (weights is not None and node.shape(weights) != (length,)):
        raise node.invalid(f"a frame of {length} in {samples} samples, or for another window")
    frames = 1 + (samples - length) // step
    places = np.arange(frames, dtype=np.int64)[:, None] * step + np.arange(length)
    node.reserve(f"{places.size} positions", places.nbytes)
    pieces = node.emit("gather", [node.reshape(signal, shape), node.constant(places)], axis=1)
    if weights is not None:
        pieces = node.emit("mul", [pieces, node.reshape(weights, (length, 1))])
    kept = length // 2 + 1 if node.integer("onesided", 1) else length
    matrix = _matrix(length, length, parts, kept, inverse=False)
    rows = node.reshape(pieces, (batch, frames, length * parts))
    result = node.emit("matmul", [rows, _constant(node, matrix, dtype)])
    return node.reshape(result, (batch, frames, kept, 2))


def _onnx_mel_weight_matrix(node: OnnxNode) -> str:
    """(frequencies, bins): triangles whose corners are evenly apart on the mel scale."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    numbers = [node.static(position, name) for position, name in enumerate(names)]
    known = [float(number.item()) for number in numbers if number is not None and number.size == 1]
    dtype = ONNX_TYPES.get(node.integer("output_datatype", 1))
    if len(known) != len(names) or dtype is None:
        raise node.invalid(f"{', '.join(names)} are not five numbers")
    bins, length, rate = int(known[0]), int(known[1]), known[2]
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in known[3:])
    mels = np.arange(bins + 2) * (high - low) / (bins + 2) + low
    hertz = 700 * (10 ** (mels / 2595) - 1)
    corners = ((length + 1) * hertz // rate).astype(np.int64)
    matrix = np.zeros((length // 2 + 1, bins))
    if bins < 1 or corners.min() < 0 or corners.max() >= len(matrix):
        raise node.invalid(f"{bins} bins from {known[3]} to {known[4]} Hz of {len(matrix)} points")
    for column, (left, centre, right) in enumerate(
        zip(corners[:-2], corners[1:-1], corners[2:], strict=True)
    ):
        rising, falling = np.arange(left, centre), np.arange(centre, right)
        matrix[rising, column] = (rising - left) / max(centre - left, 1)
        matrix[centre, column] = 1
        matrix[falling, column] = (right - falling) / max(right - centre, 1)
    return _constant(node, matrix, dtype)


RULES = (
    OnnxRule("DFT", _onnx_dft, limits="work grows with the square of the length"),
    OnnxRule("STFT", _onnx_stft, limits="work grows with the square of a frame"),
    OnnxRule("MelWeightMatrix", _onnx_mel_weight_matrix),
)
