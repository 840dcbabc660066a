"""GEMM, GEMV and direct convolution: a sum of products with a two-dimensional register tile.

One operand is read along the lanes (weights packed in panels, or rows that lie so in memory), the
other is broadcast. The tile has `tile` broadcast points by `vectors` vectors of accumulators; the
whole reduction runs inside it. Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (2008); Georganas et al., "Anatomy of High-Performance Deep Learning Convolutions"
(2018).

`contraction_analysis.py` finds the roles of axes and operands, `contraction_space.py` the knobs and
the default (by the scores of tiles in `contraction_score.py`), `contraction_lowering.py` makes the
nest.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import SubSpace
from tilewright.compiler.schedule.templates import contraction_lowering
from tilewright.compiler.schedule.templates.contraction_analysis import Contraction, analyse
from tilewright.compiler.schedule.templates.contraction_space import (
    default_schedule,
    fits,
    knobs_of,
    lowers,
    rows_schedule,
)
from tilewright.compiler.targets.target import Target


class _Template:
    algorithms = ("direct", "gemm", "gemv")

    def preference(self, workload: Workload, target: Target) -> float:
        return 1.0

    def space(self, workload: Workload, mode: Mode) -> SubSpace | None:
        target = mode.target
        found = analyse(workload)
        if found is None:
            return None
        knobs = knobs_of(found, target, mode.threads)
        if not all(knob.values for knob in knobs):
            return None

        def form(choice: Mapping[str, Choice]) -> bool:
            return lowers(found, target, choice)

        def machine(choice: Mapping[str, Choice]) -> bool:
            return fits(found, target, choice)

        algorithm = _algorithm(found)
        default = default_schedule(found, target, algorithm, knobs, mode.threads)
        return SubSpace(algorithm, knobs, form, default, machine)

    def lower(
        self, workload: Workload, schedule: Schedule, target: Target, *, threads: int
    ) -> Kernel:
        found = analyse(workload)
        if found is None:
            raise ScheduleError(f"'{schedule.algorithm}' does not apply to this workload")
        return contraction_lowering.lower(found, schedule, target)


TEMPLATE = _Template()


@memo(1024)
def serving_rows(
    workload: Workload, target: Target, threads: int, *, is_open: bool
) -> Schedule | None:
    """The schedule of a product of weights whose rows are any number; None of other workloads.

    Where uses differ in that number, kernels share tiles and packed weights, and rows are the
    outermost loop: the kernels differ only in the rows that are left over. Where rows are open, one
    kernel takes any number of them, in the order of loops of the default: rows outermost would read
    all weights again for each tile of a range.
    """
    found = analyse(workload)
    if found is None:
        return None
    algorithm = _algorithm(found)
    any_rows = rows_schedule(found, target, algorithm, threads)
    if any_rows is None or not is_open:
        return any_rows
    knobs = knobs_of(found, target, threads)
    if not all(knob.values for knob in knobs):
        return None
    default = default_schedule(found, target, algorithm, knobs, threads)
    return rows_schedule(found, target, algorithm, threads, default["order"])


def _algorithm(found: Contraction) -> str:
    return "direct" if found.window else "gemm" if found.tile else "gemv"
