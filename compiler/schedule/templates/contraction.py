"""GEMM, GEMV and direct convolution: a sum of products with a two-dimensional register tile.

One factor, the streamed operand, is read along the lanes: weights packed in panels, or rows that
are contiguous in memory. The other factor is broadcast to all lanes. The register tile has
accumulators for `tile` rows, each with a different broadcast factor, by `vectors` vectors; the
whole reduction runs inside it. Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (2008); Georganas et al., "Anatomy of High-Performance Deep Learning Convolutions"
(2018).

`contraction_analysis.py` finds the roles of axes and operands, `contraction_space.py` defines the
knobs and the default (by the scores of tiles in `contraction_score.py`), `contraction_lowering.py`
builds the nest.
"""

from __future__ import annotations

from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.templates import Template
from tilewright.compiler.schedule.templates.contraction_analysis import Contraction, analyse
from tilewright.compiler.schedule.templates.contraction_lowering import lower
from tilewright.compiler.schedule.templates.contraction_space import (
    default_schedule,
    fits,
    knobs_of,
    lowers,
    rows_schedule,
)


def _default(found: Contraction, mode: Mode, knobs: tuple[Knob, ...]) -> Schedule:
    return default_schedule(found, mode, _algorithm(found), knobs)


def _any_rows(found: Contraction, mode: Mode, is_dynamic: bool) -> Schedule | None:
    """Return a schedule for any number of rows of a product with weights; None for other workloads.

    If `is_dynamic` is false, a separate kernel for each number of rows uses the schedule. The
    kernels share packed weights, and differ only in the code for the last partial tile of rows. If
    `is_dynamic` is true, one kernel for all numbers of rows uses the schedule. It has the default
    order of loops, because with rows outermost, it would read all weights again for each tile of
    rows.
    """
    algorithm = _algorithm(found)
    any_rows = rows_schedule(found, mode, algorithm)
    if any_rows is None or not is_dynamic:
        return any_rows
    knobs = knobs_of(found, mode)
    if not all(knob.values for knob in knobs):
        return None
    default = default_schedule(found, mode, algorithm, knobs)
    return rows_schedule(found, mode, algorithm, default["order"])


def _algorithm(found: Contraction) -> str:
    return "direct" if found.window else "gemm" if found.tile else "gemv"


TEMPLATE = Template(
    algorithms=("direct", "gemm", "gemv"),
    analyse=analyse,
    preference=lambda found, mode: 1.0,
    knobs=knobs_of,
    default=_default,
    lower=lower,
    form=lowers,
    machine=fits,
    any_rows=_any_rows,
)
