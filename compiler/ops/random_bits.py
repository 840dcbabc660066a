"""Random numbers without a seed, which differ between runs.

    %1: uint32[2] = random_key() {number=7}         64 bits, different at each call
    element i of a tensor = hash(%1, i)             computed independently of other elements

The hash is the finaliser of MurmurHash3, applied twice. Such a generator is called counter-based
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): its expression fuses with the
nodes that read it, and gives the same numbers for any number of threads. Normal numbers use the
transform of Box and Muller (1958).

Runs that are compared with NumPy's outputs fix the keys (`compiler.runtime.native`,
`pinned_random_keys`): a key is then a hash of the attribute `number`, as in the NumPy reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import integer
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.iota import counted
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.native import native
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.shapes import Shape, operand_count

_KEY = TensorType(DType.UINT32, (2,))
_ALL = (1 << 64) - 1
_SPLITMIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_MURMUR = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
_GOLDEN = 0x9E3779B9
"""2^32 divided by the golden ratio. The multiples of this number, modulo 2^32, are spread
evenly."""


def _infer_key(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 0)
    integer(attrs, "number")
    return _KEY


def _key_reference(_arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Compute a fixed key from the attribute `number`, for runs that are compared with NumPy.

    It applies the finaliser of SplitMix64, as in `native/random.c`.
    """
    key = integer(attrs, "number") + 1
    for shift, factor in _SPLITMIX:
        key = (key ^ (key >> shift)) * factor & _ALL
    key ^= key >> 31
    return np.array([key & 0xFFFFFFFF, key >> 32], np.uint32)


def _key_work(_types: Sequence[TensorType], attrs: Attrs) -> tuple[str, tuple[int, ...]]:
    return "random_key", (integer(attrs, "number"),)


class RandomTensor:
    """A generator of random tensors of one shape, which may be dynamic, for one ONNX node.

    Each method call emits the nodes of a new tensor.
    """

    def __init__(self, node: OnnxNode, shape: Shape) -> None:
        self._node = node
        key = node.emit("random_key", [], number=len(node.builder.types))
        self._key = [node.reshape(part(node, key, 0, place, 1), ()) for place in range(2)]
        self._index = node.reshape(counted(node, prod(shape), dtype=DType.UINT32), shape)
        self._words = 0

    def uniform(self, dtype: DType) -> str:
        """Emit random numbers in [0, 1): multiples of 2^-24, or of 2^-53 in float64."""
        node, high = self._node, self._bits(24)
        if dtype is not DType.FLOAT64:
            return self._scaled(cast_to(node, high, DType.FLOAT32), 2.0**-24)
        low = self._scaled(cast_to(node, self._bits(29), dtype), 2.0**-53)
        return node.emit("add", [self._scaled(cast_to(node, high, dtype), 2.0**-24), low])

    def normal(self, dtype: DType) -> str:
        """Emit normally distributed numbers, in float32 or float64.

        Their mean is 0 and their standard deviation 1.
        """
        node, first = self._node, self.uniform(dtype)
        kind = node.type(first).dtype
        above_zero = node.emit("sub", [node.scalar(1, kind), first])
        radius = node.emit("sqrt", [self._scaled(node.emit("log", [above_zero]), -2.0)])
        turn = self._scaled(self.uniform(dtype), 2 * pi)
        return node.emit("mul", [radius, node.emit("cos", [turn])])

    def _scaled(self, value: str, factor: float) -> str:
        number = self._node.scalar(factor, self._node.type(value).dtype)
        return self._node.emit("mul", [value, number])

    def _bits(self, count: int) -> str:
        """Emit `count` random bits per element, at most 31, as int32.

        The callers convert the result to floats, which is faster from int32 than from uint32.
        """
        return cast_to(self._node, self._shifted(self._word(), 32 - count), DType.INT32)

    def _word(self) -> str:
        """Emit 32 random bits per element, as uint32."""
        node, (low, high) = self._node, self._key
        self._words += 1
        place = node.emit("add", [self._times(self._index, _GOLDEN), low])
        salt = node.scalar(self._words * _GOLDEN & 0xFFFFFFFF, DType.UINT32)
        again = node.emit("bit_xor", [self._hashed(place), high])
        return self._hashed(node.emit("bit_xor", [again, salt]))

    def _hashed(self, word: str) -> str:
        """Emit a hash of each uint32 word.

        Every bit of the hash depends on all bits of the word.
        """
        for shift, factor in _MURMUR:
            word = self._node.emit("bit_xor", [word, self._shifted(word, shift)])
            word = self._times(word, factor)
        return self._node.emit("bit_xor", [word, self._shifted(word, 16)])

    def _shifted(self, word: str, by: int) -> str:
        return self._node.emit("shift_right", [word, self._node.scalar(by, DType.UINT32)])

    def _times(self, word: str, factor: int) -> str:
        return self._node.emit("mul", [word, self._node.scalar(factor, DType.UINT32)])


OPERATORS = (native("random_key", _infer_key, _key_reference, _key_work),)
