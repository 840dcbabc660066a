"""Operators whose extents are open: one program at random sizes, against ONNX Runtime.

The sizes are both ends of the ranges, neighbours of tile sizes, and random ones; the program is
compiled for none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tests.examples import examples
from tilewright.compiler.api import compile_model
from tilewright.compiler.runtime.guarded import GuardedModel

Shape = tuple[int | str, ...]

DRAWN = 6
"""Random size vectors per case, in addition to those of its ends and tiles."""


@dataclass(frozen=True)
class Input:
    """A float, or an integer of [low, high); a text is computed of the dimensions that it names."""

    shape: Shape
    dtype: Any = np.float32
    low: int | str = 0
    high: int | str = 1

    def drawn(self, sizes: Mapping[str, int], random: np.random.Generator) -> np.ndarray:
        def at(end: int | str) -> int:
            return eval(end, {}, dict(sizes)) if isinstance(end, str) else end  # ours

        shape = [at(extent) for extent in self.shape]
        if self.dtype is np.float32:
            return random.standard_normal(shape).astype(np.float32)
        return random.integers(at(self.low), at(self.high), shape).astype(self.dtype)


@dataclass(frozen=True)
class Case:
    """One node; arrays among its operands are constants, None is left out."""

    name: str
    op: str
    operands: tuple[Input | np.ndarray | None, ...]
    ranges: Mapping[str, tuple[int, int]]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    opset: int = 19

    def model(self) -> onnx.ModelProto:
        inputs, constants, names = [], [], []
        for number, operand in enumerate(self.operands):
            name = "" if operand is None else f"x{number}"
            names.append(name)
            if isinstance(operand, np.ndarray):
                constants.append(numpy_helper.from_array(operand, name))
            elif operand is not None:
                kind = helper.np_dtype_to_tensor_dtype(np.dtype(operand.dtype))
                inputs.append(helper.make_tensor_value_info(name, kind, operand.shape))
        outputs = [f"y{number}" for number in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, name="node", **self.attrs)
        infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph([node], self.name, inputs, infos, constants)
        imports = [helper.make_opsetid("", self.opset)]
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=imports, ir_version=9)
        )

    def feeds(self, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        random = np.random.default_rng(list(sizes.values()))
        return {
            f"x{number}": operand.drawn(sizes, random)
            for number, operand in enumerate(self.operands)
            if isinstance(operand, Input)
        }

    def vectors(self) -> Iterator[dict[str, int]]:
        """Both ends, 1, primes and the neighbours of tile sizes of each dimension; then random
        ones."""
        draw, ends = Random(1), self.ranges
        for listed in product(*ends.values()):
            yield dict(zip(ends, listed, strict=True))
        for size in (1, 2, 7, 8, 9, 16, 17, 31):
            yield {name: min(max(size, low), high) for name, (low, high) in ends.items()}
        for _ in range(examples(DRAWN)):
            yield {name: draw.randint(low, high) for name, (low, high) in ends.items()}


def floats(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


IMAGE = Input((2, 3, "h", "w"))
SIZES = {"h": (1, 33), "w": (1, 40)}


def recurrent(op: str, gates: int, directions: int, *more: Any, **attrs: Any) -> Case:
    """A layer of 5 states over sequences of 4 features."""
    draw = np.random.default_rng(gates)
    weights = [
        (draw.standard_normal((directions, *shape)) / 3).astype(np.float32)
        for shape in ((gates * 5, 4), (gates * 5, 5), (2 * gates * 5,))
    ]
    return Case(
        f"{op}-{'-'.join(map(str, attrs.values()))}-{len(more)}",
        op,
        (Input(("t", "b", 4)), *weights, *more),
        {"t": (1, 70), "b": (1, 4)},
        {"hidden_size": 5, **attrs},
        outputs=2,
    )


def resized(mode: str, place: str, *scales: float, **attrs: Any) -> Case:
    least = {name: (2 if min(scales) < 1 else 1, last) for name, (_, last) in SIZES.items()}
    found = {"mode": mode, "coordinate_transformation_mode": place, **attrs}
    name = f"{mode}-{place}-{scales}-{'-'.join(attrs)}"
    return Case(f"Resize-{name}", "Resize", (IMAGE, None, floats(1, 1, *scales)), least, found)


CASES = (
    resized("linear", "half_pixel", 2, 2),
    resized("linear", "half_pixel", 1.5, 0.75),
    resized("linear", "pytorch_half_pixel", 0.5, 2),
    resized("linear", "align_corners", 2, 3),
    resized("linear", "asymmetric", 2, 2),
    resized("linear", "half_pixel", 0.5, 0.5, antialias=1),
    resized("cubic", "half_pixel", 2, 2),
    resized("cubic", "half_pixel", 1.25, 0.5, cubic_coeff_a=-0.5, exclude_outside=1),
    resized("nearest", "asymmetric", 1.5, 0.5, nearest_mode="floor"),
    resized("nearest", "half_pixel", 2, 1.5),
    Case(
        "Resize-to a fixed size",
        "Resize",
        (IMAGE, None, None, np.array([2, 3, 24, 17])),
        SIZES,
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    *(
        Case(f"{op}-{'-'.join(map(str, attrs.values()))}", op, (IMAGE, *kernel), SIZES, attrs)
        for op, kernel, attrs in (
            ("AveragePool", (), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
            ("AveragePool", (), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
            (
                "AveragePool",
                (),
                {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
            ),
            (
                "AveragePool",
                (),
                {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1},
            ),
            ("MaxPool", (), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
            ("MaxPool", (), {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
            (
                "MaxPool",
                (),
                {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "ceil_mode": 1},
            ),
            ("Conv", (floats(*range(27)).reshape(1, 3, 3, 3),), {"auto_pad": "SAME_UPPER"}),
            (
                "Conv",
                (floats(*range(54)).reshape(2, 3, 3, 3) / 20,),
                {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
            ),
        )
    ),
    Case(
        "Conv-of any number of channels",
        "Conv",
        (Input((1, "c", 5, 6)), Input((3, "c", 2, 2))),
        {"c": (1, 20)},
    ),
    Case(
        "GatherElements",
        "GatherElements",
        (Input(("n", 5, "m")), Input(("n", 4, "m"), np.int64, -5, 5)),
        {"n": (1, 9), "m": (1, 33)},
        {"axis": 1},
    ),
    Case(
        "GatherElements-along the open axis",
        "GatherElements",
        (Input((3, "m")), Input((2, "k"), np.int64, "-m", "m")),
        {"m": (1, 40), "k": (1, 9)},
        {"axis": -1},
    ),
    Case(
        "GatherND-batch",
        "GatherND",
        (Input(("b", "n", 4)), Input(("b", "k", 1), np.int64, "-n", "n")),
        {"b": (1, 3), "n": (1, 40), "k": (1, 9)},
        {"batch_dims": 1},
    ),
    Case(
        "GatherND-pairs",
        "GatherND",
        (Input(("n", "m", 3)), Input(("k", 2), np.int64, 0, "min(n, m)")),
        {"n": (1, 9), "m": (1, 17), "k": (1, 9)},
    ),
    Case(
        "Gather-along the open axis",
        "Gather",
        (Input((2, "n")), Input(("k",), np.int64, "-n", "n")),
        {"n": (1, 40), "k": (1, 9)},
        {"axis": 1},
    ),
    Case(
        "OneHot",
        "OneHot",
        (Input(("n", "m"), np.int64, -7, 7), np.array(7), floats(0, 1)),
        {"n": (1, 9), "m": (1, 33)},
    ),
    Case("Hardmax", "Hardmax", (Input((3, "n")),), {"n": (1, 40)}),
    Case(
        "Hardmax-of rows", "Hardmax", (Input(("n", 3, "m")),), {"n": (1, 4), "m": (1, 9)}, opset=11
    ),
    Case("EyeLike", "EyeLike", (Input(("n", "m")),), {"n": (1, 17), "m": (1, 9)}, {"k": -1}),
    Case(
        "TopK",
        "TopK",
        (Input(("b", "n")), np.array([5])),
        {"b": (1, 4), "n": (5, 40)},
        {"axis": 1},
        outputs=2,
    ),
    Case(
        "ReverseSequence",
        "ReverseSequence",
        (Input(("t", "b", 3)), Input(("b",), np.int64, 1, "t+1")),
        {"t": (1, 20), "b": (1, 4)},
    ),
    Case(
        "ScatterElements",
        "ScatterElements",
        (Input((3, "n")), Input((3, 1), np.int64, "-n", "n"), Input((3, 1))),
        {"n": (1, 40)},
        {"axis": 1},
    ),
    *(
        Case(
            f"CumSum-{axis}",
            "CumSum",
            (Input(("b", "n", "m")), np.array(axis)),
            {"b": (1, 3), "n": (1, 40), "m": (1, 17)},
            {"reverse": axis % 2},
        )
        for axis in (0, 1, 2)
    ),
    Case(
        "ScatterND-added",
        "ScatterND",
        (Input(("n", "m")), Input(("k", 1), np.int64, 0, "n"), Input(("k", "m"))),
        {"n": (1, 9), "m": (1, 17), "k": (1, 5)},
        {"reduction": "add"},
        opset=16,
    ),
    *(
        Case(
            f"Pad-{mode}",
            "Pad",
            (Input((2, "n", "m")), np.array([0, 3, 1, 0, 2, 4])),
            {"n": (5, 20), "m": (5, 33)},
            {"mode": mode},
        )
        for mode in ("reflect", "edge", "wrap")
    ),
    recurrent("LSTM", 4, 2, direction="bidirectional"),
    recurrent("LSTM", 4, 1, Input(("b",), np.int32, 1, "t+1")),
    recurrent("GRU", 3, 1, direction="reverse", linear_before_reset=1),
    recurrent("RNN", 1, 1, None, Input((1, "b", 5))),
    Case("NonZero", "NonZero", (Input(("n", "m"), np.int64, 0, 2),), {"n": (1, 9), "m": (1, 17)}),
    Case("MeanVariance", "LayerNormalization", (Input((3, "n")), floats(1)), {"n": (1, 70)}),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_program_is_right_at_every_size(case: Case) -> None:
    model = case.model()
    ranges = {name: f"{low}..{high}" for name, (low, high) in case.ranges.items()}
    executable = compile_model(model, dims=ranges)
    assert isinstance(executable, GuardedModel)
    assert executable.ranged is not None, executable.reason
    oracle = onnxruntime.InferenceSession(model.SerializeToString())
    for sizes in case.vectors():
        given = case.feeds(sizes)
        found: Any = executable.run(given)
        for ours, theirs in zip(found, oracle.run(None, given), strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, sizes
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5, err_msg=str(sizes))
    assert not executable.made
