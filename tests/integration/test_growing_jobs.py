"""Models whose caches grow, tuned with default options: the plan has a dimension that no input
states, and no user can be asked for its size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright import load_artifact
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.pipeline.run_job import JobContext, JobWatcher, run_job
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.planning import ModelRequest, plan_sizes
from tilewright.service.options import JobOptions
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.builder import ProcessBuilder

WIDTH = 8


def growing() -> bytes:
    """Attention over existing rows, and over new ones appended to them."""
    random, floats = np.random.default_rng(0), TensorProto.FLOAT
    weights = {n: random.standard_normal((WIDTH, WIDTH), np.float32) for n in ("wk", "wq")}
    ports = {
        name: helper.make_tensor_value_info(name, floats, (1, rows, WIDTH))
        for name, rows in (("x", "tokens"), ("past", "past"), ("present", "all"), ("y", "tokens"))
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "wk"], ["new"]),
            helper.make_node("Concat", ["past", "new"], ["present"], axis=1),
            helper.make_node("MatMul", ["x", "wq"], ["q"]),
            helper.make_node("Transpose", ["present"], ["keys"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["q", "keys"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
            helper.make_node("MatMul", ["shares", "present"], ["y"]),
        ],
        "growing",
        [ports["x"], ports["past"]],
        [ports["y"], ports["present"]],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = model.SerializeToString()
    return data


def test_there_is_no_room_where_kernels_are_measured_at_sizes_of_the_model() -> None:
    (planned,) = plan_sizes(
        ModelRequest(growing(), Mode(resolve_target("x86-64-v3"))), {"past": ("0..64",)}
    )
    found = planned.open
    assert found is not None
    (room,) = found.plan.rooms
    assert room.name not in {d.name for d in found.ranges}, "nobody is asked for it"
    assert all(room.name not in dict(each.sizes) for each in found.drawn)
    for drawn, measured in zip(found.drawn, found.measured, strict=True):
        assert dict(measured.sizes) == {**dict(drawn.sizes), room.name: 0}
    assert any(room.name in step.sizes for step in found.plan.kernels)
    for task in tasks_of(planned):
        names = [dimension.name for dimension in task.workload.dimensions]
        assert all([name for name, _ in point.sizes] == names for point in task.points)


@pytest.mark.skipif(not linkers(), reason="no linker")
def test_a_model_with_a_growing_cache_is_tuned_by_default(tmp_path: Path) -> None:
    storage: Storage = open_storage(Settings(data_folder=tmp_path / "data"))
    builder = ProcessBuilder(1)
    spec = JobSpec(growing(), Mode(), options=JobOptions(4, 1.0))
    try:
        with LocalDevice() as device:
            outcome = run_job(
                spec,
                device,
                JobContext(storage, builder),
                JobWatcher(),
                job_id="j",
                token=CancelToken(),
                output=tmp_path / "a",
            )
    finally:
        builder.close()
        storage.close()
    assert outcome.verification is not None and outcome.verification.complete
    x, past = np.ones((1, 2, WIDTH), np.float32), np.ones((1, 3, WIDTH), np.float32)
    y, present = load_artifact(tmp_path / "a").run({"x": x, "past": past})
    assert y.shape == (1, 2, WIDTH)
    np.testing.assert_array_equal(present[:, :3], past)
