"""A model that fails on random inputs: the error names the inputs to give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper

from tests.unit.service.api_calls import problem, upload
from tests.unit.service.command_line import data_folder, run
from tilewright.compiler.errors import CompilerError, InvalidInputError
from tilewright.compiler.process.bounded import Limits
from tilewright.service.jobs.inputs import random_choices as drawn_choices
from tilewright.service.jobs.inputs.given_inputs import GivenInputs
from tilewright.service.jobs.inputs.random_choices import check_draws, deciding_inputs, named_inputs
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan.bounded_planning import plan_bounded
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_first_sizes
from tilewright.service.options import JobOptions
from tilewright.tuner.cancel import CancelToken

__all__ = ["data_folder"]  # a fixture

NAMED = (
    r"If 'y': the branch that is chosen contradicts itself: .*; this depends on the random "
    r"values of 'sr': give --value 'sr=NUMBER', or real inputs with --samples"
)


def selecting(condition: list[Any] | None = None) -> bytes:
    """A rate above 8000 selects the branch that can be run."""

    def info(name: str, dims: list[Any], kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, dims)

    branches = {
        f"{which}_branch": helper.make_graph(
            [helper.make_node("MatMul", ["x", weights], [which])],
            which,
            [],
            [info(which, ["n", 8])],
        )
        for which, weights in (("then", "w"), ("else", "bad"))
    }
    nodes = condition or [helper.make_node("Greater", ["sr", "limit"], ["wide"])]
    constants = {
        "w": np.ones((16, 8), np.float32),
        "bad": np.ones((7, 8), np.float32),
        "limit": np.array(8000),
    }
    graph = helper.make_graph(
        [*nodes, helper.make_node("If", ["wide"], ["y"], **branches)],
        "selecting",
        [info("x", ["n", 16]), info("sr", [], TensorProto.INT64), info("gain", [])],
        [info("y", ["n", 8])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    data: bytes = made.SerializeToString()
    return data


def planned(data: bytes, given: GivenInputs | None = None) -> Planned:
    request = ModelRequest(data) if given is None else ModelRequest(data, given=given)
    return plan_first_sizes(request, {"n": ["1..8@4"]})


pytestmark = pytest.mark.filterwarnings("ignore:If 'y'")


def test_the_inputs_that_select_a_branch_are_named_before_it_runs() -> None:
    found = planned(selecting())
    with pytest.raises(InvalidInputError, match=NAMED):
        check_draws([found])
    assert deciding_inputs(found.graph, "something else") == ()
    check_draws([planned(selecting(), GivenInputs((), {"sr": 16000}))])
    sample = {
        "x": np.ones((4, 16), np.float32),
        "gain": np.array(1, np.float32),
        "sr": np.array(16000),
    }
    check_draws([planned(selecting(), GivenInputs((sample,)))])


def test_the_child_that_plans_for_a_job_refuses_them() -> None:
    """The model's output is computed in the child, within limits."""
    spec = JobSpec(selecting(), options=JobOptions(dims={"n": "1..8@4"}))
    with pytest.raises(CompilerError, match=NAMED):
        plan_bounded(spec, Limits(4 << 30, 60.0), CancelToken())


def test_a_value_that_was_given_is_not_asked_for() -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_draws([planned(selecting(), GivenInputs((), {"sr": 8000}))])
    assert "contradicts itself" in str(refused.value) and "--value" not in str(refused.value)


def test_what_fails_only_in_a_run_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a condition is expensive, or another error names the branch."""
    monkeypatch.setattr(drawn_choices, "FEW", 0)
    summed = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["limit"], ["bound"], to=TensorProto.FLOAT),
        helper.make_node("Greater", ["sum", "bound"], ["wide"]),
    ]
    found = planned(selecting(summed))
    check_draws([found])
    message = "If 'y': the branch that is chosen contradicts itself: MatMul 'y/else_branch/else'"
    (own,) = {m for m in _refusals(found) if m.startswith(message)}
    named = re.escape(f"{own}; this depends on the random values of 'x'")
    with pytest.raises(InvalidInputError, match=named), named_inputs([found]):
        raise InvalidInputError(own)
    with pytest.raises(InvalidInputError, match=r"^no such input$"), named_inputs([found]):
        raise InvalidInputError("no such input")


def _refusals(found: Planned) -> list[str]:
    bodies = [body for node in found.graph.nodes for body in node.bodies]
    return [str(n.attr("message")) for body in bodies for n in body.nodes if n.op == "refuse"]


@pytest.mark.usefixtures("few_children")
def test_commands_name_the_input_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(onnx.load_from_string(selecting()), model)
    short = ("--rounds", "1", "--seconds", "0.01")
    ways = (
        (("tune",), ("--trials", "9")),
        (("bench",), short),
        (("show", "kernels"), ()),
        (("show", "time"), ()),
    )
    for command, options in ways:
        assert run(*command, model, *options, "--dim", "n=4") == 1
        told = capsys.readouterr()
        assert re.search(NAMED, " ".join(told.err.split())), command
        assert "trials" not in told.out, "nothing was tuned before"
        given = (*options, "--value", "sr=16000")
        assert run(*command, model, *given, "--dim", "n=4") == 0, command
        capsys.readouterr()


def test_a_job_is_refused_when_it_is_made(client: TestClient) -> None:
    body = {"model": upload(client, selecting()), "dims": {"n": 4}}
    status, slug, said = problem(client.post("/v1/jobs", json=body))
    assert (status, slug) == (422, "compiler-error")
    assert re.search(NAMED, said)
    here = {"name": "here", "targets": ["host"], "protocol": 1}
    client.post("/v1/workers", json=here)
    assert client.post("/v1/jobs", json={**body, "values": {"sr": 16000}}).status_code == 201
