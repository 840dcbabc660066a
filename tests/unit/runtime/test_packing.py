"""Packing against the definition of a layout, element by element."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, blocked, strides
from tilewright.compiler.runtime import packing
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec
from tilewright.compiler.runtime.packing import (
    aligned_empty,
    aligned_zeros,
    make_weight,
    pack,
    unpack,
)

LAYOUTS = ["row", "1 0", "0 1", "1/4 0 1%4", "0/3 1/4 0%3 1%4", "1/8 0 1/2%4 1%2", "0+3 1", "0 1%8"]


def by_definition(
    array: np.ndarray, layout: Layout, halo: tuple[tuple[int, int], ...]
) -> np.ndarray:
    steps, size = strides(array.shape, layout, halo)
    flat = np.zeros(size, array.dtype)
    for index in product(*map(range, array.shape)):
        position = 0
        for factor, step in zip(layout.resolved(array.ndim), steps, strict=True):
            digit = (index[factor.dim] + (halo[factor.dim][0] if halo else 0)) // factor.div
            position += step * (digit if factor.mod is None else digit % factor.mod)
        flat[position] = array[index]
    return flat


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 8)),
    layout=st.sampled_from(LAYOUTS).map(Layout.parse),
    halo=st.just(()) | st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * 2),
    dtype=st.sampled_from([DType.FLOAT32, DType.INT8, DType.INT64]),
)
@settings(max_examples=examples(200))
def test_packing_follows_the_definition(
    shape: tuple[int, int], layout: Layout, halo: tuple[tuple[int, int], ...], dtype: DType
) -> None:
    if str(layout) == "0 1%8" and halo:  # a ring of 8: its elements collide with a halo
        halo = ()
    array = np.arange(1, 1 + shape[0] * shape[1]).reshape(shape).astype(dtype.numpy)
    buffer = pack(array, shape, layout, halo, dtype)
    assert buffer.ctypes.data % 64 == 0
    np.testing.assert_array_equal(buffer, by_definition(array, layout, halo))
    block = aligned_zeros(buffer.nbytes + 64)
    pack(array, shape, layout, halo, dtype, block[64:])
    np.testing.assert_array_equal(block[64:].view(dtype.numpy), buffer)
    assert not block[:64].any()
    np.testing.assert_array_equal(unpack(buffer, shape, layout, halo, dtype), array)
    np.testing.assert_array_equal(unpack(buffer.view(np.uint8), shape, layout, halo, dtype), array)


def test_a_convolution_layout_with_a_halo_and_channels_that_do_not_divide() -> None:
    array = np.random.default_rng(0).standard_normal((2, 20, 3, 4)).astype(np.float32)
    layout, halo = blocked(4, 1, 16), ((0, 0), (0, 0), (1, 2), (1, 1))
    buffer = pack(array, array.shape, layout, halo)
    image = buffer.reshape(2, 2, 6, 6, 16)
    np.testing.assert_array_equal(image[1, 1, 1:4, 1:5, :4], array[1, 16:].transpose(1, 2, 0))
    assert not image[:, 1, ..., 4:].any()
    assert not image[:, :, 0].any()
    assert not image[..., 0, :].any()
    np.testing.assert_array_equal(unpack(buffer, array.shape, layout, halo), array)


def test_both_ways_of_packing_agree() -> None:
    array = np.random.default_rng(1).standard_normal((5, 24)).astype(np.float32)
    layout, halo = Layout.parse("1/8 0 1%8"), ((1, 1), (8, 0))
    slow = np.zeros(strides(array.shape, layout, halo)[1], np.float32)
    slow[packing._positions(array.shape, layout, halo)] = array
    np.testing.assert_array_equal(pack(array, array.shape, layout, halo), slow)


def test_scalars_and_empty_arrays() -> None:
    assert pack(np.float32(3).reshape(()), (), ROW_MAJOR).tolist() == [3.0]
    assert unpack(np.array([3], np.float32), (), ROW_MAJOR).shape == ()
    assert pack(np.empty((0, 4), np.float32), (0, 4), ROW_MAJOR).size == 0


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected an array of shape \(2, 3\)"):
        pack(np.zeros((3, 2), np.float32), (2, 3), ROW_MAJOR)
    with pytest.raises(ValueError, match="expected 6 elements"):
        unpack(np.zeros(5, np.float32), (2, 3), ROW_MAJOR)
    with pytest.raises(ValueError, match="takes 24 bytes, not 20"):
        pack(np.zeros((2, 3), np.float32), (2, 3), ROW_MAJOR, out=aligned_zeros(20))


def weight(shape: tuple[int, ...], layout: Layout, **more: object) -> BufferSpec:
    dtype = DType(str(more.pop("dtype", "float32")))
    size = strides(shape, layout)[1] * dtype.bytes
    return BufferSpec("w", BufferRole.WEIGHT, dtype, shape, str(layout), (), size, 0, **more)  # type: ignore[arg-type]


def test_a_transformed_weight() -> None:
    """Winograd's U = G w G^T for each pair of channels, in float64 before the last rounding."""
    g = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))
    source = np.random.default_rng(2).standard_normal((6, 5, 3, 3)).astype(np.float32)
    spec = weight((4, 4, 6, 5), Layout.parse("0 1 3 2"), einsum="xk,oikl,yl->xyoi", matrices=(g, g))
    packed = unpack(make_weight(spec, source), spec.shape, spec.parsed_layout())
    matrix = np.array(g)
    for o, i in product(range(6), range(5)):
        expected = matrix @ source[o, i].astype(np.float64) @ matrix.T
        np.testing.assert_array_equal(packed[:, :, o, i], expected.astype(np.float32))


