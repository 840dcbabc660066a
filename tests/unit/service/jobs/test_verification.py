"""Whole models against their references, also where they choose by values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.service.devices import FakeDevice
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.program import artifacts
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.runtime.artifact import Artifact, read_artifact
from tilewright.service.jobs.device.loadables import of_artifact
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.evidence.certificate import WrongProgramError, together
from tilewright.service.jobs.evidence.verification import (
    Verifier,
    largest_model_error,
    verify_artifact,
)
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_model
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.measure.run_packing import Blobs
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import RunRequest

HERE = LocalDevice()
"""It measures no kernel, and so starts no child."""

WRONG = r"differs from its reference|the values before it are right"


def detector() -> bytes:
    """A convolution, its 3 best places, the places where it is positive, and the values gathered
    there."""
    random = np.random.default_rng(4)
    weight = random.standard_normal((8, 8, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("TopK", ["a", "k"], ["values", "places"], "best", axis=1),
        helper.make_node("Greater", ["a", "zero"], ["positive"], "compare"),
        helper.make_node("NonZero", ["positive"], ["where"], "nonzero"),
        helper.make_node("Mul", ["values", "values"], ["raised"], "square"),
    ]
    constants: dict[str, Any] = {"w": weight, "k": np.array([3]), "zero": np.float32(0)}
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 6, 6])],
        [helper.make_empty_tensor_value_info(name) for name in ("places", "where", "raised")],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )
    made: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    data: bytes = made.SerializeToString()
    return data


@pytest.fixture(scope="module")
def planned() -> Planned:
    return plan_model(ModelRequest(detector()))


@pytest.mark.skipif(not linkers(), reason="no linker")
def test_an_artifact_with_choices_is_verified(planned: Planned, tmp_path: Path) -> None:
    builder = ProgramBuilder(None, Mode(planned.target))
    artifacts.save_artifact({(): planned.plan}, builder, tmp_path / "a")
    checked = verify_artifact(planned, read_artifact(tmp_path / "a"), HERE)
    assert checked.complete and checked.error is not None and checked.error < 1e-5
    other = _with_weight_moved(planned)
    with pytest.raises(CompilerError, match=WRONG):
        verify_artifact(other, read_artifact(tmp_path / "a"), HERE)


@pytest.mark.skipif(not linkers(), reason="no linker")
def test_a_wrong_artifact_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    given = plan_model(ModelRequest(plain()))
    wrong = replace(given, graph=_with_weight_moved(given).graph)
    builder = ProgramBuilder(None, Mode(given.target))
    with Verifier([given], HERE, 10.0) as verifier:
        artifacts.save_artifact({(): given.plan}, builder, tmp_path / "a", check=checked(verifier))
    assert verifier.found.complete
    manifest = tmp_path / "a" / "manifest.json"
    before = manifest.stat()
    for place in ("a", "b"):
        with (
            Verifier([wrong], HERE, 10.0) as verifier,
            pytest.raises(CompilerError, match=WRONG),
        ):
            artifacts.save_artifact(
                {(): given.plan}, builder, tmp_path / place, check=checked(verifier)
            )
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    after = manifest.stat()  # its access time changes when it is read
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.skipif(not linkers(), reason="no linker")
@pytest.mark.parametrize("choosing", [True, False])
def test_references_that_are_computed_meanwhile_say_the_same(
    planned: Planned, choosing: bool, tmp_path: Path
) -> None:
    given = planned if choosing else plan_model(ModelRequest(plain()))
    for model in (given, _with_weight_moved(given)):
        with Verifier([model, model], HERE, 10.0) as verifier:
            builder = ProgramBuilder(None, Mode(given.target))
            artifacts.save_artifact({(): given.plan}, builder, tmp_path / "a")
            if model is given:
                checked(verifier)(read_artifact(tmp_path / "a"))
                alone = verify_artifact(given, read_artifact(tmp_path / "a"), HERE)
                steps = [alone.by_steps] * 2 if alone.by_steps is not None else []
                assert steps, "checked by steps"
                both = together(steps)
                assert verifier.found == replace(alone, by_steps=both, sizes=2)
            else:
                with pytest.raises(CompilerError, match=WRONG):
                    checked(verifier)(read_artifact(tmp_path / "a"))


@pytest.mark.skipif(not linkers(), reason="no linker")
def test_random_numbers_are_those_of_the_reference(tmp_path: Path) -> None:
    """Each run has other random numbers, except for verified runs."""
    node = helper.make_node("RandomNormalLike", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [40]) for name in "xy")
    model = helper.make_model(
        helper.make_graph([node], "drawing", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    given = plan_model(ModelRequest(model.SerializeToString()))
    builder = ProgramBuilder(None, Mode(given.target))
    artifacts.save_artifact({(): given.plan}, builder, tmp_path / "a")
    assert verify_artifact(given, read_artifact(tmp_path / "a"), HERE).complete
    executable = read_artifact(tmp_path / "a").executable()
    (first,), (second,) = (executable.run([np.zeros(40, np.float32)]) for _ in range(2))
    assert (first != second).all()


def checked(verifier: Verifier) -> Callable[[Artifact], None]:
    return lambda made: verifier.verify(partial(of_artifact, made))


def plain() -> bytes:
    """A convolution that chooses nothing."""
    weight = np.random.default_rng(4).standard_normal((8, 8, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])],
        "plain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 6, 6])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def narrow(element_type: int, factor: float = 1.0) -> bytes:
    """exp(x @ w) in a narrow type, and its negation in float32."""
    weight = np.random.default_rng(4).standard_normal((32, 16)) * 0.1 * factor
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Exp", ["product"], ["y"]),
        helper.make_node("Cast", ["y"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Neg", ["wide"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "narrow",
        [helper.make_tensor_value_info("x", element_type, [8, 32])],
        [helper.make_empty_tensor_value_info("y"), helper.make_empty_tensor_value_info("z")],
        [helper.make_tensor("w", element_type, weight.shape, weight.flatten())],
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


@pytest.mark.skipif(not linkers(), reason="no linker")
@pytest.mark.parametrize("element_type", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_outputs_of_narrow_types_are_verified_by_their_numbers(
    element_type: int, tmp_path: Path
) -> None:
    given = plan_model(ModelRequest(narrow(element_type)))
    artifacts.save_artifact(
        {(): given.plan}, ProgramBuilder(None, Mode(given.target)), tmp_path / "a"
    )
    artifact = read_artifact(tmp_path / "a")
    assert verify_artifact(given, artifact, HERE).complete
    other = plan_model(ModelRequest(narrow(element_type, 1.5)))
    with pytest.raises(CompilerError, match=r"value '[yz]' of the compiled model is"):
        verify_artifact(other, artifact, HERE)


@pytest.mark.skipif(not linkers(), reason="no linker")
def test_a_narrower_precision_is_verified_against_float32(tmp_path: Path) -> None:
    """A wrong weight shows, although more is allowed than in float32."""
    given = plan_model(ModelRequest(narrow(TensorProto.FLOAT), Mode(precision="bfloat16")))
    artifacts.save_artifact(
        {(): given.plan}, ProgramBuilder(None, Mode(given.target)), tmp_path / "a"
    )
    artifact = read_artifact(tmp_path / "a")
    assert verify_artifact(given, artifact, HERE).complete
    other = plan_model(ModelRequest(narrow(TensorProto.FLOAT, -1.0), Mode(precision="bfloat16")))
    with pytest.raises(WrongProgramError, match=r"value '[yz]' of the compiled model is") as found:
        verify_artifact(other, artifact, HERE)
    assert set(found.value.written) <= {step.output for step in other.plan.kernels}


@pytest.mark.skipif(not linkers(), reason="no linker")
def test_a_value_that_float16_does_not_hold_is_named(tmp_path: Path) -> None:
    """Two products, the first of which gives some 1e6; the weights are small."""
    weight = np.full((32, 32), 8.0, np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["large"]),
        helper.make_node("MatMul", ["large", "w"], ["first"]),
        helper.make_node("MatMul", ["first", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 32]) for n in "xy"]
    constants = [
        helper.make_tensor("w", TensorProto.FLOAT, weight.shape, weight.flatten()),
        helper.make_tensor("scale", TensorProto.FLOAT, (), [3e4]),
    ]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], constants)
    model = bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    )
    for precision in ("float16", "bfloat16"):
        given = plan_model(ModelRequest(model, Mode(precision=precision)))
        folder = tmp_path / precision
        artifacts.save_artifact({(): given.plan}, ProgramBuilder(None, Mode(given.target)), folder)
        if precision == "bfloat16":
            assert verify_artifact(given, read_artifact(folder), HERE).complete
            continue
        with pytest.raises(
            CompilerError, match=r"value '.*' reaches .*e\+0\d on random .* float16"
        ):
            verify_artifact(given, read_artifact(folder), HERE)


def _with_weight_moved(planned: Planned) -> Planned:
    """Another model, of which the artifact is not."""
    graph: Graph = planned.graph
    constants = dict(graph.constants)
    name = max(constants, key=lambda n: constants[n].size)
    constants[name] = np.asarray(constants[name] * np.float32(1.01))
    return replace(planned, graph=replace(graph, constants=constants))


@pytest.mark.parametrize("runs", [True, False])
def test_a_reference_is_computed_ahead_where_it_is_wanted(planned: Planned, runs: bool) -> None:
    with Verifier([planned], FakeDevice(runnable=runs), 10.0) as verifier:
        assert [each is not None for each in verifier._expected] == [runs]


def test_values_that_are_not_finite_have_their_places() -> None:
    values = np.array([1.0, np.inf, np.nan], np.float32)
    assert largest_model_error([values.copy()], [values]) == 0.0
    assert largest_model_error([np.ones(3, np.float32)], [values]) == math.inf


def test_a_device_without_the_memory_verifies_nothing(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large size of a range may need more than this machine's memory: the artifact is built, and
    marked as unverified there."""

    def refuse(_: LocalRunner, request: RunRequest, blobs: Blobs) -> RunResult:
        why = "there is not enough memory to run 'm'"
        return RunResult(request.request_id, RunStatus.OUT_OF_MEMORY, why)

    builder = ProgramBuilder(None, planned.mode)
    artifacts.save_artifact({(): planned.plan}, builder, tmp_path / "a")
    monkeypatch.setattr(LocalRunner, "run", refuse)
    found = verify_artifact(planned, read_artifact(tmp_path / "a"), HERE)
    assert not found.complete and found.not_run == (
        "this machine: there is not enough memory to run 'm'"
    )
