"""Names of workloads, as the command line and the service show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import models
from service.jobs.planning import ModelRequest, plan_model, workload_name

BERT = Path(__file__).parents[2] / "models" / "bert-sdpa.onnx"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (
            ModelRequest(BERT.read_bytes(), dims={"batch": 1, "sequence": 8}),
            {"attention 8x3x8", "matmul k24 +gelu 8x40", "gather +add 8x24", "layer_norm 8x24"},
        ),
        (
            ModelRequest(models.build("squeezenet").SerializeToString()),
            {"conv 3x3 /2 +relu 64x111x111", "max_pool 64x55x55", "softmax 1x1000"},
        ),
    ],
    ids=["bert", "squeezenet"],
)
def test_workloads_are_named_by_what_takes_their_time(
    request_: ModelRequest, expected: set[str]
) -> None:
    names = {workload_name(workload) for workload, _ in plan_model(request_).workloads}
    assert expected <= names
