"""Import rules that compute in float32 or float64 if the operands are 16-bit floats.

A rule that expands a norm into other operators emits constants, such as an epsilon or the
reciprocal of a count. In float16 or bfloat16, these constants would be rounded; 1e-12 is zero in
float16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import ONNX_TYPES, cast_to, onnx_type_name
from tilewright.compiler.ops.onnx_node import OnnxNode

Rule = Callable[[OnnxNode], str | Sequence[str]]


def stash_type(node: OnnxNode) -> DType:
    """Return the type of sums that the attribute `stash_type` states; float32 by default.

    Raises:
        UnsupportedOperatorError: if it is not a float type.
    """
    stated = ONNX_TYPES.get(node.integer("stash_type", 1))
    if stated is None or not stated.is_float:
        name = onnx_type_name(node.integer("stash_type", 1))
        raise node.unsupported(f"attribute 'stash_type' is {name}, expected a float type")
    return stated


def in_wide_type(rule: Rule) -> Rule:
    """Wrap an import rule so that it computes in float32, or in float64 if `stash_type` is float64.

    Operands of shorter float types are converted before the rule is applied. Its first result is
    converted back to the type of the first operand; other results keep the wider type.
    """

    def emit(node: OnnxNode) -> str | Sequence[str]:
        x = node.input(0)
        wide = max(DType.FLOAT32, stash_type(node), key=lambda dtype: dtype.bytes)

        def converted(value: str | None) -> str | None:
            dtype = None if value is None else node.type(value).dtype
            if value is None or dtype is None or not dtype.is_float or dtype.bytes >= wide.bytes:
                return value
            return cast_to(node, value, wide)

        made = rule(replace(node, inputs=tuple(map(converted, node.inputs))))
        results = [made] if isinstance(made, str) else [*made]
        results[0] = cast_to(node, results[0], node.type(x).dtype)
        return results[0] if isinstance(made, str) else results

    return emit
