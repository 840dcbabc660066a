"""Requests to the application from tests, and readers of its answers."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper

from tilewright.tuner.protocol.version import PROTOCOL

PROBLEM = "urn:tilewright:problem:"


def npz_bytes(**arrays: np.ndarray) -> bytes:
    """A file of samples."""
    made = io.BytesIO()
    np.savez(made, **arrays)  # type: ignore[arg-type]  # its own type takes no arrays by name
    return made.getvalue()


def onnx_bytes(operator: str = "Relu", opset: int = 17) -> bytes:
    """y = relu(x @ w), with a named batch."""
    weights = np.ones((4, 4), np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "fc"),
            helper.make_node(operator, ["h"], ["y"], "act"),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    data: bytes = model.SerializeToString()
    return data


def upload(client: TestClient, data: bytes | None = None) -> str:
    answer = client.post("/v1/models", params={"name": "tiny.onnx"}, content=data or onnx_bytes())
    assert answer.status_code in (200, 201), answer.text
    digest: str = answer.json()["digest"]
    return digest


def submit(client: TestClient, **changes: Any) -> dict[str, Any]:
    """A job; one for this machine does not wait, if the token may bring a worker."""
    body = {"model": upload(client), "dims": {"batch": 2}, **changes}
    if "target" not in changes:
        here = {"name": "here", "targets": ["host"], "protocol": PROTOCOL}
        client.post("/v1/workers", json=here)  # refused for a token that may not measure
    answer = client.post("/v1/jobs", json=body)
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    return job


def problem(answer: Any) -> tuple[int, str, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    assert body["status"] == answer.status_code
    return answer.status_code, body["type"].removeprefix(PROBLEM), body["detail"]
