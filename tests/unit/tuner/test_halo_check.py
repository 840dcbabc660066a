"""What the sandbox asks of an output's halo."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import blocked, strides
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec
from tilewright.compiler.runtime.packing import pack
from tilewright.tuner.measure.batch_session import _halo_is_zero

SHAPE, HALO, LAYOUT = (1, 24, 3, 3), ((0, 0), (0, 0), (1, 1), (1, 1)), blocked(4, 1, 16)
SPEC = BufferSpec(
    "out",
    BufferRole.OUTPUT,
    DType.FLOAT32,
    SHAPE,
    str(LAYOUT),
    HALO,
    strides(SHAPE, LAYOUT, HALO)[1] * DType.FLOAT32.bytes,
)


@pytest.fixture
def output() -> np.ndarray:
    """A right answer as (blocks, rows, columns, lanes): 2 blocks of 16 channels, 8 unused."""
    return pack(np.ones(SHAPE, np.float32), SHAPE, LAYOUT, HALO).reshape(2, 5, 5, 16)


def test_zeros_pass(output: np.ndarray) -> None:
    assert _halo_is_zero(SPEC, output.reshape(-1))


def test_unused_lanes_are_nobodys(output: np.ndarray) -> None:
    output[1, ..., 8:] = np.nan
    assert _halo_is_zero(SPEC, output.reshape(-1))


@pytest.mark.parametrize("place", [(0, 0, 2, 0), (0, 4, 4, 15), (1, 2, 0, 7), (1, 2, 4, 7)])
def test_anything_else_in_the_halo_fails(
    output: np.ndarray, place: tuple[int, int, int, int]
) -> None:
    output[place] = np.nan
    assert not _halo_is_zero(SPEC, output.reshape(-1))
