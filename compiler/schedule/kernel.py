"""The loop nest that a template generates for a schedule, and the packing of its weights.

A template is a generator of kernels for one kind of workload.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.runtime.kernel import Matrix


@dataclass(frozen=True, slots=True)
class Transform:
    """A linear transform that is applied to a weight before it is packed.

    The result is `einsum(subscripts, first, weight, rest...)`, computed once, in float64.

    Attributes:
        subscripts: the subscripts of the einsum. Winograd: "xk,oikl,yl->xyoi" with the matrix G
            twice. Strassen: "sz,zkn->skn" over the quadrants that `parts=(2, 2)` gives.
        matrices: the constant operands: `first`, then `rest`.
        parts: the number of equal parts into which each dimension of the weight is divided first;
            the parts become a new first axis, in row-major order. Empty for an undivided weight.
    """

    subscripts: str
    matrices: tuple[Matrix, ...]
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """The loop nest of a schedule, and the sources of its buffers.

    Attributes:
        nest: the loop nest.
        sources: pairs of the name of an input or weight buffer and the index of the workload input
            that fills it.
        transforms: pairs of the name of a weight buffer and the transform before it is packed.
    """

    nest: LoopNest
    sources: tuple[tuple[str, int], ...]
    transforms: tuple[tuple[str, Transform], ...] = ()
