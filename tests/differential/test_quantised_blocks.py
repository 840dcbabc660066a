"""QuantizeLinear and DequantizeLinear with a scale for each block, against onnx.reference."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.differential.reference import evaluator
from tests.differential.test_quantised import BYTES, BYTES_TARGET, Model
from tilewright.compiler.api import compile_model
from tilewright.compiler.driver import load_graph, optimise
from tilewright.compiler.mode import Mode

KINDS = (*BYTES, np.int16, np.uint16)


def blocked(m: Model, *, whole: bool) -> list[str]:
    """Quantised and dequantised along any axis; unless `whole`, the last block may be shorter."""
    kind, block, shape = m.pick(*KINDS), m.extent(2, 9), [m.extent(1, 6) for _ in range(3)]
    axis = m.extent(-3, 2)
    shape[axis] = block * m.extent(1, 4) - (0 if whole else m.extent(0, block - 1))
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // block)
    limits = np.iinfo(kind)
    x = m.random.standard_normal(shape) * m.pick(0.0, 1.0, 9.0)
    m.input("x", x.astype(np.float32))
    scale = m.scale("s", 3.0 / (int(limits.max) - int(limits.min)), *blocks)
    zeros = m.random.integers(limits.min, limits.max + 1, blocks).astype(kind)
    attrs = {"axis": axis, "block_size": block}
    if kind is np.uint8 and m.random.integers(2):
        stored = m("QuantizeLinear", "x", scale, **attrs)
        return [stored, m("DequantizeLinear", stored, scale, **attrs)]
    zero = m.constant("z", zeros)
    stored = m("QuantizeLinear", "x", scale, zero, **attrs)
    return [stored, m("DequantizeLinear", stored, scale, zero, **attrs)]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("whole", [True, False])
def test_blocks_of_any_size(whole: bool, number: int) -> None:
    m = Model(np.random.default_rng(zlib.crc32(f"{whole} {number}".encode())))
    outputs = blocked(m, whole=whole)
    proto = m.proto()
    proto.graph.output[0].name = outputs[0]
    proto.graph.output.add().name = outputs[1]
    expected = evaluator(proto).run(None, m.feeds)
    for found, wanted in zip(compile_model(proto).run(m.feeds), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_scales_are_not_repeated() -> None:
    """Scales of blocks that divide the scaled array."""
    m = Model(np.random.default_rng(0))
    m.input("x", m.random.standard_normal((4, 96)).astype(np.float32))
    scale = m.scale("s", 0.02, 4, 3)
    stored = m("QuantizeLinear", "x", scale, axis=1, block_size=32)
    m("DequantizeLinear", stored, scale, axis=1, block_size=32)
    graph = optimise(load_graph(m.proto()), Mode(BYTES_TARGET))
    assert max(array.size for array in graph.constants.values()) == 12
