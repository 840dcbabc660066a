"""llama.cpp's input: the weights and the shape of the ONNX model."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.llama import llama
from benchmarks.llama_peer import LlamaShape, LlamaWeights, neighbours, q4_0
from benchmarks.quantized import weights_int4


def test_blocks_hold_the_same_numbers() -> None:
    """As ggml reads them: the low halves of 16 bytes, then the high ones, less 8, times float16."""
    random = np.random.default_rng(0)
    stored = random.integers(0, 256, (3, 2, 16)).astype(np.uint8)
    scales = random.uniform(-1, 1, (3, 2)).astype(np.float16).astype(np.float32)
    blocks = q4_0(stored, scales).reshape(3, 2, 18)
    factor = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    read = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1)
    in_order = np.stack([stored & 15, stored >> 4], axis=-1).reshape(3, 2, 32)
    np.testing.assert_array_equal(read, in_order)
    np.testing.assert_array_equal(factor[..., 0], scales)


def test_halves_of_a_head_become_neighbours() -> None:
    assert neighbours(8).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_the_shape_is_that_of_the_model() -> None:
    build = partial(
        llama,
        tokens=1,
        past=5,
        layers=2,
        hidden=64,
        heads=4,
        cached=2,
        intermediate=96,
        vocabulary=80,
    )
    shape = LlamaWeights(weights_int4(build, 4)).shape
    assert shape == LlamaShape(2, 64, 4, 2, 96, 80, 5)
    prefill = partial(build, tokens=3, past=0)
    assert LlamaWeights(weights_int4(prefill, 4)).shape.past == 0
