"""Output of commands for programs: JSON alone on standard output, with the same content as the
text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.command_line import data_folder, inputs, model, run
from tilewright.compiler.frontend.catalogue import catalogue

__all__ = ["data_folder", "inputs", "model"]  # fixtures


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command; returns the JSON that it printed."""

    def tell(*arguments: object, status: int = 0) -> Any:
        capsys.readouterr()
        assert run(*arguments, "--json") == status
        return json.loads(capsys.readouterr().out)

    return tell


@pytest.mark.usefixtures("few_children")
def test_a_run_is_tuned_listed_and_repeated(
    model: Path, tmp_path: Path, told: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    tuning = ("tune", model, "--dim", "batch=2", "--trials", "6", "-o", tmp_path / "a")
    assert run(*tuning, "--timings", "--json") == 0
    printed = capsys.readouterr()
    tuned = json.loads(printed.out)
    assert "tuning 1 tasks" in printed.err and "largest error" in printed.err
    assert tuned["workloads_known"] == 1 and tuned["verified"]
    assert tuned["timings"]["stages"]["tune"] > 0
    assert set(tuned["timings"]) == {"stages", "loop", "beside"}
    ((name, trials),) = [(task["name"], task["trials"]) for task in tuned["tasks"]]
    assert name.startswith("matmul") and trials == tuned["trials"]

    ((run_id, known),) = [(each["id"], each["trials"]) for each in told("job", "replay")]
    assert (run_id, known) == (tuned["run"], trials)
    repeated = told("job", "replay", run_id)
    assert repeated["curve"][-1]["trials"] == trials and repeated["origins"]["default"] > 0
    (record,) = told("record", "list")
    assert record["state"] in ("provisional", "confirmed")
    assert record["name"] == name
    withdrawn = told("record", "withdraw", "--record", record["id"])
    assert withdrawn["records"] == [record["id"]]


def test_what_was_compiled_and_run(model: Path, inputs: Path, tmp_path: Path, told: Any) -> None:
    folder = tmp_path / "a"
    made = told("compile", model, "--dim", "batch=1..8", "--timings", "-o", folder)
    assert (made["format"], made["output"]) == ("artifact", str(folder))
    assert made["weight_bytes"] == 64 and made["timings"] and "batch" in made["ranges"][0]
    assert (made["workloads"], made["workloads_known"]) == (2, 0)  # of one row, and of more
    ran = told("run", folder, "--inputs", inputs, "--outputs", tmp_path / "out.npz")
    assert ran == {"outputs": {"y": {"type": "float32", "shape": [2, 4]}}, "served": []}
    (served,) = told("run", model, "--inputs", inputs, "--outputs", tmp_path / "o.npz")["served"]
    assert served["workloads"] > 0 == served["workloads_known"]


def test_operators_and_cost_models_and_keys(told: Any, tmp_path: Path) -> None:
    entries = told("show", "operators")
    assert len(entries) == len(catalogue())
    assert "float32" in next(each for each in entries if each["op_type"] == "Conv")["types"]
    assert told("cost-model", "list") == []
    assert len(told("record", "key")["public_key"]) == 44
    empty = tmp_path / "none.jsonl"
    empty.write_text("{}\n")
    assert told("record", "verify", empty, status=1)["hold"] == 0
    imported = told("record", "import", empty, status=1)
    assert imported["served"] == 0 and len(imported["refused"]) == 1


def test_the_database_and_a_token(told: Any, tmp_path: Path) -> None:
    assert told("db", "check") == []
    kept = told("db", "backup", tmp_path / "all.tar")
    assert kept["blobs"] == 0 and kept["missing"] == []
    moved = told("db", "migrate")
    assert moved["before"] == moved["after"] == kept["revision"]
    made = told("token", "create", "board", "--scope", "measure", "--days", "1")
    assert made["scopes"] == ["measure"] and len(made["secret"]) > 30
