"""Nests of one stage with random small integers, run as code and by their meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.kernels import run_nest_code, width
from tests.nests.evaluate import pack_tensor, run_nest
from tilewright.compiler.loops.expr import Tensor
from tilewright.compiler.loops.nest import LoopNest, Node, Stage

Array = np.ndarray[Any, Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).integers(-4, 5, shape).astype(np.float32)


def kernel(buffers: Sequence[Tensor], *body: Node, scratch: Sequence[Tensor] = ()) -> LoopNest:
    return LoopNest("k", tuple(buffers), tuple(scratch), (Stage("main", body),))


def agree(nest: LoopNest, bits: int, *inputs: Array, seed: int = 0) -> list[Array]:
    """Check code against meaning; returns the code's output, in physical form."""
    packed = [pack_tensor(t, a) for t, a in zip(nest.buffers, inputs, strict=False)]
    random = np.random.default_rng(seed)
    found = run_nest_code(nest, width(bits), *packed, random=random)
    whole = [*packed]
    for tensor in nest.buffers[len(packed) :]:
        # the poison of `run_nest_code`: unwritten bytes must agree too
        raw = np.full(tensor.bytes, 0xFF, np.uint8)
        whole.append(raw.view(tensor.dtype.numpy))
    run_nest(nest, whole)
    for code, meaning in zip(found, whole[len(packed) :], strict=True):
        np.testing.assert_array_equal(code, meaning)
    return found
