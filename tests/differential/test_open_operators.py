"""Operators whose extents are open: one program at drawn sizes, against ONNX Runtime.

Both ends of the ranges, what lies beside tiles, and drawn sizes; none of them is compiled.
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

from compiler import driver
from compiler.runtime.sized import SizedExecutable
from tests.examples import examples

Shape = tuple[int | str, ...]

DRAWN = 6
"""Drawn size vectors of a case, beside those of its ends and tiles."""


@dataclass(frozen=True)
class Input:
    """A float, or an integer of [low, high), where a text stands for the dimension of that name."""

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
        """Both ends, 1, primes and what lies beside tiles of each dimension; then drawn ones."""
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
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_program_is_right_at_every_size(case: Case) -> None:
    model = case.model()
    ranges = {name: f"{low}..{high}" for name, (low, high) in case.ranges.items()}
    executable = driver.compile_model(model, dims=ranges)
    assert isinstance(executable, SizedExecutable)
    assert executable.ranged is not None, executable.reason
    oracle = onnxruntime.InferenceSession(model.SerializeToString())
    for sizes in case.vectors():
        given = case.feeds(sizes)
        expected: list[Any] = oracle.run(None, given)
        for ours, theirs in zip(executable.run(given), expected, strict=True):
            assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, sizes
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5, err_msg=str(sizes))
    assert not executable.made
