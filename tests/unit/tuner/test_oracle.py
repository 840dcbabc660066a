"""Inputs that references are made for."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.dtypes import DType
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.runtime.verify import compare, tolerance_for
from tilewright.tuner.measure import oracle
from tilewright.tuner.measure.oracle import DRAWS, make_reference


def _product(m: int = 4) -> Workload:
    make = Maker()
    return as_workload(make.graph(make("matmul", make.input("x", m, 8), make.input("w", 8, 16))))


def float64_product() -> Workload:
    make = Maker()
    a, b = (make.input(name, 8, 8, dtype=DType.FLOAT64) for name in "ab")
    return as_workload(make.graph(make("matmul", a, b)), ("b",))


def test_what_float64_is_compared_with_is_float64() -> None:
    """Rounded to float32, it would refuse every kernel: the tolerance is far below that."""
    made = make_reference(float64_product())
    a, b = (spec.draw() for spec in made.inputs)
    expected = np.load(io.BytesIO(made.expected))
    assert a.dtype == b.dtype == expected.dtype == np.float64
    assert compare(a @ b, expected) < made.tolerance / 1e4 < 1e-13
    assert compare((a @ b).astype(np.float32), expected) > made.tolerance


def test_what_float32_is_compared_with_is_float32() -> None:
    assert np.load(io.BytesIO(make_reference(_product()).expected)).dtype == np.float32


@pytest.mark.parametrize("draw", range(len(DRAWS)))
def test_no_draw_saturates_what_follows_a_sum(draw: int) -> None:
    """A ReLU6 of large sums is 0 or 6, and float32's errors of large sums exceed any tolerance near
    6.

    A float32 sum of the inputs, term after term as in kernels, is far within the tolerance.
    """
    make = Maker()
    x, w = make.input("x", 1, 96, 14, 14), make.input("w", 576, 96, 1, 1)
    workload = as_workload(make.graph(make("clip", make("conv", x, w), min=0.0, max=6.0)))
    reference = make_reference(workload, draw)
    drawn = [spec.draw() for spec in reference.inputs]
    assert reference.inputs[0].distribution is DRAWS[draw]
    expected = np.load(io.BytesIO(reference.expected))
    assert np.mean((expected > 0.0) & (expected < 6.0)) > 0.3
    sums = np.zeros((576, 14 * 14), np.float32)
    for channel in range(96):
        sums += drawn[1][:, channel, 0] * drawn[0][0, channel].reshape(1, -1)
    assert compare(sums.clip(0, 6).reshape(expected.shape), expected) < reference.tolerance / 10


BYTES = (DType.UINT8, DType.INT8)
PAIRS = (DType.INT16, DType.INT16)


def quantised_product(
    scaled: bool = True, types: tuple[DType, DType] = BYTES, depth: int = 40
) -> Workload:
    make = Maker()
    a, b = make.input("a", 32, depth, dtype=types[0]), make.input("b", depth, 48, dtype=types[1])
    total = make("matmul", a, b, accumulator="int32")
    if not scaled:
        return as_workload(make.graph(total), ("b",))
    value = make("mul", make("cast", total, to="float32"), make.input("scale", 48))
    moved = make("add", make("round", value), make.constant("zero", 128.0))
    return as_workload(make.graph(make("cast", moved, to="uint8")), ("b", "scale"))


@pytest.mark.parametrize("draw", range(len(DRAWS)))
@pytest.mark.parametrize(("types", "depth"), [(BYTES, 40), (PAIRS, 2), (PAIRS, 400)])
def test_integers_that_are_multiplied_have_any_value(
    types: tuple[DType, DType], depth: int, draw: int
) -> None:
    """A kernel that saturates, or misreads the sign, cannot pass; nor do all outputs saturate."""
    for scaled in (False, True):
        made = make_reference(quantised_product(scaled, types, depth), draw)
        for spec, dtype in zip(made.inputs[:2], types, strict=True):
            drawn, limits = spec.draw(), np.iinfo(dtype.numpy)
            assert drawn.dtype == dtype.numpy
            assert drawn.min() < limits.min * 0.9 + 1 and drawn.max() > limits.max * 0.9
    output = np.load(io.BytesIO(made.expected))
    assert len(np.unique(output)) > 20
    assert ((output == 0) | (output == 255)).mean() < 0.5


def test_what_is_rounded_may_be_one_quantum_off() -> None:
    made = make_reference(quantised_product())
    expected = np.load(io.BytesIO(made.expected))
    place = np.unravel_index(expected.argmin(), expected.shape)
    for apart, right in ((0, True), (1, True), (2, False)):
        output = expected.copy()
        output[place] += apart
        assert (compare(output, expected) <= made.tolerance) == right
    assert make_reference(quantised_product(scaled=False)).tolerance == 0.0


def requantised(inner: str = "round") -> Workload:
    """Numbers as bytes in the middle of a kernel: rounded values go on in a normalisation."""
    make = Maker()
    x = make.input("x", 64, 96)
    scaled = make("mul", x, make.constant("step", np.float32(20.0)))
    byte = make("cast", make(inner, scaled), to="int8")
    back = make("mul", make("cast", byte, to="float32"), make.constant("back", np.float32(0.05)))
    return as_workload(make.graph(back), ())


def test_what_is_rounded_on_the_way_may_fall_either_way_at_a_tie() -> None:
    made = make_reference(requantised())
    expected = np.load(io.BytesIO(made.expected))
    quantum = 0.05 / np.abs(expected).max()
    assert quantum < made.tolerance < 1.1 * quantum
    assert make_reference(requantised("exp")).tolerance < 0.1 * quantum


def test_where_nothing_is_near_a_tie_the_tolerance_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "NEAR_TIE", 0.0)
    made = make_reference(requantised())
    assert made.tolerance == pytest.approx(tolerance_for(DType.FLOAT32), rel=1e-3)


def test_integers_that_floats_hold_are_drawn_as_such() -> None:
    """Another kernel rounded them: a number next to an integer would be truncated."""
    for offset, whole in ((124.0, True), (0.5, False)):
        make = Maker()
        moved = make("add", make.input("x", 64, 96), make.constant("zero", np.float32(offset)))
        workload = as_workload(make.graph(make("cast", moved, to="uint8")), ())
        (spec,) = make_reference(workload, 2).inputs
        drawn = spec.draw()
        assert drawn.dtype == np.float32
        assert bool((drawn == np.rint(drawn)).all()) == whole
        assert drawn.min() < -1 and drawn.max() > 1


def half_product(*, own: bool = False) -> Workload:
    """bfloat16 that is stored; `own`: also computed in, once the product is rounded."""
    make = Maker()
    a, b = (make.input(n, 32, 32, dtype=DType.BFLOAT16) for n in "ab")
    value = make("cast", make("matmul", a, b, accumulator="float32"), to="bfloat16")
    return as_workload(make.graph(make("exp", value) if own else value), ("b",))


def test_what_is_only_stored_in_16_bits_may_be_one_step_off() -> None:
    made = make_reference(half_product())
    expected = np.load(io.BytesIO(made.expected))
    place = np.unravel_index(np.abs(expected).argmax(), expected.shape)
    step = 2.0 ** (np.floor(np.log2(np.abs(expected[place]))) - 7)
    for apart, right in ((0, True), (1, True), (3, False)):
        output = expected.copy()
        output[place] += apart * step
        assert (compare(output, expected) <= made.tolerance) == right
    assert make_reference(half_product(own=True)).tolerance == 5e-2


def test_sums_of_halves_have_the_size_of_sums_of_floats() -> None:
    """They are not scaled like sums of bytes."""
    made = make_reference(half_product())
    assert 0.3 < float(np.load(io.BytesIO(made.expected)).std()) < 3.0
