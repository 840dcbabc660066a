"""A program for ranges is verified at their ends, and between them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.mode import Mode
from tilewright.compiler.program import artifacts
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.runtime.artifact import read_artifact
from tilewright.service.jobs.device.loadables import of_artifact
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.evidence import verified_sizes
from tilewright.service.jobs.evidence.verification import Verification, Verifier, at_each_size
from tilewright.service.jobs.evidence.verified_sizes import FEW, MOST, at_verified_sizes
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_sizes
from tilewright.service.jobs.report.shown_sizes import LONG_RUN, shown_sizes

WIDTH = 4


def model(*, beyond: int = 0) -> bytes:
    """Rows times a matrix; with `beyond`, the model adds max(n - beyond, 0) to each element."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"])]
    constants = {"w": np.eye(WIDTH, dtype=np.float32)}
    if beyond:
        nodes += [
            helper.make_node("Shape", ["x"], ["shape"], end=1),
            helper.make_node("Sub", ["shape", "limit"], ["more"]),
            helper.make_node("Max", ["more", "nothing"], ["some"]),
            helper.make_node("Cast", ["some"], ["real"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["p", "real"], ["y"]),
        ]
        constants |= {"limit": np.array([beyond]), "nothing": np.array([0])}
    else:
        nodes.append(helper.make_node("Identity", ["p"], ["y"]))
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("x", "y")
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "rows", infos[:1], infos[1:], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def planned(text: str, *, beyond: int = 0) -> Planned:
    (found,) = plan_sizes(ModelRequest(model(beyond=beyond)), {"n": [text]})
    return found


def sizes(one: Planned) -> list[int]:
    return [dict(each.sizes)["n"] for each in at_verified_sizes(one)]


def test_both_ends_and_sizes_between_are_verified() -> None:
    for text, low, high in (("1..99", 1, 99), ("0..64:8", 0, 64), ("30..31", 30, 31)):
        found = sizes(planned(text))
        assert {low, high} <= set(found) and min(found) == low and max(found) == high
        assert len(found) == len(set(found)) and all(
            n % (8 if ":" in text else 1) == 0 for n in found
        )
    for each in at_verified_sizes(planned("1..99")):
        (n,) = (n for _, n in each.sizes)
        assert each.graph.types["x"].shape == (n, WIDTH) and not each.plan.dimensions


def test_ends_that_cost_too_much_are_nearer() -> None:
    few = FEW // (2 * WIDTH * WIDTH)  # rows
    found = sizes(planned(f"1..{1000 * few}"))
    assert 1 in found and MOST * 128 < max(found) <= few
    assert max(sizes(planned("1.."))) == MOST * 128


def test_other_sizes_of_a_large_model_cost_what_the_hints_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verified_sizes, "FEW", 0)
    assert max(sizes(planned("1.."))) > 128
    monkeypatch.setattr(verified_sizes, "MANY", 1)
    assert max(sizes(planned("1.."))) == 128


def test_a_plan_of_numbers_is_verified_as_it_is() -> None:
    (one,) = plan_sizes(ModelRequest(model()), {"n": [3]})
    assert at_verified_sizes(one) == (one,)


@pytest.mark.skipif(not linkers(), reason="no linker")
def test_a_program_that_is_wrong_at_one_end_is_refused(tmp_path: Path) -> None:
    right, other = planned("1..64"), planned("1..64", beyond=50)
    assert right.open is not None and other.open is not None
    builder = ProgramBuilder(None, Mode(right.target))
    artifacts.save_artifact({(): right.open.plan}, builder, tmp_path / "a")
    artifact, here = read_artifact(tmp_path / "a"), LocalDevice()
    with Verifier([right], here, 10.0) as verifier:
        verifier.verify(partial(of_artifact, artifact))
    assert verifier.found.complete
    wrong = replace(right, open=replace(right.open, graph=other.open.graph))
    with (
        Verifier([wrong], here, 10.0) as verifier,
        pytest.raises(CompilerError, match="value 'y' of the compiled model"),
    ):
        verifier.verify(partial(of_artifact, artifact))


@pytest.mark.parametrize("operator", ["Shape", "Transpose"])
def test_ends_whose_values_take_too_much_are_nearer(operator: str) -> None:
    """Nothing is computed, but an input of 4096 x 4096 x 4096 elements takes 256 GiB."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", "c"])
    kind = TensorProto.INT64 if operator == "Shape" else TensorProto.FLOAT
    y = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"])], "moved", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (one,) = plan_sizes(ModelRequest(made.SerializeToString()), {})
    counts = [each.graph.types["x"].elements for each in at_verified_sizes(one)]
    first = one.graph.types["x"].elements
    assert len(counts) > 2 and max(counts) <= max(FEW, MOST * 2 * first)
    assert max(prod(each.values()) for each in shown_sizes(one)) * 8 <= LONG_RUN


def test_boxes_that_are_compared_with_each_other_cost_their_pairs() -> None:
    """The end of a detector: it has hardly a kernel, and its suppression is quadratic."""
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["found"])
    infos = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, "n", 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 1, "n"]),
    ]
    found = [helper.make_tensor_value_info("found", TensorProto.INT64, ["m", 3])]
    most = numpy_helper.from_array(np.array([1 << 20]), "most")
    graph = helper.make_graph([node], "boxes", infos, found, [most])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (one, *_) = plan_sizes(ModelRequest(bytes(made.SerializeToString())), {"n": ["1..100000"]})
    ranges = [n for each in at_verified_sizes(one) for name, n in each.sizes if name == "n"]
    assert FEW / 10 < max(ranges) ** 2 <= FEW


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # every size of both plans, the hints first and the others in turns
        (0.1, ["a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4", "a5", "b5"]),
        # 10 s for the others, of which one would take 4 s, so that no third one of b fits
        (4.0, ["a1", "b1", "a2", "b2", "a3"]),
        # sizes that would take longer than 10 s, estimated from the hints, are moved closer to the
        # hints
        (30.0, ["a1", "b1", "a2"]),
    ],
)
def test_sizes_beside_the_hints_are_verified_while_there_is_time(
    seconds: float, expected: list[str]
) -> None:
    now, seen = 0.0, []
    plans = {"a": planned("1..4096"), "b": planned("2..4096")}

    def verify(each: Planned) -> Verification:
        nonlocal now
        now += seconds
        name = next(n for n, one in plans.items() if each.open is one.open)
        seen.append(f"{name}{1 + sum(before[0] == name for before in seen)}")
        return Verification(1e-7)

    found = at_each_size([*plans.values()], verify, 10.0, clock=lambda: now)
    assert seen == expected
    assert (found.sizes, found.cut_short) == (len(expected), len(expected) < 10)
    assert found.complete
