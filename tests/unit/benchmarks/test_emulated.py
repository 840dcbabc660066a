"""The report of models on emulated machines."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks import emulated
from benchmarks.emulated import Agreement, page, still_good, stored
from benchmarks.report import Origin, commit


def test_a_run_that_was_ended_early_says_what_it_did_not_reach() -> None:
    found = [Agreement("vgg19", "cortex-a72", "cortex-a72", 1e-6, 1e-4)]
    whole, part = (
        page(Origin.of(argparse.Namespace(models=models)), found)
        for models in (["vgg19"], ["vgg19", "alexnet"])
    )
    assert "1 of 1 agree" in whole and "ended" not in whole
    assert "1 of 1 agree: float32 within 1e-04. The run was ended before alexnet." in part


def test_cells_of_several_runs_say_so() -> None:
    found = [
        Agreement("vgg19", name, name, 1e-6, 1e-4, commit=commit)
        for name, commit in (("haswell", ""), ("cortex-a72", "abc"))
    ]
    origin = Origin.of(argparse.Namespace(models=["vgg19"]))
    assert "Cells are of an earlier run, abc." in page(origin, found)
    assert "Cells are of" not in page(origin, found[1:])


def test_what_did_not_run_is_tried_again() -> None:
    right = Agreement("vgg19", "haswell", "haswell", 2e-3, 1e-4)
    killed = Agreement("vgg19", "cortex-a15", "cortex-a15", None, 1e-4, "killed")
    assert still_good([right, killed]) == [right]


def test_runs_that_go_on_beside_each_other_keep_all_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compared(model: str, proto: object, wanted: object, place: emulated.Place) -> Agreement:
        if place.name == "wasm32":  # meanwhile the other run finishes
            emulated.main(["--keep", "--models", model, "--machines", "wasm32-relaxed"])
        return Agreement(model, place.name, place.target.name, 1e-6, 1e-4)

    monkeypatch.setattr(emulated, "RESULTS_FOLDER", tmp_path)
    monkeypatch.setattr(emulated, "agreement", compared)
    monkeypatch.setattr(emulated, "build", lambda model: small_model())
    monkeypatch.setattr(emulated, "feeds", lambda model, proto: {"x": np.zeros(1, np.float32)})
    emulated.main(["--keep", "--models", "small", "--machines", "wasm32"])
    assert [each.machine for each in stored("emulated")] == ["wasm32-relaxed", "wasm32"]


def small_model() -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def test_results_alone_make_no_other_code_of_a_commit(tmp_path: Path) -> None:
    """A benchmark that goes on has written some by then."""
    results = tmp_path / "benchmarks/results"
    results.mkdir(parents=True)
    for path in (results / "emulated.md", tmp_path / "code.py"):
        path.write_text("before")
    who = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    for command in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "all")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    clean = commit(tmp_path)
    assert len(clean) == 10
    (results / "emulated.md").write_text("after")
    assert commit(tmp_path) == clean
    (tmp_path / "code.py").write_text("after")
    assert commit(tmp_path) == clean + "+"
    assert commit(tmp_path / "absent") == "unknown"
