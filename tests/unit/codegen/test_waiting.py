"""The order of loads and stores where a core waits for them, and vectors loaded two at once."""

from __future__ import annotations

import re

import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.codegen.cpu.ahead import _most_held
from tilewright.compiler.codegen.statistics import InnerLoop, inner_loops
from tilewright.compiler.loops.layout import Layout, blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Halo, Workload
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target

HALO: Halo = ((0, 0), (0, 0), (1, 1), (1, 1))


def depthwise(stride: int, *, planar: bool, size: int = 28) -> Workload:
    """Of 3x3, with a bias and two limits; the outputs are a square."""
    make, side = Maker(), size * stride
    y = make(
        "conv", make.input("x", 1, 8, side, side), make.input("w", 8, 1, 3, 3),
        make.input("bias", 8), strides=(stride, stride), pads=(1, 1, 1, 1), dilations=(1, 1),
        group=8,
    )  # fmt: skip
    y = make("clip", y, min=0.0, max=6.0)
    layout = Layout() if planar else blocked(4, 1, 4)
    return as_workload(make.graph(y), ("w", "bias"), {"x": (layout, HALO), y: (layout, ())})


def main_loop(core: str, workload: Workload, tile: int, rows: int) -> InnerLoop:
    target = resolve_target(core)
    schedule = Schedule.of("window", order="greedy", taps="all", tile=tile, rows=rows)
    assembly = lower_workload(workload, schedule, Mode(target)).assembly(target)
    return max(inner_loops(assembly, target), key=lambda loop: loop.fmas)


def count(loop: InnerLoop, pattern: str) -> int:
    return sum(re.match(pattern, text) is not None for text in loop.instructions)


@pytest.mark.parametrize(("core", "tile"), [("neoverse-n1", 14), ("cortex-a53", 4)])
def test_every_second_element_takes_one_shuffle(core: str, tile: int) -> None:
    """Of the three taps of a row two are loaded at once, and the third is one permutation of two
    vectors. None of them waits in memory."""
    loop = main_loop(core, depthwise(2, planar=True), tile, 1)
    assert not loop.spills
    assert not count(loop, "rev64|tbl|trn|zip|ext")
    assert 2 * count(loop, "ld2") + count(loop, "uzp") == 3 * (2 * tile + 1)


def test_vectors_of_sve_are_read_as_before() -> None:
    """LLVM permutes them in more instructions: 479 were counted where 444 did."""
    loop = main_loop("neoverse-v1-sve256", depthwise(2, planar=True), 7, 1)
    assert len(loop.instructions) <= 450


def test_pairs_of_columns_are_used_at_once() -> None:
    """With a stride of two, the second column of a pair would wait for another tap."""
    assert not main_loop("neoverse-n1", depthwise(2, planar=False), 7, 2).spills


def test_a_core_that_waits_loads_ahead_and_stores_last() -> None:
    """No multiply-add follows the load of its factor, and each result has a register of its own."""
    loop = main_loop("cortex-a53", depthwise(1, planar=False), 7, 2)
    assert not loop.spills
    loaded: list[str] = []
    for text in loop.instructions:
        name, operands = text.split(maxsplit=1)
        registers = re.findall(r"\b[qv](\d+)", operands)
        if name in ("ldr", "ldp"):
            loaded += registers
            continue
        assert not {*registers} & {*loaded[-2:]}, text
        loaded = loaded if name != "fmla" else []
    clipped = {text.split()[1] for text in loop.instructions if text.startswith("fmin")}
    assert len(clipped) == 14
    other = main_loop("neoverse-n1", depthwise(1, planar=False), 7, 2)
    assert len({t.split()[1] for t in other.instructions if t.startswith("fmin")}) < 14


def test_how_many_values_wait() -> None:
    """Each is held from its load to its last use."""
    one_each = [[(i,)] for i in range(6)]
    assert [_most_held(one_each, distance) for distance in (0, 1, 3, 9)] == [1, 2, 4, 6]
    assert _most_held([[(0,)], [(1,)], [(0,)]], 0) == 2
    assert _most_held([], 4) == 0
