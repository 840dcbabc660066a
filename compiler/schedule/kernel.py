"""What a template makes of a schedule: a loop nest, and how its weights are packed."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.runtime.kernel import Matrix


@dataclass(frozen=True, slots=True)
class Transform:
    """A weight's linear transform before packing: `einsum(subscripts, first, weight, rest...)`.

    Computed once, in float64. Winograd: "xk,oikl,yl->xyoi" with G twice. `parts` cuts each
    dimension of the weight into equal parts first, which become a new first axis in row-major
    order. Strassen: "sz,zkn->skn" over the quadrants that parts (2, 2) gives.
    """

    subscripts: str
    matrices: tuple[Matrix, ...]
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A lowered schedule.

    `sources` gives for each input and weight buffer, by name, the workload input that fills it.
    """

    nest: LoopNest
    sources: tuple[tuple[str, int], ...]
    transforms: tuple[tuple[str, Transform], ...] = ()
