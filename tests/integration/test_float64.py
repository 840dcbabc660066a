"""A model in float64 from its file to an artifact: it is tuned, and as exact as it was untuned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright import load_artifact
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.verify import compare, tolerance_for
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.pipeline.run_job import JobContext, JobWatcher, run_job
from tilewright.service.options import JobOptions
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.protocol.measurement import Status

pytestmark = pytest.mark.skipif(not linkers(), reason="no linker")


def test_a_product_is_tuned(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((8, 16)), rng.standard_normal((16, 8))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.DOUBLE, a.shape)],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, (8, 8))],
        [numpy_helper.from_array(b, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    storage = open_storage(Settings(data_folder=tmp_path / "data", database_url=""))
    builder = ProcessBuilder(1)
    try:
        with LocalDevice() as device:
            outcome = run_job(
                JobSpec(model.SerializeToString(), options=JobOptions(8)),
                device,
                JobContext(storage, builder),
                JobWatcher(),
                job_id="here",
                token=CancelToken(),
                output=tmp_path / "artifact",
            )
        trials = storage.trials.list(job_id="here")
    finally:
        builder.close()
        storage.close()
    assert trials
    assert {stored.trial.measurement.status for stored in trials} <= {Status.OK, Status.SPILLS}
    report = outcome.report()
    assert report["verified"] and report["workloads_known"] == 1
    (found,) = load_artifact(tmp_path / "artifact").run({"a": a})
    assert found.dtype == np.float64
    assert compare(found, a @ b) < tolerance_for(DType.FLOAT64)
