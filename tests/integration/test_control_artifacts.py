"""Artifacts with Loops and Ifs: they are verified, and run with NumPy alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from tests.integration.control_models import (
    RANDOM,
    agree,
    choosing,
    converging,
    counting,
    info,
    nested,
    node,
    runtime,
)
from tilewright.compiler import driver
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops import control
from tilewright.compiler.plan.costs import plan_summary
from tilewright.compiler.program import artifacts
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.runtime.artifact import read_artifact
from tilewright.compiler.targets.host import host_target
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.evidence import ties
from tilewright.service.jobs.evidence.verification import Verification, verify_artifact, worst
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_model

HERE = LocalDevice()
"""It measures no kernel, and so starts no child."""


@pytest.mark.skipif(not linkers(), reason="no linker")
@pytest.mark.parametrize("make", [nested, choosing, counting])
def test_artifacts_with_control_flow_are_verified(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    planned = plan_model(ModelRequest(make().SerializeToString()))
    builder = ProgramBuilder(None, Mode(planned.target))
    artifacts.save_artifact({(): planned.plan}, builder, tmp_path / "artifact")
    checked = verify_artifact(planned, read_artifact(tmp_path / "artifact"), HERE)
    assert checked.complete and checked.error is not None and checked.error < 1e-4
    assert plan_summary(planned.plan).controls


@pytest.mark.skipif(not linkers(), reason="no linker")
@pytest.mark.parametrize("computed", [True, False])
def test_what_differs_behind_hidden_choices_is_an_error_unless_rounding_may_be_why(
    computed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact of other weights, with a branch that an input decides, or a computed value."""
    proto = choosing(16)
    proto.graph.node.append(node("Neg", ["x"], ["z"]))
    proto.graph.output.append(info("z"))
    if computed:
        del proto.graph.input[1]
        proto.graph.node.insert(0, node("ReduceSum", ["x"], ["sum"], keepdims=0))
        proto.graph.node.insert(1, node("Cast", ["sum"], ["c"], to=TensorProto.BOOL))
    planned = plan_model(ModelRequest(proto.SerializeToString()))
    builder = ProgramBuilder(None, Mode(planned.target))
    artifacts.save_artifact({(): planned.plan}, builder, tmp_path / "artifact")
    assert verify_artifact(planned, read_artifact(tmp_path / "artifact"), HERE).complete

    def with_weights_times(factor: float) -> Planned:
        other = onnx.ModelProto()
        other.CopyFrom(proto)
        for tensor in other.graph.initializer:
            moved = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
        return plan_model(ModelRequest(other.SerializeToString()))

    with pytest.raises(CompilerError, match=r"differs from its reference|the values before it"):
        verify_artifact(with_weights_times(1.01), read_artifact(tmp_path / "artifact"), HERE)
    if not computed:
        return
    # numbers moved so far that the branch is taken by chance
    monkeypatch.setattr(ties, "SUM_MOVED_BY", 1e3)
    other = with_weights_times(1.5)
    checked = verify_artifact(other, read_artifact(tmp_path / "artifact"), HERE)
    assert (checked.unverified, checked.complete) == (("y",), False)
    assert worst([Verification(1e-6), checked]).unverified == ("y",)
    absent = worst([Verification(1e-6), Verification(None, not_run="it is away")])
    assert not absent.complete and absent.not_run == "it is away", "one size was not verified"


@pytest.mark.skipif(not linkers(), reason="no linker")
def test_what_does_not_end_on_generated_inputs_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers below zero have no square root to converge to."""
    planned = plan_model(ModelRequest(converging().SerializeToString()))
    builder = ProgramBuilder(None, Mode(planned.target))
    artifacts.save_artifact({(): planned.plan}, builder, tmp_path / "artifact")
    monkeypatch.setattr(control, "ENDLESS_STEPS", 50)
    with pytest.raises(CompilerError, match="a loop has not ended after 50 steps"):
        verify_artifact(planned, read_artifact(tmp_path / "artifact"), HERE)


ALONE = """
import sys
for name in ("onnx", "llvmlite", "tilewright.compiler.graph", "tilewright.compiler.ops"):
    sys.modules[name] = None
import numpy as np
from tilewright.compiler.runtime.artifact import load_artifact
feeds = dict(np.load(sys.argv[2]))
found = load_artifact(sys.argv[1], threads=2).run(feeds)
np.savez(sys.argv[3], *found)
"""


def test_an_artifact_with_control_flow_runs_with_numpy_alone(tmp_path: Path) -> None:
    proto, target = nested(), host_target()
    plan = driver.make_plan(driver.optimise(driver.load_graph(proto), Mode(target)), Mode(target))
    artifacts.save_artifact({(): plan}, ProgramBuilder(None, Mode(target)), tmp_path / "artifact")
    feeds = {"x": RANDOM.standard_normal((2, 6)).astype(np.float32), "flag": np.array(1)}
    np.savez(tmp_path / "feeds.npz", **feeds)
    files = [str(tmp_path / name) for name in ("artifact", "feeds.npz", "found.npz")]
    subprocess.run([sys.executable, "-c", ALONE, *files], check=True)
    with np.load(tmp_path / "found.npz") as found:
        agree(list(found.values()), runtime(proto, feeds))
