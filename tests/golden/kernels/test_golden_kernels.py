"""The templates' output for known workloads, and LLVM's assembly of it for a named CPU.

`<case>.txt` holds the loop nest of one schedule and facts about its machine code: fused
multiply-adds in its innermost loops, and vector registers on the stack. They are cross-compiled, so
that they do not depend on the machine that runs the tests.

`pytest tests/golden/kernels --update-golden` writes the files anew.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nests.parse import parse_nest
from tests.unit.schedule.problems import PROBLEMS
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.codegen.object import emit_assembly
from tilewright.compiler.codegen.statistics import KernelStatistics, function_statistics, statistics
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import build_kernel, lower_workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.targets.families import Family, families
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

HERE = Path(__file__).parent
CPU = "znver4"

CASES: dict[str, tuple[str, Schedule]] = {
    "gemm": (
        "matmul",
        Schedule.of("gemm", tile=14, vectors=2, order="lanes-outer", unroll=4, prefetch=0),
    ),
    "gemm_int8": (
        "bytes",
        Schedule.of("gemm", tile=14, vectors=2, order="lanes-outer", unroll=2, prefetch=0),
    ),
    "direct_int8": (
        "bytes 3x3",
        Schedule.of(
            "direct", tile=14, vectors=2, order="lanes-outer", unroll=2, taps="loop", prefetch=0
        ),
    ),
    "gemm_halves": (
        "halves",
        Schedule.of("gemm", tile=14, vectors=2, order="lanes-outer", unroll=2, prefetch=0),
    ),
    "direct_halves": (
        "halves 3x3",
        Schedule.of(
            "direct", tile=14, vectors=2, order="lanes-outer", unroll=2, taps="loop", prefetch=0
        ),
    ),
    "depthwise_int8": (
        "bytes depthwise",
        Schedule.of("window", tile=4, rows=4, taps="all", order="greedy"),
    ),
    "strassen": (
        "matmul",
        Schedule.of(
            "strassen", tile=8, vectors=3, order="products-inner", unroll=2, prefetch=0
        ),
    ),
    "gemm_packed": (
        "matmul of activations",
        Schedule.of("gemm", tile=14, vectors=2, order="lanes-outer", unroll=2, pack=True),
    ),
    "gemv": (
        "gemv",
        Schedule.of("gemv", tile=1, vectors=8, order="lanes-inner", unroll=2, prefetch=0),
    ),
    "gemv_split": (
        "gemv",
        Schedule.of(
            "gemv", tile=1, vectors=8, order="lanes-inner", unroll=2, prefetch=0, split=2
        ),
    ),
    "dot": ("gemv of rows", Schedule.of("dot", tile=4, unroll=1)),
    "direct": (
        "3x3",
        Schedule.of(
            "direct", tile=14, vectors=2, order="lanes-outer", unroll=2, taps="loop", prefetch=0
        ),
    ),
    "direct_static_taps": (
        "3x3 without halo",
        Schedule.of(
            "direct", tile=14, vectors=2, order="lanes-middle", unroll=1, taps="unroll", prefetch=0
        ),
    ),
    "winograd": (
        "3x3",
        Schedule.of("winograd", outputs=4, block=14, tile=14, vectors=2, unroll=1),
    ),
    "winograd_stride_2": (
        "3x3 stride 2",
        Schedule.of("winograd", outputs=4, block=8, tile=8, vectors=2, unroll=2),
    ),
    "winograd_row": (
        "1x7",
        Schedule.of("winograd", outputs=2, block=14, tile=14, vectors=2, unroll=1),
    ),
    "depthwise": ("depthwise", Schedule.of("window", tile=7, rows=2, taps="all", order="greedy")),
    "depthwise_planar": (
        "depthwise planar stride 2",
        Schedule.of("window", tile=7, rows=1, taps="all", order="greedy"),
    ),
    "max_pool": ("max_pool", Schedule.of("window", tile=7, rows=1, taps="row", order="program")),
    "softmax": ("softmax", Schedule.of("row", unroll=8, keep=False)),
    "softmax_kept": ("softmax", Schedule.of("row", unroll=1, keep=True)),
    "softmax_short": ("softmax of short rows", Schedule.of("row", unroll=1, keep=False)),
    "arg_max": ("arg_max", Schedule.of("row", unroll=4, keep=False)),
    "attention": (
        "attention",
        Schedule.of(
            "attention", tile=5, vectors=4, rows=4, unroll=4, keys="packed", values="packed"
        ),
    ),
    "attention_causal": (
        "causal attention",
        Schedule.of(
            "attention",
            tile=8,
            vectors=2,
            rows=2,
            unroll=2,
            keys="packed",
            values="rows",
            segments=2,
        ),
    ),
    "attention_of_one_query": (
        "attention of one query",
        Schedule.of("attention", tile=1, vectors=5, rows=1, unroll=4, keys="rows", values="rows"),
    ),
    "transpose": ("matrix transpose", Schedule.of("map", unroll=1, transpose=True)),
    "map": ("relu", Schedule.of("map", unroll=4, transpose=False)),
    "pieces": ("concat", Schedule.of("pieces", unroll=4)),
}  # fmt: skip


def lowered(case: str, target: Target) -> tuple[Workload, Kernel]:
    problem, schedule = CASES[case]
    workload = PROBLEMS[problem](target.vector_bits // 32)
    return workload, lower_schedule(workload, schedule, Mode(target))


def facts(kernel: Kernel, target: Target) -> str:
    """One line a stage."""
    assembly = emit_assembly(lower_nest(kernel.nest, target), target)
    found: dict[str, KernelStatistics] = function_statistics(assembly, target)
    return "\n".join(
        f"; {name}: {s.inner_fmas} FMAs in innermost loops, {s.fmas} in all, "
        f"{s.inner_spills} spills there, {s.spills} in all"
        for name, s in found.items()
    )


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, request: pytest.FixtureRequest) -> None:
    target = resolve_target(CPU)
    _, kernel = lowered(case, target)
    text = f"{print_nest(kernel.nest).rstrip()}\n{facts(kernel, target)}\n"
    path = HERE / f"{case}.txt"
    if request.config.getoption("--update-golden", default=False):
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs: read it, then use --update-golden"


@pytest.mark.parametrize("case", CASES)
def test_golden_nests_read_back(case: str) -> None:
    text = (HERE / f"{case}.txt").read_text()
    nest = "\n".join(line for line in text.split("\n") if not line.startswith(";"))
    assert parse_nest(nest) == lowered(case, resolve_target(CPU))[1].nest


@pytest.mark.parametrize("case", CASES)
def test_schedules_are_in_their_space(case: str) -> None:
    problem, schedule = CASES[case]
    target = resolve_target(CPU)
    threads = dict(schedule.choices).get("split", 1)
    assert schedule in schedule_space(PROBLEMS[problem](16), Mode(target, int(threads)))


def statistics_of(problem: str, schedule: Schedule | None, name: str) -> KernelStatistics:
    target = resolve_target(name)
    workload = PROBLEMS[problem](target.vector_bits // 32)
    chosen = schedule or schedule_space(workload, Mode(target)).default()
    return statistics(lower_workload(workload, chosen, Mode(target)).assembly(target), target)


Expected = Callable[[Schedule], int]


@pytest.mark.parametrize("name", ["x86-64-v4", "znver4", "aarch64"])
@pytest.mark.parametrize(
    "problem", ["matmul", "stem", "depthwise", "gemv", "gemv of rows", "3x3 without halo"]
)
def test_defaults_do_not_spill(problem: str, name: str) -> None:
    """The untuned kernel keeps its tile in registers in the loops that take the time."""
    assert statistics_of(problem, None, name).inner_spills == 0


BYTES = ["bytes", "bytes of odd sizes", "bytes 3x3", "bytes depthwise"]


@pytest.mark.parametrize("problem", BYTES)
@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "cascadelake", "znver4"])
def test_defaults_for_bytes_do_not_spill(problem: str, name: str) -> None:
    """With an instruction for bytes, and on targets where parts of each operand need registers,
    too.

    A depthwise window keeps nine weights in registers: sixteen are not enough for its default.
    """
    if problem != "bytes depthwise" or resolve_target(name).has_int8_dot:
        assert statistics_of(problem, None, name).inner_spills == 0


@pytest.mark.parametrize("problem", BYTES)
@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_every_target_compiles_products_of_bytes(family: Family, problem: str) -> None:
    """Cores with the same instructions get the same loops: one of them compiles for all."""
    cores = {(target.features, target.vector_bits): target for target in family.targets}
    for target in cores.values():
        workload = PROBLEMS[problem](target.vector_bits // 32)
        assert build_kernel(
            workload, schedule_space(workload, Mode(target)).default(), Mode(target)
        ).object


@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize(("tile", "vectors"), [(12, 2), (9, 3), (6, 4), (28, 1)])
def test_the_inner_loop_of_a_product_is_its_tile(tile: int, vectors: int, unroll: int) -> None:
    """tile x vectors x unroll multiply-adds.

    The last 128 % tile rows have a loop of their own, with as many multiply-adds as they need; 768
    columns are 48 vectors, whole panels all of them.
    """
    schedule = Schedule.of(
        "gemm", tile=tile, vectors=vectors, order="lanes-outer", unroll=unroll, prefetch=0
    )
    found = statistics_of("matmul", schedule, "x86-64-v4")
    assert found.inner_fmas == (tile + 128 % tile) * vectors * unroll
    assert found.inner_spills == 0
    # each row's element is broadcast and each vector of the panel loaded once; a few count
    needed = found.inner_fmas + unroll * (tile + 128 % tile + 2 * vectors)
    assert found.inner_instructions <= needed * 1.15 + 10


def test_a_tile_that_does_not_fit_spills() -> None:
    """The register rule is needed: beyond it, accumulators go to the stack."""
    schedule = Schedule.of("gemm", tile=16, vectors=3, order="lanes-outer", unroll=1, prefetch=0)
    assert statistics_of("matmul", schedule, "x86-64-v4").inner_spills > 0


@pytest.mark.parametrize("distance", [0, 2048])
def test_weights_are_asked_for_ahead_where_the_schedule_says_so(distance: int) -> None:
    """A cache line of each vector of the panel, for every step of the sum."""
    schedule = Schedule.of(
        "gemm", tile=12, vectors=2, order="lanes-outer", unroll=1, prefetch=distance
    )
    target = resolve_target("x86-64-v4")
    text = lower_workload(PROBLEMS["matmul"](16), schedule, Mode(target)).text
    assert ("call void @llvm.prefetch" in text) is bool(distance)
