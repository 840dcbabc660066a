"""A model with an open dimension from HTTP to answers in a process that has NumPy alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import submit, upload
from tests.unit.service.tuners import loop, model_bytes, work_once
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.service.archive import unpack
from tilewright.service.jobs.pipeline import run_job
from tilewright.service.jobs.process.tuner_process import TunerProcess

SIZES = (1, 2, 3, 7, 8, 9, 16, 17, 31, 37, 40)


def test_a_job_with_a_range_serves_sizes_that_nobody_compiled(
    client: TestClient, tuner: TunerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx.load_from_string(model_bytes())
    proto.ir_version = 9  # as ONNX Runtime reads it
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    digest = upload(client, proto.SerializeToString())
    job = submit(client, model=digest, dims={"rows": "1..40"}, trials=4)
    path = f"/v1/jobs/{job['id']}"
    assert work_once(tuner)
    done = client.get(path).json()
    assert (done["state"], done["error"]) == ("succeeded", None)
    assert done["result"]["verified"] is True
    tuned = {task["workload_key"] for task in client.get(f"{path}/tasks").json()}
    asked = {"model": digest, "dims": {"rows": "1..40"}, "target": job["target_key"]}
    answer = client.post("/v1/schedules/lookup", json=asked)
    assert answer.status_code == 200, answer.text
    assert tuned and tuned <= {each["workload_key"] for each in answer.json()["schedules"]}
    asked["dims"] = {"rows": "1..40@50"}
    assert client.post("/v1/schedules/lookup", json=asked).status_code == 422
    (tmp_path / "a.tar").write_bytes(client.get(f"{path}/artifact").content)
    unpack(tmp_path / "a.tar", tmp_path / "a")

    oracle = onnxruntime.InferenceSession(proto.SerializeToString())
    (port,) = oracle.get_inputs()
    random = np.random.default_rng(0)
    given = {str(n): random.standard_normal((n, *port.shape[1:])).astype(np.float32) for n in SIZES}
    np.savez(tmp_path / "in.npz", **given)
    code = f"""
import sys
import numpy as np
for name in ("llvmlite", "onnx", "xgboost", "sqlalchemy", "fastapi", "pydantic", "ml_dtypes"):
    sys.modules[name] = None
import tilewright
loaded = tilewright.load_artifact({str(tmp_path / "a")!r})
given = np.load({str(tmp_path / "in.npz")!r})
np.savez({str(tmp_path / "out.npz")!r}, **{{n: loaded.run([given[n]])[0] for n in given.files}})
assert loaded.made == (), loaded.made
try:
    loaded.run([np.zeros((41, *given["1"].shape[1:]), np.float32)])
except tilewright.InvalidInputError as error:
    assert "('rows') is 41, expected 1..40" in str(error), error
else:
    raise AssertionError("41 rows were taken")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    made = np.load(tmp_path / "out.npz")
    for n, array in given.items():
        (expected,) = oracle.run(None, {port.name: array})
        np.testing.assert_allclose(made[n], expected, rtol=1e-5, atol=1e-5)


def test_a_job_of_a_model_whose_data_decide_sizes_serves_its_stages(
    client: TestClient, tuner: TunerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that are above 0, times a matrix: before the cut they are found, behind it taken."""
    node, floats = onnx.helper.make_node, onnx.TensorProto.FLOAT
    weights = np.arange(12, dtype=np.float32).reshape(4, 3)
    constants = {"w": weights, "first": np.array([0]), "zero": np.float32(0)}
    graph = onnx.helper.make_graph(
        [
            node("Greater", ["mark", "zero"], ["mask"]),
            node("NonZero", ["mask"], ["found"]),
            node("Squeeze", ["found", "first"], ["places"]),
            node("Gather", ["x", "places"], ["rows"], axis=0),
            node("MatMul", ["rows", "w"], ["h"]),
            node("Softmax", ["h"], ["y"], axis=0),
        ],
        "staged",
        [
            onnx.helper.make_tensor_value_info("x", floats, (9, 4)),
            onnx.helper.make_tensor_value_info("mark", floats, (9,)),
        ],
        [onnx.helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    digest = upload(client, proto.SerializeToString())
    job = submit(client, model=digest, dims={}, trials=4)
    path = f"/v1/jobs/{job['id']}"
    assert work_once(tuner)
    done = client.get(path).json()
    assert (done["state"], done["error"]) == ("succeeded", None)
    assert done["result"]["verified"] is True
    (tmp_path / "a.tar").write_bytes(client.get(f"{path}/artifact").content)
    unpack(tmp_path / "a.tar", tmp_path / "a")
    made = load_artifact(tmp_path / "a")
    assert isinstance(made, GuardedModel) and made.is_segmented
    x = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    for count in (1, 5, 9):
        mark = np.where(np.arange(9) < count, 1, -1).astype(np.float32)
        (y,) = made.run({"x": x, "mark": mark})
        grown = np.exp(x[:count] @ weights - (x[:count] @ weights).max(axis=0))
        np.testing.assert_allclose(y, grown / grown.sum(axis=0), rtol=1e-4, atol=1e-6)
