"""Random numbers of a stated seed: the ones that ONNX Runtime's first run draws.

They are constants of the compiled model, and so each run gives the same. ONNX Runtime draws with
the C++ library's default engine and distributions, whose algorithms are written down here: a
multiplicative generator modulo 2^31 - 1 (Park and Miller, 1988), and Marsaglia's polar method.
Without a seed the numbers would have to differ from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.cast import ONNX_TYPES
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import Shape
from tilewright.compiler.sizes import OpenSizeError, is_open

_MODULUS, _FACTOR = 2**31 - 1, 16807


class Engine:
    """The engine of one node."""

    def __init__(self, seed: int) -> None:
        self._state = seed % _MODULUS or 1

    def draws(self, count: int) -> np.ndarray:
        """The next integers from 1 to 2^31 - 2."""
        found = np.array([self._state * _FACTOR % _MODULUS], np.uint64)
        step = _FACTOR
        while len(found) < count:  # as many again, that many steps further
            found = np.concatenate([found, found * np.uint64(step) % np.uint64(_MODULUS)])
            step = step * step % _MODULUS
        self._state = int(found[count - 1]) if count else self._state
        return found[:count]

    def fractions(self, count: int, dtype: np.dtype) -> np.ndarray:
        """The next numbers from 0 to 1, the latter excluded."""
        span = dtype.type(_MODULUS - 1)
        if dtype == np.float32:
            parts = (self.draws(count) - 1).astype(dtype) / span
        else:
            low, high = (self.draws(2 * count) - 1).astype(dtype).reshape(count, 2).T
            parts = (low + high * span) / (span * span)
        below: np.ndarray = np.minimum(parts, np.nextafter(dtype.type(1), dtype.type(0)))
        return below

    def normal(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Numbers of a normal distribution with mean 0 and deviation 1."""
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


def _drawn(node: OnnxNode, shape: Shape, default: DType, normal: bool) -> str:
    number = node.integer("dtype", 0)
    dtype = ONNX_TYPES.get(number, default) if number else default
    if (number and number not in ONNX_TYPES) or not dtype.is_float:
        raise node.invalid(f"random numbers of the type {number or default}")
    if any(is_open(extent) for extent in shape):
        raise OpenSizeError("how many random numbers are drawn")
    count = prod(shape)
    node.reserve(f"{count} random numbers", count * 8)
    engine = Engine(int(node.number("seed")))
    kind = np.dtype("float64" if dtype is DType.FLOAT64 else "float32")
    if normal:
        values = engine.normal(count, kind) * kind.type(node.number("scale", 1.0))
        values = values + kind.type(node.number("mean", 0.0))
    else:
        low, high = kind.type(node.number("low", 0.0)), kind.type(node.number("high", 1.0))
        values = engine.fractions(count, kind) * (high - low) + low
    return node.constant(to_memory(values.reshape(shape), dtype), dtype)


def _stated(node: OnnxNode, normal: bool) -> str:
    return _drawn(node, node.ints("shape") or (), DType.FLOAT32, normal)


def _like(node: OnnxNode, normal: bool) -> str:
    """Of the shape, and if none is stated of the type, of the operand."""
    kind = node.type(node.input(0))
    return _drawn(node, kind.shape, kind.dtype, normal)


def _rule(op_type: str, emit: Callable[..., str], normal: bool) -> OnnxRule:
    limits = "a seed is stated; each run draws the same numbers"
    return OnnxRule(op_type, partial(emit, normal=normal), limits=limits, needs=("seed",))


RULES = (
    _rule("RandomNormal", _stated, True),
    _rule("RandomNormalLike", _like, True),
    _rule("RandomUniform", _stated, False),
    _rule("RandomUniformLike", _like, False),
)
