"""Products of two integer matrices, both computed at run time, as products of 8-bit integers.

Before:                                     After:
    %1 = int32(%0) - y                          %2 = matmul(%0, %8) - z * sum(%0)
    %9 = int32(%8) - z                                              - y * sum(%8 - z)
    %2 = matmul(%1, %9)

Each matrix holds int8 or uint8 values minus a zero point. As in `integer_products`, the right
factor is int8, and the left factor has the type that the target multiplies by int8. Both factors
are int16 if the target has no fast product of 8-bit integers, but a fast one of pairs of int16. The
corrections contain sums of the rows of the left factor and of the columns of the right one. The
sums are computed at run time, because neither matrix is a constant. `quantised_activation_products`
does the same for factors with scales.
"""

from __future__ import annotations

from functools import partial

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.passes.integer_products import scale_of, scaled_by
from tilewright.compiler.passes.quantisation import (
    IntegerFactor,
    IntegerSource,
    as_factor,
    number_of,
    source_of,
    unsigned,
)
from tilewright.compiler.passes.rewrite import Rewriter, rewrite
from tilewright.compiler.sizes import always_less, exact_quotient, is_dynamic

_GROUP = 4
"""Number of products that one lane of a dot-product instruction sums. A dynamic number of terms
must be a multiple of this number."""

_MOST_TERMS = (2**31 - 1) // (255 * 255)
"""Maximum number of terms for which a sum of products fits in int32. The factors are 8-bit integers
minus their zero points."""


def integer_activation_products(graph: Graph, factor: IntegerFactor = unsigned) -> Graph:
    """Replace products of two int32 matrices by products of the stored 8-bit matrices.

    `factor` maps a stored type to the type in which the target multiplies it.
    """
    return rewrite(graph, partial(activation_product, scaled=False, factor=factor))


def activation_product(
    rewriter: Rewriter, node: Node, *, scaled: bool, factor: IntegerFactor
) -> str | None:
    """Emit a product of two matrices that are dequantised from 8-bit integers, with int32 sums.

    Returns the name of the result, or None if the node is not such a product. If `scaled`, both
    factors must have a scale; otherwise neither may have one. `factor` maps a stored type to the
    type in which the target multiplies the left factor.
    """
    if node.op != "matmul" or len(node.inputs) > 2 or node.attr("accumulator") is not None:
        return None
    depth = rewriter.shape(node.inputs[0])[-1]
    if is_dynamic(depth) and exact_quotient(depth, _GROUP) is None:
        return None
    left, right = (source_of(rewriter, value) for value in node.inputs)
    if left is None or right is None or not _are_matrices(rewriter, left, right):
        return None
    if not {rewriter.type(side.value).dtype for side in (left, right)} <= set(INT8_TYPES):
        return None  # sums of 16-bit products may exceed int32
    if {left.scale is not None, right.scale is not None} != {scaled}:
        return None
    both = None
    if left.scale is not None and right.scale is not None:
        both = scale_of(right.scale, left.scale)
        if both is None or not always_less(depth, _MOST_TERMS + 1):
            return None
    right = as_factor(rewriter, right, partial(_right_type, factor=factor))
    left = as_factor(rewriter, left, factor)
    total = rewriter.emit("matmul", [left.value, right.value], {"accumulator": DType.INT32.value})
    if (zero := _moving(rewriter, right)) is not None:
        total = rewriter.emit("sub", [total, _sums(rewriter, left.value, None, -1, zero)])
    if (zero := _moving(rewriter, left)) is not None:
        columns = _sums(rewriter, right.value, _moving(rewriter, right), -2, zero)
        total = rewriter.emit("sub", [total, columns])
    return total if both is None else scaled_by(rewriter, total, both, node)


def _right_type(stored: DType, factor: IntegerFactor) -> DType:
    """The type in which a right factor is multiplied: int16 or int8.

    It is int16 if the target multiplies left factors of the type `stored` as int16.
    """
    return DType.INT16 if factor(stored) is DType.INT16 else DType.INT8


def _are_matrices(rewriter: Rewriter, *sides: IntegerSource) -> bool:
    """Whether all operands are matrices, each with a constant zero point and at most one scale.

    An `IntegerSource` is an operand that is dequantised from stored integers.
    """
    ranks = [len(rewriter.shape(side.value)) for side in sides]
    single = [side.scale is None or not side.scale.ndim for side in sides]
    zeros = [number_of(rewriter, side.zero) is not None for side in sides]
    return min(ranks) >= 2 and all((*single, *zeros))


def _moving(rewriter: Rewriter, source: IntegerSource) -> str | None:
    """The name of the zero point of dequantised integers; None if it is zero or missing."""
    return source.zero if number_of(rewriter, source.zero) != 0 else None


def _sums(rewriter: Rewriter, value: str, zero: str | None, axis: int, factor: str) -> str:
    """Emit the sums of `value - zero` along one of the last two dimensions, times `factor`.

    `value` has 8-bit elements, and the sums are int32. `axis` is -1 or -2. `value`, `zero` and
    `factor` are names of values in the graph.
    """
    wide = rewriter.emit("cast", [value], {"to": DType.INT32.value})
    if zero is not None:
        wide = rewriter.emit("sub", [wide, zero])
    along = len(rewriter.shape(wide)) + axis
    sums = rewriter.emit("reduce_sum", [wide], {"axes": (along,), "keepdims": 1})
    return rewriter.emit("mul", [sums, factor])
