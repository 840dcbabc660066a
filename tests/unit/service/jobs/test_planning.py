"""Names of workloads, as the command line and the service show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import models
from tests.unit.service.tuners import model_bytes
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.service.cli import run as run_cli
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model, plan_sizes
from tilewright.service.jobs.report.workload_facts import workload_name
from tilewright.service.settings import Settings

BERT = Path(__file__).parents[3] / "models" / "bert-sdpa.onnx"


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


@pytest.mark.parametrize("command", ["tune", "show graph", "show kernels", "bench", "show time"])
def test_a_size_of_no_dimension_is_refused_by_every_command(
    command: str, tmp_path: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if every size of the model is fixed, so that it would change nothing."""
    path = tmp_path / "small.onnx"
    path.write_bytes(model_bytes())
    assert run_cli([*command.split(), str(path), "--dim", "nodim=5"]) == 1
    said = capsys.readouterr().err
    assert "the inputs have no dynamic dimension 'nodim': all their sizes are fixed" in said


def test_several_sizes_of_no_dimension_are_refused_by_its_name() -> None:
    """And not because others have a range."""
    request = ModelRequest(BERT.read_bytes(), Mode(resolve_target("x86-64-v3")))
    with pytest.raises(InvalidArgumentError, match="no dynamic dimension 'nodim', only: 'batch'"):
        plan_sizes(request, {"nodim": (1, 2)})
