"""Prefetching of weights: the requests of all passes over a panel, together.

Each prefetch becomes an addition to the requested byte.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.kernels import HOST, LINE, Array
from tests.unit.schedule.problems import conv, matmul
from tilewright.compiler.codegen.backend import backend_of
from tilewright.compiler.codegen.cpu.lower import (
    lower_nest,
    scratch_layout,
    stage_extent,
    stage_symbol,
)
from tilewright.compiler.codegen.object import emit_object
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Role
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.runtime.packing import aligned_zeros
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.select import lower_schedule
from tilewright.compiler.sizes import Dimension, at, dynamic_size

QUESTION = re.compile(r"call void @llvm\.prefetch\.p0\(ptr (\S+), [^\n]*")
LANES = HOST.lanes(DType.FLOAT32)
WIDTH = 2 * max(LANES, LINE // 4)
"""Columns of a panel: whole lines."""
COMMON: dict[str, Choice] = {"vectors": WIDTH // LANES, "unroll": 2, "prefetch": "panel"}


def channels_last(workload: Workload) -> Workload:
    last = Layout((Factor(0), Factor(2), Factor(3), Factor(1)))
    image, *others = workload.inputs
    return replace(
        workload,
        inputs=(replace(image, layout=last), *others),
        output=replace(workload.output, layout=last, halo=()),
    )


def asked(workload: Workload, schedule: Schedule, *sizes: int, rows_that_gain: int = 2) -> Array:
    """How often each line of the weights is asked for, and of as many bytes behind them."""
    nest = lower_schedule(workload, schedule, Mode(HOST)).nest
    core = replace(HOST.core, prefetch_bytes=8192, prefetch_rows=rows_that_gain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.compiler.targets.target._core", lambda target: core)
        text = lower_nest(nest, HOST)
    text = QUESTION.sub(r"atomicrmw add ptr \1, i8 1 monotonic", text)
    library = backend_of(HOST).load([emit_object(text, HOST)])
    known = dict(zip((dimension.name for dimension in nest.sizes), sizes, strict=True))
    numbers = (ctypes.c_int64 * len(sizes))(*sizes)
    arrays = [aligned_zeros(2 * at(tensor.bytes, known)) for tensor in nest.buffers]
    pointers = (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])
    scratch = aligned_zeros(scratch_layout(nest)[1])
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)
    for number, stage in enumerate(nest.stages):
        run(library.address(stage_symbol(nest.name, number)))(
            pointers, scratch.ctypes.data, numbers, 0, at(stage_extent(stage), known)
        )
    library.close()
    (weights,) = (
        array
        for tensor, array in zip(nest.buffers, arrays, strict=True)
        if tensor.role is Role.WEIGHT and len(tensor.shape) > 1
    )
    counts: Array = weights.reshape(-1, LINE).sum(axis=1, dtype=np.int64)
    return counts


@pytest.mark.parametrize(
    ("rows", "most"),
    [(2 * 7, 1), (4 * 7, 1), (3 * 7 + 1, 1), (8 * 7, 2), (30 * 7 + 2, 16)],
    ids=lambda number: str(number),
)
def test_passes_ask_for_the_next_panel(rows: int, most: int) -> None:
    """Each line at least once; more often if a step's share is less than a line."""
    schedule = Schedule.of("gemm", order="lanes-outer", tile=7, **COMMON)
    check(asked(matmul(rows, 3 * WIDTH, 64), schedule), 64, most)


def test_rows_and_pixels_pass_over_all_taps() -> None:
    workload = channels_last(conv(LANES, channels=20, filters=3 * WIDTH, size=6))
    schedule = Schedule.of("direct", order="lanes-outer", tile=3, taps="loop", **COMMON)
    check(asked(workload, schedule), 3 * 3 * 20, 6)


def test_strassens_products_follow_each_other() -> None:
    schedule = Schedule.of("strassen", order="products-inner", tile=4, **COMMON)
    counts = asked(matmul(2 * 8 + 1, 2 * WIDTH, 128), schedule)
    check(counts, 64, 1, panels=7)


