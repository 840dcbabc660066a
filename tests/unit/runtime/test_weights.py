"""Packed weights in memory and in a file: the same bytes at the same offsets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import Layout, strides
from tilewright.compiler.runtime import weight_file
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec
from tilewright.compiler.runtime.weight_file import WeightFile
from tilewright.compiler.runtime.weights import PackedWeights, WeightBlock

CAPACITY = 1 << 20

Make = Callable[[], PackedWeights]


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "memory":
        return lambda: WeightBlock(CAPACITY)
    return lambda: WeightFile(tmp_path / "weights")


def spec(shape: tuple[int, ...], layout: str = "row") -> BufferSpec:
    size = strides(shape, Layout.parse(layout))[1] * 4
    return BufferSpec("w", BufferRole.WEIGHT, DType.FLOAT32, shape, layout, (), size, 0)


def draw(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_each_weight_is_at_its_offset(make: Make) -> None:
    weights = make()
    plain, turned, odd = draw((40, 30)), draw((40, 30), 1), draw((7,), 2)
    first = weights.add(spec((40, 30)), plain)
    second = weights.add(spec((40, 30), "1 0"), turned)
    third = weights.add(spec((7,)), odd)
    early = weights.built()
    fourth = weights.add(spec((6, 3), "0/4 1 0%4"), draw((6, 3)))
    built = weights.built()
    assert (first, second, third, fourth) == (0, 4800, 9600, 9664)
    assert early.nbytes == 9664 and built.nbytes == weights.bytes == 9664 + 128
    for view in (early, built):
        floats = view.view(np.float32)
        np.testing.assert_array_equal(floats[:1200], plain.reshape(-1))
        np.testing.assert_array_equal(floats[1200:2400], turned.T.reshape(-1))
        np.testing.assert_array_equal(floats[2400:2407], odd)
        assert not floats[2407:2416].any()
    blocks = built.view(np.float32)[2416:2440].reshape(2, 3, 4)
    assert not blocks[1, :, 2:].any(), "rounded up to whole blocks"


def test_equal_forms_are_stored_once_whatever_they_come_from(make: Make) -> None:
    weights = make()
    array = draw((64, 48))
    offset = weights.add(spec((64, 48), "1 0"), array)
    end = weights.bytes
    assert weights.add(spec((64, 48), "1 0"), array) == offset
    assert weights.add(spec((64, 48), "1 0"), array.copy()) == offset
    assert weights.add(spec((48, 64)), np.ascontiguousarray(array.T)) == offset
    assert weights.bytes == end
    other = array.copy()
    other[63, 47] += 1  # where no sample need be
    assert weights.add(spec((64, 48), "1 0"), other) == end
    padded = draw((6, 3))
    after = weights.add(spec((6, 3), "0/4 1 0%4"), padded)
    form = weights.built()[after:].view(np.float32)[:24].reshape(2, 3, 4)
    assert not form[1, :, 2:].any(), "what was packed twice leaves zeros behind"


def test_an_array_that_took_the_place_of_another_is_packed(make: Make) -> None:
    """A number of an object is given again when the object is gone."""
    weights = make()
    for seed in range(40):
        offset = weights.add(spec((100,)), draw((100,), seed))
        assert offset == 448 * seed


def test_a_file_holds_the_bytes_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With buffers that are used again and again, and weights that are larger than all of them."""
    monkeypatch.setattr(weight_file, "AHEAD_BYTES", 3000)
    monkeypatch.setattr(weight_file, "LEAST_BUFFER_BYTES", 1024)
    block, file = WeightBlock(CAPACITY), WeightFile(tmp_path / "weights")
    rng = np.random.default_rng(3)
    for number in range(60):
        shape = (int(rng.integers(1, 40)), int(rng.integers(1, 40)))
        layout = ("row", "1 0", "1/8 0 1%8")[number % 3]
        array = draw(shape, number // 2)
        assert file.add(spec(shape, layout), array) == block.add(spec(shape, layout), array)
    said = file.finish()
    file.close()
    data = (tmp_path / "weights").read_bytes()
    assert data == block.built().tobytes()
    assert said == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_nothing_is_a_view_of_nothing(make: Make) -> None:
    assert make().built().nbytes == 0


def test_what_was_built_before_is_in_the_memory_of_what_is_built_now(make: Make) -> None:
    """Each stage of a detector is a program, and its few weights follow those of the others."""
    weights = make()
    weights.add(spec((64, 48)), draw((64, 48)))
    first = weights.built()
    for seed in range(1, 40):
        weights.add(spec((7,)), draw((7,), seed))
        np.testing.assert_array_equal(weights.built()[-64:].view(np.float32)[:7], draw((7,), seed))
    assert np.shares_memory(first, weights.built())
