"""Cases of the rules that read and write at places known at run time."""

from __future__ import annotations

import numpy as np

from tests.unit.ops.rule_case import FLOAT, Case, data, i64

TIES = data([[[[3, 3, 1, 3, 3], [2, 3, 3, 3, 1], [3, 3, 1, 1, 3], [3, 3, 3, 2, 2]]]], FLOAT)
"""Windows with several largest elements: the first in the order of taps counts."""

SCATTERED = [
    Case("ReverseSequence", ((4, 3, 2), data([4, 1, 2]))),
    Case("ReverseSequence", ((3, 4), data([2, 4, 1])), {"batch_axis": 0, "time_axis": 1}),
    Case("ScatterElements", ((3, 4), data([[0, -1], [3, 2]]), (2, 2)), {"axis": 1}),
    Case("ScatterElements", ((4, 3), i64(0, 2, 2, 1).reshape(2, 2), (2, 2))),
    *(
        Case(
            "ScatterElements",
            ((2, 5, 3), data([[[1, 1, 4], [1, 0, 4], [-1, 0, 4]]]), (1, 3, 3)),
            {"axis": 1, "reduction": reduction},
            opset=18,
        )
        for reduction in ("add", "mul", "max", "min")
    ),
    Case("Scatter", ((3, 4), data([[0, -1], [3, 2]]), (2, 2)), {"axis": 1}, opset=9),
    Case("ScatterND", ((4, 3, 2), data([[1], [-1]]), (2, 3, 2))),
    Case("ScatterND", ((4, 3), i64(1, 2, 3, 0).reshape(2, 2), (2,))),
    *(
        Case("ScatterND", ((4, 3), data([[1], [1], [0]]), (3, 3)), {"reduction": r}, opset=18)
        for r in ("add", "mul", "max", "min")
    ),
    # Known places: a part along one dimension, a box, others, and each in any order.
    Case("ScatterND", ((4, 3), i64(1, 2).reshape(2, 1), (2, 3))),
    Case("ScatterND", ((4, 3), i64(0, 1, 2, 3).reshape(4, 1), (4, 3))),
    Case("ScatterND", ((4, 3), i64(2, 1).reshape(2, 1), (2, 3))),
    Case("ScatterND", ((2, 3, 4), i64(0, 1, 0, 2, 1, 1, 1, 2).reshape(2, 2, 2), (2, 2, 4))),
    Case("ScatterND", ((3, 3, 4), i64(0, 1, 0, 2, 1, 1, 1, 2).reshape(2, 2, 2), (2, 2, 4))),
    Case("ScatterND", ((2, 3), i64(1, 0, 0, 2, 0, 0).reshape(3, 2), (3,))),
    Case("ScatterElements", ((3, 4), i64(1, 2, 1, 2, 1, 2).reshape(3, 2), (3, 2)), {"axis": 1}),
    Case("ScatterElements", ((3, 4), i64(1, 2, 2, 1).reshape(2, 2), (2, 2)), {"axis": 1}),
    *(
        Case(
            "ScatterND",
            (
                data(np.arange(12).reshape(4, 3), t),
                data([[1], [-3], [1]]),
                data(np.ones((3, 3)), t),
            ),
            {"reduction": "add"},
            opset=18,
        )
        for t in (np.float16, np.float64, np.int32, np.int64, np.uint8)
    ),
    Case(
        "MaxUnpool",
        ((1, 2, 2, 2), data([[[[0, 3], [9, 10]], [[17, 18], [24, 31]]]])),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    Case(
        "TensorScatter",
        ((2, 3, 5, 2), (2, 3, 2, 2), data([1, 4])),
        {"mode": "circular"},
        opset=24,
    ),
    Case("TensorScatter", ((2, 5, 2), (2, 2, 2)), {"axis": 1}, opset=24),
    *(
        Case("MaxPool", ((2, 2, 5, 6),), {"kernel_shape": [3, 2], **attrs}, outputs=2)
        for attrs in (
            {},
            {"strides": [2, 2], "pads": [1, 0, 1, 1]},
            {"storage_order": 1, "strides": [1, 3]},
        )
    ),
    *(
        Case("MaxPool", (TIES,), {"kernel_shape": [2, 2], **attrs}, outputs=2)
        for attrs in ({}, {"strides": [2, 2], "pads": [1, 0, 1, 1]}, {"storage_order": 1})
    ),
]

SAMPLED = [
    *(
        Case(
            "GridSample",
            ((2, 3, 5, 4), (2, 3, 6, 2)),
            {"mode": mode, "padding_mode": padding, "align_corners": corners},
            opset=20,
        )
        for mode in ("nearest", "linear", "cubic")
        for padding in ("zeros", "border", "reflection")
        for corners in (0, 1)
    ),
    Case("GridSample", ((1, 2, 3, 4, 5), (1, 2, 3, 2, 3)), opset=20),
    Case("GridSample", ((1, 1, 4, 4), (1, 3, 3, 2)), {"mode": "bilinear"}, opset=16),
    Case("DeformConv", ((1, 2, 5, 5), (3, 2, 2, 2), (1, 8, 4, 4)), opset=19),
    Case(
        "DeformConv",
        ((1, 4, 5, 5), (4, 2, 3, 3), (1, 36, 3, 3), (4,), (1, 18, 3, 3)),
        {"group": 2, "offset_group": 2, "pads": [1, 1, 1, 1], "strides": [2, 2]},
        opset=19,
    ),
    *(
        Case(
            "RoiAlign",
            ((2, 3, 8, 9), data([[1, 1, 9, 6], [0, 2, 3, 7.5]], FLOAT), data([1, 0])),
            {"output_height": 3, "output_width": 2, "sampling_ratio": 2, **attrs},
            opset=16,
        )
        for attrs in (
            {},
            {"spatial_scale": 0.5, "coordinate_transformation_mode": "output_half_pixel"},
            {"mode": "max"},
        )
    ),
]

CASES = [*SCATTERED, *SAMPLED]