def test_passes_are_those_over_a_block_of_rows() -> None:
    """Each block passes over all panels of weights again."""
    schedule = Schedule.of("strassen", order="rows-outer", tile=4, **COMMON)
    depth = HOST.core.cache_bytes[1] // 1024
    counts = asked(matmul(512, 2 * WIDTH, depth), schedule)
    panel = depth // 2 * WIDTH * DType.FLOAT32.bytes // LINE
    assert counts[:panel].max() == 0
    assert counts[panel : 7 * panel].min() >= 1
    assert counts[8 * panel + panel // 4 :].max() == 0


ROWS = Dimension("s0", 0, 4096)


@pytest.mark.parametrize("rows", [2, 8])
def test_a_pass_alone_asks_for_its_own_panel(rows: int) -> None:
    """8 KiB ahead, whether the plan knows that there is one pass or not."""
    schedule = Schedule.of("gemm", order="lanes-outer", tile=8, **COMMON)
    counts = asked(matmul(dynamic_size(ROWS), 3 * WIDTH, 256), schedule, rows)
    np.testing.assert_array_equal(counts, asked(matmul(rows, 3 * WIDTH, 256), schedule))
    near, all_panels = 8192 // LINE, 3 * 256 * WIDTH * DType.FLOAT32.bytes // LINE
    assert near < all_panels // 3
    assert set(counts[:near]) == set(counts[all_panels + near :]) == {0}
    assert set(counts[near : all_panels + near]) == {1}


@pytest.mark.parametrize("rows", [16, 64, 4096])
def test_passes_share_a_panel_whatever_their_number(rows: int) -> None:
    """Each step has instructions for a pass alone: with more, a line is asked for in as many more
    steps as a share is smaller than that."""
    schedule = Schedule.of("gemm", order="lanes-outer", tile=8, **COMMON)
    counts = asked(matmul(dynamic_size(ROWS), 3 * WIDTH, 64), schedule, rows)
    check(counts, 64, 4 * -(-rows // 8))


def test_few_rows_alone_ask_for_nothing_ahead() -> None:
    """If the core reads them at the speed of the memory: it reads the same rows that it would
    prefetch."""
    schedule = Schedule.of("gemm", order="lanes-outer", tile=8, **COMMON)
    known = asked(matmul(2, 3 * WIDTH, 256), schedule, rows_that_gain=4)
    counts = asked(matmul(dynamic_size(ROWS), 3 * WIDTH, 256), schedule, 2, rows_that_gain=4)
    np.testing.assert_array_equal(counts, known)
    assert counts[: len(counts) // 2].min() == 1 and counts[len(counts) // 2 :].max() == 0


@pytest.mark.parametrize("rows", [7, 10, 15, 20, 23, 100])
def test_a_rest_leaves_the_next_panel_to_full_tiles(rows: int) -> None:
    """A short tail prefetches as a single pass does: for the rows that full tiles have brought
    near. One full tile before it is single, too."""
    schedule = Schedule.of("gemm", order="lanes-outer", tile=8, **COMMON)
    counts = asked(matmul(dynamic_size(ROWS), 3 * WIDTH, 256), schedule, rows)
    near, panel = 8192 // LINE, 256 * WIDTH * DType.FLOAT32.bytes // LINE
    full = rows // 8
    assert counts[:near].max() == 0
    assert set(counts[near:panel]) == {1 + (full == 1)}
    assert counts[panel : 3 * panel].min() >= 1 + (full > 0)
    if full < 2:
        assert counts[3 * panel + near :].max() == 0
    else:
        assert counts[3 * panel + near : 4 * panel].min() >= 1
        assert counts[4 * panel + panel // 8 :].max() == 0


def test_no_rows_ask_for_nothing() -> None:
    schedule = Schedule.of("gemm", order="lanes-outer", tile=8, **COMMON)
    assert asked(matmul(dynamic_size(ROWS), 3 * WIDTH, 64), schedule, 0).max() == 0


@pytest.mark.parametrize("rows", [16, 22, 61])
def test_the_last_pass_overlaps_the_one_before(rows: int) -> None:
    """Where there are always enough rows the last tile ends with them; it is a pass of its own."""
    workload = matmul(dynamic_size(Dimension("s0", 16, 4096)), 3 * WIDTH, 64)
    schedule = Schedule.of("gemm", order="lanes-outer", tile=8, **COMMON)
    check(asked(workload, schedule, rows), 64, 4 * -(-rows // 8))


def test_open_rows_of_strassens_products_share_panels() -> None:
    workload = matmul(dynamic_size(Dimension("s0", 16, 4096)), 2 * WIDTH, 128)
    schedule = Schedule.of("strassen", order="products-inner", tile=4, **COMMON)
    check(asked(workload, schedule, 40), 64, 4 * 5, panels=7)


def check(counts: Array, depth: int, most: int, panels: int = 3) -> None:
    """Of all panels but the first, and one more, each line is requested, and hardly more."""
    panel = depth * WIDTH * DType.FLOAT32.bytes // LINE
    inside = counts[panel : panels * panel]
    assert counts[:panel].max() == 0
    assert inside.min() >= 1
    assert inside.max() <= most
    assert counts[(panels + 1) * panel + panel // 8 :].max() == 0
