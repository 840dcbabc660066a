"""Import of ONNX's random operators.

With a seed, the random numbers are constants of the compiled model, equal in each run to those of
ONNX Runtime's first run. Without a seed, they differ between runs (`compiler.ops.random_bits`).
ONNX Runtime uses the C++ library's default engine and distributions, whose algorithms are
implemented here: a multiplicative generator modulo 2^31 - 1 (Park and Miller, 1988), and
Marsaglia's polar method.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.ops.cast import ONNX_TYPES, cast_to, onnx_type_name
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.random_bits import RandomTensor
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import Shape, show
from tilewright.compiler.sizes import DynamicSizeError, is_dynamic

_MODULUS, _FACTOR = 2**31 - 1, 16807


class Engine:
    """The pseudo-random number generator of a node with a seed.

    Each call continues the sequence of numbers.
    """

    def __init__(self, seed: int) -> None:
        self._state = seed % _MODULUS or 1

    def draws(self, count: int) -> np.ndarray:
        """Return the next `count` uint64 integers, each from 1 to 2^31 - 2."""
        found = np.array([self._state * _FACTOR % _MODULUS], np.uint64)
        step = _FACTOR
        while len(found) < count:  # doubles the numbers, by jumping ahead
            found = np.concatenate([found, found * np.uint64(step) % np.uint64(_MODULUS)])
            step = step * step % _MODULUS
        self._state = int(found[count - 1]) if count else self._state
        return found[:count]

    def fractions(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Return `count` uniformly distributed numbers in [0, 1), in float32 or float64."""
        span = dtype.type(_MODULUS - 1)
        if dtype == np.float32:
            parts = (self.draws(count) - 1).astype(dtype) / span
        else:
            low, high = (self.draws(2 * count) - 1).astype(dtype).reshape(count, 2).T
            parts = (low + high * span) / (span * span)
        below: np.ndarray = np.minimum(parts, np.nextafter(dtype.type(1), dtype.type(0)))
        return below

    def normal(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Return `count` normally distributed numbers with mean 0 and standard deviation 1."""
        found: list[np.ndarray] = []
        missing = count
        while missing > 0:
            points = 2 * self.fractions(2 * missing, dtype).reshape(missing, 2) - 1
            radius = (points * points).sum(axis=1)
            inside = (radius <= 1) & (radius != 0)
            points, radius = points[inside], radius[inside][:, None]
            pairs = points * np.sqrt(-2 * np.log(radius) / radius)
            found.append(pairs[:, ::-1].reshape(-1))
            missing -= pairs.size
        return np.concatenate(found or [np.zeros(0, dtype)])[:count]


def _drawn(node: OnnxNode, shape: Shape, dtype: DType, normal: bool) -> str:
    """Emit random numbers of the node's normal or uniform distribution.

    With the attribute `seed`, they are a constant generated from it. Otherwise they differ between
    runs.

    Raises:
        InvalidModelError: if the type is not a float, the constant is too large, or an extent is
            negative.
        DynamicSizeError: if there is a seed and the shape is dynamic.
    """
    if not dtype.is_float:
        raise node.invalid(f"the element type of random numbers is {dtype}, expected a float")
    if any(not is_dynamic(extent) and extent < 0 for extent in shape):
        raise node.invalid(f"the shape is {show(shape)}, expected extents of at least 0")
    first, second = (
        (node.number("mean", 0.0), node.number("scale", 1.0))
        if normal
        else (node.number("low", 0.0), node.number("high", 1.0))
    )
    if "seed" not in node.attrs:
        drawn = RandomTensor(node, shape)
        values = drawn.normal(dtype) if normal else drawn.uniform(dtype)
        kind = node.type(values).dtype
        factor = node.scalar(second if normal else second - first, kind)
        moved = node.emit("mul", [values, factor])
        found = cast_to(node, node.emit("add", [moved, node.scalar(first, kind)]), dtype)
        if normal or first >= second:
            return found
        return node.emit("min", [found, node.constant(_largest_below(second, dtype), dtype)])
    if any(is_dynamic(extent) for extent in shape):
        raise DynamicSizeError(
            "attribute 'seed' fixes the random numbers, and their count is known at run time only"
        )
    count = prod(shape)
    node.reserve(f"{count} random numbers", count * 8)
    engine = Engine(int(node.number("seed")))
    form = np.dtype("float64" if dtype is DType.FLOAT64 else "float32")
    start, end = form.type(first), form.type(second)
    if normal:
        numbers = engine.normal(count, form) * end + start
    else:
        numbers = engine.fractions(count, form) * (end - start) + start
        if first < second:
            most = from_memory(_largest_below(second, dtype), dtype)
            numbers = np.minimum(numbers, most.astype(form))
    return node.constant(to_memory(numbers.reshape(shape), dtype), dtype)


def _largest_below(end: float, dtype: DType) -> np.ndarray:
    """Return the largest number of a type that is less than `end`, the excluded end of an interval.

    It bounds random numbers, which rounding could otherwise move to `end`.
    """
    with np.errstate(over="ignore"):
        nearest = to_memory(np.asarray(end), dtype)
    if float(from_memory(nearest, dtype)) < end:
        return nearest
    unsigned = np.dtype(f"uint{8 * dtype.bytes}")
    sign = 1 << 8 * dtype.bytes - 1
    bits = int(nearest.view(unsigned))
    # Floats are ordered like their bits; negative ones in reverse.
    below = sign + 1 if bits in (0, sign) else bits + (1 if bits > sign else -1)
    return np.asarray(below, unsigned).view(dtype.numpy)


def _of_type(node: OnnxNode, default: DType) -> DType:
    """Return the type that the attribute `dtype` states, or `default` if the attribute is missing.

    Raises:
        InvalidModelError: if it states an unknown type.
    """
    number = node.integer("dtype", 0)
    if number and number not in ONNX_TYPES:
        raise node.invalid(
            f"attribute 'dtype' is the element type {onnx_type_name(number)}, expected a float"
        )
    return ONNX_TYPES[number] if number else default


def _stated(node: OnnxNode, normal: bool) -> str:
    return _drawn(node, node.ints("shape") or (), _of_type(node, DType.FLOAT32), normal)


def _like(node: OnnxNode, normal: bool) -> str:
    """Import a random operator whose operand states the shape.

    The operand's element type is that of the result, unless the node has the attribute `dtype`.
    """
    kind = node.type(node.input(0))
    return _drawn(node, kind.shape, _of_type(node, kind.dtype), normal)


def _bernoulli(node: OnnxNode) -> str:
    """Import Bernoulli: 1 if a random number in [0, 1) is below the probability x, else 0.

    This is the definition in ONNX's text and reference. In the function body of the schema, which
    ONNX Runtime runs, x is the probability of 0.
    """
    x = node.input(0)
    kind = node.type(x)
    wide = DType.FLOAT64 if kind.dtype is DType.FLOAT64 else DType.FLOAT32
    drawn = _drawn(node, kind.shape, wide, normal=False)
    chosen = node.emit("less", [drawn, cast_to(node, x, wide)])
    return cast_to(node, chosen, _of_type(node, kind.dtype))


def _multinomial(node: OnnxNode) -> str:
    """Import Multinomial: sample classes from their unnormalised log-probabilities.

    The sampled class is the first one whose cumulative probability exceeds a random number; its
    index is the number of cumulative probabilities up to that number. The last cumulative
    probability may differ from 1 by rounding errors. The random number is therefore multiplied by
    the last cumulative probability, so that no class with the probability 0 is sampled.
    """
    shape = node.shape(node.input(0))
    if len(shape) != 2:
        raise node.invalid(f"the input is {show(shape)}, expected (batch, classes)")
    batch, classes = shape
    if classes == 0:
        raise node.invalid(f"the input is {show(shape)}, expected at least one class")
    shares = node.call("Softmax", cast_to(node, node.input(0), DType.FLOAT32), axis=1)
    sums = node.call("CumSum", shares, node.constant(np.array(1)))
    ends = node.reshape(part(node, sums, 1, 0, classes - 1), (batch, 1, classes - 1))
    samples = (batch, node.integer("sample_size", 1), 1)
    whole = node.reshape(part(node, sums, 1, classes - 1, 1), (batch, 1, 1))
    drawn = node.emit("mul", [_drawn(node, samples, DType.FLOAT32, normal=False), whole])
    passed = cast_to(node, node.emit("greater_or_equal", [drawn, ends]), DType.INT32)
    found = node.emit("reduce_sum", [passed], axes=(2,), keepdims=0)
    return cast_to(node, found, _of_type(node, DType.INT32))


def _rule(op_type: str, emit: Callable[..., str], **given: bool) -> OnnxRule:
    limits = "with a seed, every run gives the same numbers"
    return OnnxRule(op_type, partial(emit, **given), limits=limits)


RULES = (
    _rule("RandomNormal", _stated, normal=True),
    _rule("RandomNormalLike", _like, normal=True),
    _rule("RandomUniform", _stated, normal=False),
    _rule("RandomUniformLike", _like, normal=False),
    _rule("Bernoulli", _bernoulli),
    _rule("Multinomial", _multinomial),
)
