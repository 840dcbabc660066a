"""onnx.reference, mended where it strays from the standard."""

from __future__ import annotations

from typing import Any

from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_max_pool import MaxPool as Strayed


class MaxPool(Strayed):  # type: ignore[misc]  # onnx.reference has no types
    """MaxPool whose pads are (begins..., ends...), as the standard says.

    onnx.reference has two implementations. The one for strides and dilations of one reads four pads
    as (begin, end, begin, end), and ignores pads of three dimensions. The other is right.
    """

    op_domain = ""

    def _run(self, x: Any, **attributes: Any) -> Any:
        return self._max_pool(x, **attributes)


def evaluator(model: ModelProto) -> ReferenceEvaluator:
    """The evaluator of a model by the standard, in NumPy."""
    return ReferenceEvaluator(model, new_ops=[MaxPool])
