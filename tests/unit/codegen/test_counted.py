"""Code for AArch64 and RISC-V without superfluous addresses, loads, and conversions one by one."""

from __future__ import annotations

import re

import pytest

from tests.graphs import Maker
from tests.unit.codegen.checks import kernel
from tests.unit.codegen.rounded import bytes_nest, largest_nest, limits_nest
from tests.unit.schedule.dynamic_nests import dynamic_workload
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.codegen.object import emit_assembly
from tilewright.compiler.codegen.statistics import InnerLoop, inner_loops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Accumulator, Combiner, Load, Role, Tensor
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Store, Tile
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, untuned_schedules
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

N1 = resolve_target("neoverse-n1")


def far_product(lanes: int, far: int, rows: int = 4, vectors: int = 4, step: int = 1) -> LoopNest:
    """C[m, n] = sum of A[m, k] B[far, k, n], some rows by some vectors, B in panels.

    With several steps of the sum in its innermost loop, the rows of A are contiguous.
    """
    width = vectors * lanes
    m, n, k = Axis("m", 8), Axis("n", 2 * width), Axis("k", 64)
    beside = Layout((Factor(0, rows), Factor(1), Factor(0, 1, rows))) if step > 1 else Layout()
    a = Tensor("A", (m.extent, k.extent), DType.FLOAT32, beside)
    panels = Layout((Factor(2, width), Factor(0), Factor(1), Factor(2, 1, width)))
    b = Tensor("B", (far + 1, k.extent, n.extent), DType.FLOAT32, panels, role=Role.WEIGHT)
    c = Tensor("C", (m.extent, n.extent), DType.FLOAT32, role=Role.OUTPUT)
    right = Load(b, (Affine((), far), affine(k), affine(n)))
    compute = Compute(
        (Store(c[m, n], Accumulator(DType.FLOAT32)),),
        a[m, k] * right,
        Combiner.SUM,
        reduce=(Tile(k, step),),
        unroll=(Tile(k), Tile(m), Tile(n, lanes)),
        vector=n,
    )
    return kernel((a, b, c), For(m, rows, (For(n, width, (compute,)),)))


def product_loop(
    target: Target, far: int, rows: int = 4, vectors: int = 4, step: int = 1
) -> InnerLoop:
    nest = far_product(target.lanes(DType.FLOAT32), far, rows, vectors, step)
    loops = inner_loops(emit_assembly(lower_nest(nest, target), target), target)
    return max(loops, key=lambda loop: loop.fmas)


@pytest.mark.parametrize("far", [0, 7])
def test_vectors_are_loaded_in_pairs_wherever_their_panel_starts(far: int) -> None:
    loop = product_loop(N1, far)
    names = [text.split()[0] for text in loop.instructions]
    assert loop.fmas == 16 and names.count("ldp") == 2
    # besides four scalars: two pointers, a counter and a branch, and a copy at most
    assert len(names) <= loop.fmas + 2 + 4 + 5


def test_vectors_of_two_steps_are_loaded_in_pairs() -> None:
    """Three vectors per step: the third one is loaded with the first one of the next step. Eight
    contiguous factors take one load."""
    loop = product_loop(N1, 7, rows=8, vectors=3, step=4)
    names = [text.split()[0] for text in loop.instructions]
    assert loop.fmas == 96 and not loop.spills
    assert names.count("ldp") == 10 and "ldr" not in names


def test_no_vector_is_loaded_early_where_registers_are_full() -> None:
    loop = product_loop(N1, 7, rows=4, vectors=6, step=2)  # 24 sums, 6 of a panel, one of factors
    assert loop.fmas == 48 and not loop.spills


@pytest.mark.parametrize("name", ["neoverse-n1", "riscv64"])
def test_loops_count_down_where_nothing_reads_the_counter(name: str) -> None:
    loop = product_loop(resolve_target(name), 7, rows=1)
    names = [text.split()[0] for text in loop.instructions]
    assert "cmp" not in names and names[-1] in ("b.ne", "bnez")


def test_the_larger_of_two_is_one_instruction() -> None:
    """Also where a NaN has to stay: the largest number of a row."""
    assembly = emit_assembly(lower_nest(largest_nest(64, 4), N1), N1)
    assert re.search(r"\tfmax\t", assembly) and "fcmgt" not in assembly


def test_loops_carry_pointers_where_an_index_is_not_added() -> None:
    """RISC-V adds nothing to the address of a vector."""
    loop = product_loop(resolve_target("riscv64"), 7, rows=1)
    shifts = [text for text in loop.instructions if re.match(r"(slli|mul|sh\dadd)", text)]
    assert loop.fmas == 4 and not shifts
    text = lower_nest(far_product(16, 7), resolve_target("x86-64-v4"))
    assert "phi ptr" not in text


@pytest.mark.parametrize(("together", "joined"), [(4, True), (3, False), (9, True)])
def test_bytes_are_narrowed_four_vectors_at_a_time(together: int, joined: bool) -> None:
    assembly = emit_assembly(lower_nest(bytes_nest(36 * together, together, 4), N1), N1)
    assert len(re.findall("uqxtn2", assembly)) == together // 4 * joined
    assert ("frint" in assembly) == (together % 4 != 0)


def test_bytes_of_open_rows_are_narrowed_together() -> None:
    """The order of two vectors in memory is unknown if one is in the next row."""

    def rounded(make: Maker, m: int, n: int) -> str:
        total = make("matmul", make.input("x", m, 5), make.input("z", 5, n))
        scaled = make("mul", total, make.constant("scale", 40.0))
        return make("cast", make("round", scaled), to="uint8")

    workload = dynamic_workload(rounded, Dimension("m", 1, 41), Dimension("n", 1, 61))
    first = next(iter(untuned_schedules(workload, Mode(N1))))
    lower_nest(lower_schedule(workload, first, Mode(N1)).nest, N1)
    wide = Schedule.of("gemm", order="lanes-outer", pack=False, tile=4, unroll=1, vectors=4)
    assembly = emit_assembly(lower_nest(lower_schedule(workload, wide, Mode(N1)).nest, N1), N1)
    assert assembly.count("uqxtn2") >= 4


def test_limits_take_an_instruction_each() -> None:
    assembly = emit_assembly(lower_nest(limits_nest(32, 4), N1), N1)
    assert re.search(r"\tfmax\t", assembly) and re.search(r"\tfmin\t", assembly)
    assert "fcmgt" not in assembly and "bit\t" not in assembly


@pytest.mark.parametrize("name", ["cortex-a53", "cortex-a55", "cortex-a72", "neoverse-n1"])
def test_tiles_load_few_scalars(name: str) -> None:
    """Untuned tiles leave registers for scalars that are loaded four at a time."""
    target = resolve_target(name)
    assert target.scalar_loads(8, 2) == 2  # 16 sums, 2 of a panel, 8 of 13 others
    assert target.scalar_loads(8, 3) == 5  # 4 of 8 rows have a register
    assert target.scalar_loads(14, 2) == 14 - 0.75
    assert resolve_target("x86-64-v4").scalar_loads(8, 3) == 8
    assert resolve_target("neoverse-v1-sve256").scalar_loads(8, 3) == 8
