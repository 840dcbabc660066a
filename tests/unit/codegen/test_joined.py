"""Vectors that instructions work on together (RISC-V's groups of registers), and their rounding.

Their meaning is checked on this machine, which is forced to join its vectors; the assembly is
checked on RISC-V.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.graphs import Maker, random_inputs, run_graph
from tests.kernels import WorkloadCode, as_workload, run_workload, width
from tests.unit.codegen.checks import agree
from tests.unit.codegen.rounded import bytes_nest, read_as_nest
from tests.unit.schedule.dynamic_nests import dynamic_workload
from tests.unit.schedule.problems import conv, matmul
from tilewright.compiler.codegen.statistics import inner_loops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space, untuned_schedule
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.targets.families import family_of
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

RISCV = resolve_target("riscv64")
BITS = 256
SPECIAL = [np.nan, np.inf, -np.inf, 3e9, -3e9, 254.5, 255.5, -0.0, -0.5, 0.5, 1.5, 2.5]
"""Halves, limits, and numbers that no integer holds."""


def pointwise(filters: int, block: int, channels: int = 16, *, narrow: bool = False) -> Workload:
    """A 1x1 convolution, rounded between two numbers or to bytes, of 3x5 pixels."""
    make = Maker()
    y = make(
        "conv", make.input("x", 1, channels, 3, 5), make.input("w", filters, channels, 1, 1),
        make.input("b", filters), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1,
    )  # fmt: skip
    shifted = make("add", make("round", y), make.constant("zero", 3.0))
    y = made = make("cast", shifted, to="uint8")
    if not narrow:
        y = make("sub", make("cast", made, to="float32"), make.constant("less", 3.0))
    layout = blocked(4, 1, block)
    halo = ((0, 0), (0, 0), (1, 1), (1, 1))
    return as_workload(make.graph(y), ("w", "b"), {y: (layout, halo)})


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> Target:
    """This machine with vectors of 256 bits, two of them together."""
    target = width(BITS)
    feature = next(f[1:] for f in target.features if f.startswith("+"))
    family = replace(family_of(target.arch), joined=(feature, 2 * BITS), nearest=feature)
    monkeypatch.setattr("tilewright.compiler.targets.target.family_of", lambda arch: family)
    return target


def tile(workload: Workload, target: Target, rows: int) -> Schedule:
    default = untuned_schedule(workload, Mode(target))
    choices = {**dict(default.choices), "tile": rows, "vectors": 2, "unroll": 2}
    return Schedule.of(default.algorithm, **choices)


@pytest.mark.parametrize(
    ("filters", "block", "narrow", "joined"),
    [
        (32, 8, False, True),  # whole vectors, in two blocks each
        (32, 8, True, True),
        (24, 8, False, True),  # the last one is one of the two
        (12, 4, False, True),  # one and a half, in three blocks
        (12, 4, True, True),
        (18, 2, False, False),  # the last ones need a mask
    ],
)
def test_joined_vectors_compute_what_others_do(
    filters: int, block: int, narrow: bool, joined: bool, joining: Target
) -> None:
    workload = pointwise(filters, block, narrow=narrow)
    schedule = tile(workload, joining, 3)
    lanes = joining.lanes(DType.FLOAT32)
    text = lower_workload(workload, schedule, Mode(joining)).text
    assert (f"@llvm.fma.v{2 * lanes}f32" in text) == joined
    random = np.random.default_rng(filters)
    arrays = [
        random.integers(-4, 5, workload.graph.types[name].shape).astype(np.float32)
        for name in workload.graph.inputs
    ]
    inputs = dict(zip(workload.graph.inputs, arrays, strict=True))
    (expected,) = run_graph(workload.graph, inputs)
    got = run_workload(workload, schedule, joining, arrays, random, 1)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("zero", [0, -128])
def test_rounding_to_bytes_saturates(zero: int, joining: Target) -> None:
    """Includes NaN, halves, and numbers that no integer holds."""
    some = np.array(SPECIAL * 16, np.float32)
    agree(bytes_nest(some.size, 2, 8, zero), BITS, some)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (DType.UINT8, DType.INT8),
        (DType.INT8, DType.UINT8),
        (DType.INT16, DType.UINT16),
        (DType.UINT16, DType.UINT8),
    ],
)
def test_integers_read_with_the_other_sign(first: DType, second: DType, joining: Target) -> None:
    """They are other numbers, though the bits in the registers are the same."""
    some = np.array([*SPECIAL, 200, -100, 40000, -300] * 8, np.float32)
    agree(read_as_nest(some.size, 8, first, second), BITS, some)


def test_blocks_that_lie_a_size_apart(joining: Target) -> None:
    """The channels of two blocks of an image of any height and width are one vector."""

    def build(make: Maker, height: int, width: int) -> str:
        x, w = make.input("x", 1, 16, height, width), make.input("w", 32, 16, 1, 1)
        return make(
            "conv", x, w, name="y", strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1,
        )  # fmt: skip

    image = Dimension("h", 1, 9), Dimension("w", 1, 9)
    places = {"y": (blocked(4, 1, 8), ())}
    workload = dynamic_workload(build, *image, places=places)
    schedule = tile(workload, joining, 2)
    lanes = joining.lanes(DType.FLOAT32)
    assert f"@llvm.fma.v{2 * lanes}f32" in lower_workload(workload, schedule, Mode(joining)).text
    random = np.random.default_rng(0)
    with WorkloadCode(workload, schedule, joining) as code:
        for height, width in [(1, 1), (3, 5), (9, 2)]:
            sizes = {"h": height, "w": width}
            arrays = random_inputs(workload.at(sizes).graph, height)
            (expected,) = run_graph(workload.at(sizes).graph, arrays)
            got = code.run([*arrays.values()], random, sizes)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_riscv_joins_two_vectors_of_a_tile() -> None:
    """Half as many scalars, addresses and branches for a multiply-add, and none for rounding that
    would need a mask, whose register holds sums."""
    workload = pointwise(64, 16, 64)
    schedule = untuned_schedule(workload, Mode(RISCV))
    assert (schedule.integer("tile"), schedule.integer("vectors")) == (3, 2)
    assembly = lower_workload(workload, schedule, Mode(RISCV)).assembly(RISCV)
    loop = max(inner_loops(assembly, RISCV), key=lambda loop: loop.fmas)
    assert loop.fmas == 3 * schedule.integer("unroll")
    assert not loop.spills
    assert len(loop.instructions) <= 2.9 * loop.fmas  # 15.5 for 6 of one vector, before
    assert re.search(r"\tvfcvt\.x\.f\.v\t", assembly)
    assert not re.search(r"\tvmf|v0\.t|vfsgnj|vfabs", assembly)


def test_what_is_not_joined() -> None:
    """Vectors without a neighbour, and targets whose vectors already have the greatest length."""
    assert [RISCV.joined(vectors) for vectors in (1, 2, 3, 4)] == [1, 2, 1, 2]
    assert resolve_target("riscv64-zvl256b").joined(2) == 2
    assert resolve_target("neoverse-n1").joined(2) == resolve_target("x86-64-v4").joined(4) == 1
    scalar = resolve_target("rv64gc")
    assert scalar.joined(16) == scalar.factor_registers(4, 2) == 1


def test_sums_of_riscv_take_all_registers() -> None:
    """A scalar has one of its own, so that seven rows, or three of two vectors, and a panel are
    eight."""
    assert RISCV.factor_registers(7, 1) == 0
    assert untuned_schedule(matmul(7, 16, 64), Mode(RISCV)).integer("tile") == 7
    wide = untuned_schedule(matmul(49, 960, 160), Mode(RISCV))
    assert (wide.integer("tile"), wide.integer("vectors")) == (3, 2)


def test_tiles_of_a_window_are_not_spilled() -> None:
    """RISC-V holds sums, a weight, and the pixels of all points of a row."""
    workload = conv(16, channels=64, filters=64, group=64)
    schedule = untuned_schedule(workload, Mode(RISCV))
    assert schedule.integer("tile") == 3
    loops = inner_loops(lower_workload(workload, schedule, Mode(RISCV)).assembly(RISCV), RISCV)
    assert not any(loop.spills for loop in loops)


@pytest.mark.parametrize("name", ["rv64gc", "sifive-u74"])
def test_riscv_without_vectors_unrolls(name: str) -> None:
    """1.7 instructions for a multiply-add of steps one by one."""
    target, workload = resolve_target(name), matmul(64, 256, 256)
    spaces = schedule_space(workload, Mode(target)).subspaces
    schedule = next(s.default for s in spaces if s.default.algorithm == "gemm")
    assert schedule.integer("unroll") == 8
    assembly = lower_workload(workload, schedule, Mode(target)).assembly(target)
    loop = max(inner_loops(assembly, target), key=lambda loop: loop.fmas)
    assert len(loop.instructions) <= 1.6 * loop.fmas
    assert "(sp)" not in "".join(loop.instructions)
