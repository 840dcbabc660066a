"""Products with weights of a few bits, unpacked in registers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernels import WIDTHS, run_workload, width
from tests.unit.schedule.problems import block_matmul, matmul
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.schedule.templates.blocks import TEMPLATE, analyse


@given(
    m=st.integers(1, 23),
    n=st.integers(2, 70),
    blocks=st.integers(1, 4),
    block=st.sampled_from([16, 32, 64, 256]),
    bits=st.sampled_from([2, 4, 8]),
    zero=st.booleans(),
    quantised=st.booleans(),
    lanes=st.sampled_from(WIDTHS),
    threads=st.sampled_from([1, 2]),
    data=st.data(),
)
@settings(max_examples=examples(30))
def test_any_size(
    m: int,
    n: int,
    blocks: int,
    block: int,
    bits: int,
    zero: bool,
    quantised: bool,
    lanes: int,
    threads: int,
    data: st.DataObject,
) -> None:
    """Rows and columns that fill no tile, any bits in every word; all of it between guard pages."""
    workload = block_matmul(m, n, blocks * block, bits, block, zero=zero, quantised=quantised)
    space = TEMPLATE.space(workload, Mode(width(lanes), threads))
    assert space is not None
    random = np.random.default_rng(n * m)
    arrays = []
    for name in workload.graph.inputs:
        kind = workload.graph.types[name]
        if kind.dtype.is_float:
            arrays.append(random.uniform(-1, 1, kind.shape).astype(np.float32))
        else:
            limits = np.iinfo(kind.dtype.numpy)
            drawn = random.integers(limits.min, limits.max, kind.shape, kind.dtype.numpy, True)
            arrays.append(drawn)
    inputs = dict(zip(workload.graph.inputs, arrays, strict=True))
    (expected,) = run_graph(workload.graph, inputs, float64=True)
    schedule = data.draw(st.sampled_from(space.points))
    got = run_workload(workload, schedule, width(lanes), arrays, random, threads)
    scale = np.abs(expected).max() + 1
    np.testing.assert_allclose(got / scale, expected / scale, atol=2e-5)


def test_a_product_with_one_row_reads_its_weights_in_few_streams() -> None:
    """The default has several sums at a time, and asks for no more columns than there are."""
    found = analyse(block_matmul(1, 768, 3072))
    assert found is not None
    assert found.tile is None
    assert (found.unpacked, found.steps) == (8, 4)
    assert found.work.rows == 8  # the sum of a word's factors, times the zero point


def test_one_row_of_bytes_reads_each_panel_in_order() -> None:
    """A step reads several vectors of words for a vector of columns: two would take turns."""
    vectors = {}
    for quantised in (False, True):
        one = block_matmul(1, 768, 768, quantised=quantised)
        space = TEMPLATE.space(one, Mode(width(512)))
        assert space is not None
        vectors[quantised] = space.default.integer("vectors")
        found = analyse(one)
        assert found is not None and found.interleaved == quantised
    assert vectors[True] == 1 < vectors[False]


def test_rows_share_what_is_unpacked() -> None:
    space = TEMPLATE.space(block_matmul(64, 768, 768), Mode(width(512)))
    assert space is not None
    default = dict(space.default.choices)
    assert int(default["tile"]) >= 4
    assert space.default in space.points


@pytest.mark.parametrize("constant", [True, False])
def test_plain_weights_are_left_to_contractions(constant: bool) -> None:
    assert analyse(matmul(64, 768, 768, constant=constant)) is None
