"""Cases of the rules whose work native functions do: sorting and choosing."""

from __future__ import annotations

import numpy as np

from tests.unit.ops.rule_case import FLOAT, Case, data, i64

TIES = data([[3, 1, 3, 0], [2, 2, 2, 2], [-5, 7, 7, -5]], np.int64)
NO_NUMBER = data([[3.0, np.nan, -2.0], [0.0, -0.0, 1.0]], FLOAT)
MIXED = data([[0.0, -1.5, 0.0], [2.0, 0.0, 3.0]], FLOAT)
CHOSEN = data([False, True, True], np.bool_)
BOXES = data(
    [
        [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [1, 10.9, 0, 9.9]],
        [[0, 0, 2, 2], [0, 0, 2, 2], [5, 5, 6, 6], [0, 0, 1, 2], [0, 0, 0, 0]],
    ],
    FLOAT,
)
SCORES = data(
    [
        [[0.9, 0.75, 0.6, 0.95, 0.5], [0.3, 0.3, 0.95, 0.3, 0.1]],
        [[0.5, 0.5, 0.5, 0.4, 0.9], [0.2, 0.1, 0.0, 0.8, 0.9]],
    ],
    FLOAT,
)

ORDERED = [
    *(
        Case("TopK", ((3, 5, 4), i64(k)), {"axis": axis, "largest": largest}, outputs=2)
        for k, axis, largest in ((1, -1, 1), (3, 1, 0), (5, 1, 1), (3, 0, 1), (0, 2, 1))
    ),
    *(
        Case("TopK", (TIES, i64(k)), {"largest": large}, outputs=2)
        for large in (0, 1)
        for k in (1, 3)
    ),
    Case(
        "TopK",
        (NO_NUMBER, i64(1)),
        outputs=2,
        numpy=lambda x, k: (np.array([[np.nan], [1]], FLOAT), np.array([[1], [2]])),
    ),
    Case(
        "TopK",
        (NO_NUMBER, i64(1)),
        {"largest": 0},
        outputs=2,
        numpy=lambda x, k: (np.array([[-2], [0]], FLOAT), np.array([[2], [0]])),
    ),
    Case("TopK", (data([2**31 - 1, -(2**31), 0, -1], np.int32), i64(4)), outputs=2),
    Case("TopK", ((2, 9),), {"k": 4}, opset=9, outputs=2),
    Case("TopK", ((4, 1, 3), i64(1)), {"axis": 1}, outputs=2),
    *(
        Case("Unique", (values,), {"sorted": ordered}, outputs=4)
        for ordered in (0, 1)
        for values in (TIES, MIXED, data([2, 1, 1, 3, 4, 3]))
    ),
    *(
        Case("Unique", (data([[1, 0, 0], [1, 0, 0], [2, 3, 4]], FLOAT),), {"axis": axis}, outputs=4)
        for axis in (0, -1)
    ),
]

CHOICES = [
    Case("NonZero", (MIXED,)),
    Case("NonZero", (data([[[True, False], [False, True]]], np.bool_),)),
    Case("NonZero", (data([0, 0, 0]),)),
    Case("NonZero", (i64(0, 4, 2),)),
    *(
        # the shape that the specification states; ONNX Runtime's is (1, N)
        Case("NonZero", (data(number),), numpy=lambda x: [np.zeros((0, int(x != 0)), np.int64)])
        for number in (0, 5)
    ),
    Case("Compress", ((3, 4, 2), CHOSEN), {"axis": 1}),
    Case("Compress", ((3, 4), CHOSEN), {"axis": -2}),
    Case("Compress", ((3, 4), CHOSEN)),
    Case("Compress", ((3, 4), np.array([True, False, True])), {"axis": 0}),
    *(
        Case("NonMaxSuppression", (BOXES, SCORES, *limits), {"center_point_box": centred})
        for centred in (0, 1)
        for limits in (
            (i64(2), np.array([0.5], FLOAT), np.array([0.0], FLOAT)),
            (data([9]), data([0.5], FLOAT), data([0.25], FLOAT)),
            (i64(3), np.array([0.0], FLOAT)),
            (i64(3),),
            (),
        )
    ),
]

CASES = [*ORDERED, *CHOICES]
