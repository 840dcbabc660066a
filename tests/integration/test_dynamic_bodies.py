"""Loops, Scans and Ifs over open sizes: one program for all of them, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.integration.control_models import (
    BOOL,
    RANDOM,
    STEP,
    agree,
    body,
    converging,
    info,
    model,
    nested,
    node,
    scanning,
    within,
)
from tilewright.compiler.api import compile_model
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.program import Branch, Instruction, Loop
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json

Shapes = Mapping[str, Sequence[int | str]]


@dataclass(frozen=True)
class DynamicCase:
    """A model with named dimensions, and its ingredients."""

    build: Callable[[], onnx.ModelProto]
    shapes: Shapes
    kinds: tuple[type[Instruction], ...]


def choosing_rows() -> onnx.ModelProto:
    """Either relu(x W) or softmax(x V) + x."""
    weights = {name: np.float32(RANDOM.standard_normal((32, 32))) for name in ("w", "v")}
    then = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["r"])]
    otherwise = [
        node("MatMul", ["x", "v"], ["n"]),
        node("Softmax", ["n"], ["p"], axis=-1),
        node("Add", ["p", "x"], ["q"]),
    ]
    branches = [body(then, [], [info("r")]), body(otherwise, [], [info("q")])]
    choice = node("If", ["c"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
    inputs = {"x": np.zeros((4, 32), np.float32), "c": np.zeros((), np.bool_)}
    return model([choice, node("Add", ["y", "x"], ["z"])], inputs, ["z"], weights)


def choosing_signs() -> onnx.ModelProto:
    """relu(x) or -x: so little that both are computed."""
    branches = [
        body([node(op, ["x"], [f"{op}.y"])], [], [info(f"{op}.y")]) for op in ("Relu", "Neg")
    ]
    choice = node("If", ["c"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
    inputs = {"x": np.zeros((4, 6), np.float32), "c": np.zeros((), np.bool_)}
    return model([choice], inputs, ["y"])


def as_often_as_columns() -> onnx.ModelProto:
    """s' = s + x, once for each column of x; the steps are collected."""
    step = body(
        [
            node("Add", ["s", "x"], ["t"]),
            node("Identity", ["c"], ["on"]),
            node("Tanh", ["t"], ["row"]),
        ],
        [*STEP, info("s")],
        [info("on", BOOL, ()), info("t"), info("row")],
    )
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["n"], axis=0),
        node("Loop", ["n", "", "x"], ["y", "rows"], "columns", body=step),
    ]
    x = {"x": np.zeros((3, 7), np.float32)}
    return model(nodes, x, ["y", "rows"], {"one": np.array(1)})


def reshaping() -> onnx.ModelProto:
    """s' = (s, reshaped to the shape of x, + the first row of x) W: the body reads a shape that is
    computed outside, and computes one."""
    step = body(
        [
            node("Reshape", ["s", "shape"], ["same"]),
            node("Slice", ["x", "zero", "one", "zero"], ["first"]),
            node("Shape", ["first"], ["row"]),
            node("Expand", ["first", "row"], ["again"]),
            node("Add", ["same", "again"], ["t"]),
            node("MatMul", ["t", "w"], ["u"]),
            node("Identity", ["c"], ["on"]),
        ],
        [*STEP, info("s")],
        [info("on", BOOL, ()), info("u")],
    )
    shape = node("Shape", ["x"], ["shape"])
    loop = node("Loop", ["n", "", "x"], ["y"], "loop", body=step)
    inputs = {"x": np.zeros((3, 7), np.float32), "n": np.zeros((), np.int64)}
    constants = {
        "one": np.array([1]),
        "zero": np.array([0]),
        "w": np.float32(RANDOM.standard_normal((7, 7)) / 4),
    }
    return model([shape, loop], inputs, ["y"], constants)


CASES = {
    "branches": DynamicCase(choosing_rows, {"x": ("rows", 32), "c": ()}, (Branch,)),
    "branches that cost little": DynamicCase(choosing_signs, {"x": ("rows", 6), "c": ()}, ()),
    "until it converges": DynamicCase(converging, {"x": ("rows", "width"), "tol": ()}, (Loop,)),
    "a loop in an If in a loop": DynamicCase(
        nested, {"x": ("rows", 6), "flag": ()}, (Loop, Loop, Branch)
    ),
    "steps for each column": DynamicCase(as_often_as_columns, {"x": ("rows", "width")}, (Loop,)),
    "sizes in the body": DynamicCase(reshaping, {"x": ("rows", 7), "n": ()}, (Loop,)),
    "scan": DynamicCase(
        lambda: scanning(40, [0, 0], [0, 1]),
        {"a0": (2, 8), "b0": (2, 8), "us": ("time", 2, 8), "vs": ("time", 2, 8)},
        (Loop,),
    ),
}

VALUES: dict[str, Callable[[int], Any]] = {
    "c": lambda trial: np.array(bool(trial % 2)),
    "flag": lambda trial: np.array(trial % 3),
    "n": lambda trial: np.array(trial % 7),
    "tol": lambda trial: np.array(1e-3, np.float32),
}


def opened(case: DynamicCase) -> onnx.ModelProto:
    proto = case.build()
    for given in proto.graph.input:
        dims = given.type.tensor_type.shape.dim
        for dim, size in zip(dims, case.shapes[given.name], strict=True):
            if isinstance(size, str):
                dim.dim_param = size
    return proto


@pytest.mark.parametrize("name", CASES)
def test_one_program_runs_bodies_of_all_sizes(name: str) -> None:
    case = CASES[name]
    proto = opened(case)
    model = compile_model(proto)
    assert isinstance(model, GuardedModel) and model.ranged is not None, model.reason
    program = model.ranged.program
    assert all(d.high == 4096 for d in program.dimensions)  # nothing asked for less
    assert program_from_json(program_to_json(program)) == program
    for kind in set(case.kinds):
        assert within(model.ranged, kind) == case.kinds.count(kind)
    other = model.ranged.with_threads(2)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [d.name for d in program.dimensions]
    random = np.random.default_rng(5)
    vectors = [dict.fromkeys(names, size) for size in (1, 2, 17, 64)]
    vectors += [{n: int(random.integers(1, 50)) for n in names} for _ in range(16)]
    for trial, sizes in enumerate(random.permutation(np.array(vectors, object))):
        feeds = {
            key: VALUES[key](trial)
            if key in VALUES
            else np.float32(
                0.5 + random.random([sizes[n] if isinstance(n, str) else n for n in shape])
            )
            for key, shape in case.shapes.items()
        }
        expected = session.run(None, feeds)
        agree(model.run(feeds), expected)
        agree(other.run(feeds), expected)
    assert model.made == ()
