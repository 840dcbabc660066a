"""Ifs that the run decides, alone and in Loops: whole models against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.integration.control_models import (
    RANDOM,
    body,
    checked,
    choosing,
    info,
    model,
    nested,
    node,
    within,
)
from tilewright.compiler.runtime.program import Branch, KernelCall, Loop


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("flag", [0, 1, 2])
def test_a_loop_in_an_if_in_a_loop(flag: int, threads: int) -> None:
    feeds = {"x": RANDOM.standard_normal((2, 6)).astype(np.float32), "flag": np.array(flag)}
    executable = checked(nested(), feeds, threads)
    assert within(executable, Loop) == 2 and within(executable, Branch) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_only_the_chosen_branch_runs(threads: int) -> None:
    proto = choosing()
    x = RANDOM.standard_normal((64, 256)).astype(np.float32)
    for chosen in (True, False):
        feeds = {"x": x, "c": np.array(chosen)}
        executable = checked(proto, feeds, threads)
        (branch,) = (i for i in executable.program.instructions if isinstance(i, Branch))
        order = list(executable.program.walk())
        best = executable.profile(feeds, 3).min(axis=0)
        spent = [
            sum(best[order.index(i)] for i in part) for part in (branch.then, branch.otherwise)
        ]
        assert spent[0 if chosen else 1] > 0
        assert spent[1 if chosen else 0] == 0


def test_a_few_elements_are_computed_in_both_branches() -> None:
    branches = [
        body([node(op, ["x"], [f"{op}.y"])], [], [info(f"{op}.y")]) for op in ("Relu", "Neg")
    ]
    choice = node("If", ["c"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
    inputs = {"x": np.zeros((4, 6), np.float32), "c": np.zeros((), np.bool_)}
    proto = model([choice], inputs, ["y"])
    x = RANDOM.standard_normal((4, 6)).astype(np.float32)
    executable = checked(proto, {"x": x, "c": np.array(False)})
    assert within(executable, Branch) == 0 and within(executable, KernelCall) == 1


def test_ifs_within_ifs_give_inputs_constants_and_nothing() -> None:
    """Outputs that are an input, a constant, another output again, and that have no elements."""
    inner = [
        body([node("MatMul", ["x", "w"], ["m"])], [], [info("m")]),
        body([node("Identity", ["x"], ["k"])], [], [info("k")]),
    ]
    one = body(
        [
            node("If", ["d"], ["y"], "inner", then_branch=inner[0], else_branch=inner[1]),
            node("Identity", ["w"], ["w_"]),
            node("Identity", ["y"], ["y_"]),
        ],
        [],
        [info("y"), info("w_"), info("y_"), info("none")],
        {"none": np.zeros((0, 3), np.float32)},
    )
    other = body(
        [node("Identity", ["x"], ["x_"]), node("Identity", ["x"], ["x2"])],
        [],
        [info("x_"), info("x2"), info("z"), info("nothing")],
        {"z": np.ones((6, 6), np.float32), "nothing": np.zeros((0, 3), np.float32)},
    )
    names = ["p", "q", "r", "s"]
    choice = node("If", ["c"], names, "if", then_branch=one, else_branch=other)
    w = RANDOM.standard_normal((6, 6)).astype(np.float32)
    inputs = {"x": np.zeros((6, 6), np.float32)}
    inputs |= {name: np.zeros((), np.bool_) for name in "cd"}
    joined = node("Concat", ["s", "row"], ["t"], axis=0)
    row = np.ones((1, 3), np.float32)
    proto = model([choice, joined], inputs, [*names[:3], "t"], {"w": w, "row": row})
    x = RANDOM.standard_normal((6, 6)).astype(np.float32)
    for c in (True, False):
        for d in (True, False):
            checked(proto, {"x": x, "c": np.array(c), "d": np.array(d)})