def test_a_weight_in_parts() -> None:
    """Sums and differences of the quadrants of a matrix; the buffer's description as JSON."""
    source = np.random.default_rng(2).standard_normal((6, 8)).astype(np.float32)
    spec = weight(
        (2, 3, 4),
        Layout.parse("0 2 1"),
        einsum="sz,zkn->skn",
        matrices=(((1.0, 0.0, 0.0, 1.0), (0.0, -1.0, 1.0, 0.0)),),
        parts=(2, 2),
    )
    spec = BufferSpec.from_json(spec.to_json())
    packed = unpack(make_weight(spec, source), spec.shape, spec.parsed_layout())
    np.testing.assert_array_equal(packed[0], source[:3, :4] + source[3:, 4:])
    np.testing.assert_array_equal(packed[1], source[3:, :4] - source[:3, 4:])
    with pytest.raises(ValueError, match=r"\(6, 7\) does not divide into parts \(2, 2\)"):
        make_weight(spec, source[:, :7])


@pytest.mark.parametrize("layout", ["1/4 0 2 1%4", "1/8 0 2 1%8", "0 2 1", "1/4 0 2+3 1%4"])
def test_sums_of_parts_round_as_those_in_float64(layout: str) -> None:
    """With and without rows that a layout rounds up, and into memory that is given."""
    rng = np.random.default_rng(5)
    exponents = rng.integers(-40, 40, (24, 10))
    source = np.ldexp(rng.standard_normal((24, 10)), exponents).astype(np.float32)
    rows = ((1.0, 0, 0, 1.0), (0, -1.0, 1.0, 0), (0, 1.0, 0, 0), (1.0, 0, -1.0, 0))
    spec = weight(
        (4, 12, 5), Layout.parse(layout), einsum="sz,zkn->skn", matrices=(rows,), parts=(2, 2)
    )
    out = aligned_zeros(strides(spec.shape, spec.parsed_layout())[1] * 4)
    packed = unpack(make_weight(spec, source, out), spec.shape, spec.parsed_layout())
    quarters = source.astype(np.float64).reshape(2, 12, 2, 5).swapaxes(1, 2).reshape(4, 12, 5)
    expected = np.einsum("sz,zkn->skn", np.array(rows), quarters).astype(np.float32)
    np.testing.assert_array_equal(packed, expected)
    again = make_weight(spec, source)
    np.testing.assert_array_equal(again.view(np.uint8), out)


def test_a_weight_rounded_to_bfloat16() -> None:
    source = np.random.default_rng(3).standard_normal(4096).astype(np.float32)
    source[:3] = [np.inf, np.nan, 1 + 2**-8]
    packed = make_weight(weight((4096,), ROW_MAJOR, dtype="bfloat16"), source)
    np.testing.assert_array_equal(
        packed.view(ml_dtypes.bfloat16).astype(np.float32),
        source.astype(ml_dtypes.bfloat16).astype(np.float32),
    )


@pytest.mark.parametrize("make", [aligned_empty, aligned_zeros])
def test_memory_is_aligned(make: object) -> None:
    for size in (0, 1, 63, 64, 65, 100_000):
        block = make(size)  # type: ignore[operator]
        assert block.nbytes == size
        # NumPy does not define the address of an array without elements
        assert not size or block.ctypes.data % 64 == 0
