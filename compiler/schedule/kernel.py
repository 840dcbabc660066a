"""The result of a template for a schedule: a loop nest, and the packing of its weights."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.runtime.kernel import Matrix


@dataclass(frozen=True, slots=True)
class Transform:
    """A weight's linear transform before packing: `einsum(subscripts, first, weight, rest...)`.

    It is computed once, in float64. Winograd: "xk,oikl,yl->xyoi" with G twice. `parts` first
    divides each dimension of the weight into equal parts, which become a new first axis in
    row-major order. Strassen: "sz,zkn->skn" over the quadrants from parts (2, 2).
    """

    subscripts: str
    matrices: tuple[Matrix, ...]
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """The loop nest of a schedule, and how its buffers are filled.

    Attributes:
        nest: the loop nest.
        sources: pairs of the name of an input or weight buffer and the number of the workload input
            that fills it.
        transforms: pairs of the name of a weight buffer and the transform before it is packed.
    """

    nest: LoopNest
    sources: tuple[tuple[str, int], ...]
    transforms: tuple[tuple[str, Transform], ...] = ()
