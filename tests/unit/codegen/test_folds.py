"""Reductions of more than sums, and extrema with NaNs, against the meaning of nests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernels import WIDTHS, run_nest_code, width
from tests.nests.evaluate import run_nest
from tests.nests.parse import parse_nest
from tests.nests.verify import verify_nest
from tests.unit.codegen.checks import agree, kernel, numbers
from tests.unit.loops import nests
from tilewright.compiler.loops.expr import Accumulator, Combiner, Role, Tensor
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, Store, Tile
from tilewright.compiler.loops.text import print_nest

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")


FORMS = ("one by one", "along lanes", "in partial accumulators", "lanes along rows", "tile of rows")


@given(
    st.sampled_from(nests.FOLDS),
    st.sampled_from(FORMS),
    st.integers(1, 9),
    st.integers(1, 70),
    st.sampled_from(WIDTHS),
    st.booleans(),
)
@settings(max_examples=examples(60))
def test_folds(name: str, form: str, rows: int, depth: int, bits: int, started: bool) -> None:
    """Code joins in another order than the evaluator: exact for argmax, rounded for the others."""
    lanes, x = bits // 32, Tensor("x", (rows, depth))
    m, k = Axis("m", rows), Axis("k", depth)
    fold, items = nests.fold_items(name, x)
    along = {"unroll": (Tile(k, lanes),), "vector": k}
    fields: dict[str, Any] = {
        "one by one": {},
        "along lanes": {"reduce": (Tile(k, 2 * lanes),), **along},
        "in partial accumulators": {"reduce": (Tile(k, 4 * lanes),), **along, "partial": (k,)},
        "lanes along rows": {"unroll": (Tile(m, lanes),), "vector": m},
        "tile of rows": {"reduce": (Tile(k, 3),), "unroll": (Tile(m), Tile(k))},
    }[form]
    if started:
        fields["init"] = nests.fold_start(name)
    nest = nests.folding(fold, items, x, **fields)
    verify_nest(nest)
    assert parse_nest(print_nest(nest)) == nest
    values = numbers(rows, depth)
    found = run_nest_code(nest, width(bits), values.ravel())
    whole = [values.ravel(), *map(np.zeros_like, found)]
    run_nest(nest, whole)
    for code, meaning in zip(found, whole[1:], strict=True):
        np.testing.assert_allclose(code, meaning, rtol=2e-5, atol=0 if name == "argmax" else 2e-4)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("combiner", [Combiner.MAX, Combiner.MIN])
def test_nan_anywhere_is_the_extremum(combiner: Combiner, bits: int) -> None:
    """In each lane, in each accumulator, first and last, whatever follows it."""
    lanes, depth = bits // 32, 41
    m, k = Axis("m", depth), Axis("k", depth)
    x, y = Tensor("x", (depth, depth)), Tensor("y", (depth,), role=Role.OUTPUT)
    compute = Compute(
        (Store(y[m], Accumulator()),),
        x[m, k],
        combiner,
        reduce=(Tile(k, 2 * lanes),),
        unroll=(Tile(k, lanes),),
        vector=k,
        partial=(k,),
    )
    values = numbers(depth, depth)
    np.fill_diagonal(values, np.nan)
    (found,) = agree(kernel((x, y), For(m, 1, (compute,))), bits, values)
    assert np.isnan(found).all()


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("combiner", [Combiner.SUM, Combiner.MAX, Combiner.PRODUCT])
def test_unrolled_lanes_beyond_the_last_element_do_not_count(combiner: Combiner, bits: int) -> None:
    lanes = bits // 32
    m, k = Axis("m", 3), Axis("k", 2 * lanes + 1)
    x, y = Tensor("x", (3, k.extent)), Tensor("y", (3,), role=Role.OUTPUT)
    compute = Compute(
        (Store(y[m], Accumulator()),), x[m, k], combiner, unroll=(Tile(k, lanes),), vector=k
    )
    values = np.where(numbers(3, k.extent) > 0, -2, -1).astype(np.float32)  # exact products
    agree(kernel((x, y), For(m, 1, (compute,))), bits, values)
