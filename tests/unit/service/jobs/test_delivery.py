"""The files that a job for a target of modules delivers, and the requests that it refuses."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.integration.test_segments import chosen_rows
from tests.unit.service.devices import FakeDevice
from tests.unit.tuner.fakes import FakeQueue
from tilewright.compiler.bindings.c_library import ToolchainError
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.db.storage import Storage
from tilewright.service.api.model_check import check_job
from tilewright.service.jobs.device.device import Checked, DeviceError, Loadable
from tilewright.service.jobs.evidence.certificate import WrongProgramError
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.pipeline.run_job import JobContext, JobWatcher, run_job
from tilewright.service.options import JobOptions
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.builder import ProcessBuilder

NODE = shutil.which("node")
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("ziglang") is None, reason="modules are linked by zig"
    ),
    pytest.mark.usefixtures("references_here"),
]
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)

# as docs/browser.md has it
RUN = """\
import {load} from "./artifact/model.mjs";

const model = await load();
const {y} = model.run({x: Float32Array.of(1, 0, 0, 2, 0, 1, 0, 0)}, {rows: 2});
console.log(JSON.stringify(Array.from(y)));
"""


def spec(**more: Any) -> JobSpec:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    options = JobOptions(4, **{"dims": {"rows": "1..8"}, **more})
    return JobSpec(model.SerializeToString(), Mode(resolve_target("wasm32")), options)


@dataclass
class Board(FakeDevice):
    """Remembers the shapes of the first input that it was checked with."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def check(self, loadable: Loadable, *arguments: Any, **more: Any) -> Checked:
        self.shapes.append(loadable.program.inputs[0].shape)
        return super().check(loadable, *arguments, **more)


def deliver(
    wanted: JobSpec, storage: Storage, builder: ProcessBuilder, folder: Path, **more: Any
) -> Board:
    """The job's `artifact` in a folder, and the device that it was tuned on."""
    board = Board([1.0] * 8, **{"runner": FakeQueue(lambda schedule: 1e-6), **more})
    job_context, watcher = JobContext(storage, builder), JobWatcher()
    given: Any = {"job_id": "j", "token": CancelToken(), "output": folder / "artifact"}
    run_job(wanted, board, job_context, watcher, **given)
    return board


@pytest.mark.skipif(NODE is None, reason="there is no node")
def test_node_loads_what_a_job_hands_over(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path
) -> None:
    board = deliver(spec(), storage, builder, tmp_path)
    assert {(1, 4), (8, 4)} < set(board.shapes), "both ends of the range, and sizes in between"
    names = sorted(path.name for path in (tmp_path / "artifact").iterdir())
    assert names == ["manifest.json", "model.d.mts", "model.mjs", "model.wasm"]
    tmp_path.joinpath("run.mjs").write_text(RUN)
    command = [str(NODE), str(tmp_path / "run.mjs")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    x = np.array([[1, 0, 0, 2], [0, 1, 0, 0]], np.float32)
    assert json.loads(said) == (x @ WEIGHT).reshape(-1).tolist()


def test_a_module_that_crashes_on_the_device_is_not_handed_over(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path
) -> None:
    crashed = DeviceError("the program crashed on board 'b'", ran=True)
    with pytest.raises(WrongProgramError, match="crashed on board"):
        deliver(spec(), storage, builder, tmp_path, error=crashed)
    assert not (tmp_path / "artifact").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"dims": {"rows": (2, 4)}}, "one size or one range of each dimension, and 'rows' has"),
        ({"pad": True}, "a module for 'wasm32' cannot pad inputs: omit --pad"),
        ({"dims": {}}, "runs in stages"),
    ],
    ids=["sizes", "pad", "stages"],
)
def test_what_no_module_holds_is_refused_when_it_is_sent(more: dict[str, Any], words: str) -> None:
    wanted = spec(**more)
    if not wanted.options.dims:
        wanted = replace(wanted, model=chosen_rows().SerializeToString())
    with pytest.raises(InvalidArgumentError, match=words):
        check_job(wanted)


def test_a_tuner_without_zig_says_so_before_it_tunes(
    storage: Storage, builder: ProcessBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(target: Target) -> None:
        raise ToolchainError("install the package 'ziglang'")

    monkeypatch.setattr("tilewright.service.jobs.pipeline.delivery.wasm_toolchain", absent)
    queue = FakeQueue(lambda schedule: 1e-6)
    with pytest.raises(ToolchainError, match="install"):
        deliver(spec(), storage, builder, tmp_path, runner=queue)
    assert not queue.submitted
