"""The command line: its output, and one sentence for every mistake."""

from __future__ import annotations

import ast
import csv
import getpass
import json
import os
import platform
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.unit.service.command_line import data_folder, expected, inputs, model, run
from tilewright.compiler.targets.host import host_target
from tilewright.compiler.targets.target import known_targets
from tilewright.service import cli
from tilewright.service.api.schemas.jobs import TaskView
from tilewright.service.cli.common import _who_runs_this
from tilewright.service.cli.inspect_view import quantity, size
from tilewright.service.cli.view import origins_line
from tilewright.service.settings import Settings
from tilewright.service.show.units import milliseconds
from tilewright.service.storage import open_storage
from tilewright.service.worker import process
from tilewright.service.worker.check import DeviceFinding, Grade

__all__ = ["data_folder", "inputs", "model"]  # fixtures


@pytest.mark.parametrize(
    ("number", "written", "as_bytes"),
    [
        (0, "0", "0 B"),
        (999, "999", "999 B"),
        (1000, "1 k", "1000 B"),
        (1024, "1.02 k", "1 KiB"),
        (1_500_000, "1.5 M", "1.43 MiB"),
        (2.5e9, "2.5 G", "2.33 GiB"),
        (4e12, "4 T", "3.73e+03 GiB"),
    ],
)
def test_numbers_have_three_digits_and_a_prefix(number: float, written: str, as_bytes: str) -> None:
    assert (quantity(number), size(number)) == (written, as_bytes)


def test_inspect_shows_operators_and_workloads(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", "graph", model, "--dim", "batch=2", "--target", "x86-64-v3") == 0
    text = capsys.readouterr().out
    assert "1 matmul" in text
    assert "MACs" in text
    assert run("show", "graph", model, "--dim", "batch=2", "--target", "x86-64-v3", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["macs"] == 2 * 4 * 4


def test_inspect_tells_the_names_and_hints_of_open_dimensions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dimensions without a name that can be typed are called by input and position."""
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)
        for name, dims in (("x", ["?", "a=b", None, 4]), ("y", None))
    )
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    opsets = [onnx.helper.make_opsetid("", 17)]
    path = tmp_path / "open.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    assert run("show", "graph", path) == 0
    shown = capsys.readouterr().out
    assert "open dimensions: x (x[0], a=b, x[2], 4)" in shown
    assert "dynamic: a=b=128 (1..4096), x[0]=1 (1..4096), x[2]=128 (1..4096);" in shown
    typed = ("--dim", "x[0]=2", "--dim", "a=b=3", "--dim", "x[2]=1..9@5")
    assert run("show", "graph", path, *typed, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert "[2,3,5,4]" in str(told["inputs"])
    assert told["dynamic"][-1] == "dynamic: x[2]=5 (1..9); tuned at these sizes"


def test_the_graph_is_printed_after_a_pass(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "show",
        "graph",
        model,
        "--dim",
        "batch=2",
        "--target",
        "x86-64-v3",
        "--dump-after",
    )
    assert run(*arguments, "algebra") == 0
    assert "# after algebra\n" in capsys.readouterr().out
    assert run(*arguments, "magic") == 1
    assert "constant_folding" in capsys.readouterr().err


def test_without_arguments_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:1] == ["compile"] for line in lines), "one line a command"


def test_an_artifact_keeps_its_numerics(
    model: Path, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "artifact"
    assert run("compile", model, "--dim", "batch=2", "-o", folder) == 0
    command = ("run", folder, "--inputs", inputs, "--outputs", tmp_path / "out.npz")
    assert run(*command, "--numerics", "strict") == 1
    assert "--numerics strict" in capsys.readouterr().err
    assert run(*command, "--precision", "bfloat16") == 1
    assert "--precision bfloat16" in capsys.readouterr().err


def two_products(path: Path) -> Path:
    """Of which the second is narrow where that is asked for."""
    random = np.random.default_rng(2)
    weights = [
        helper.make_tensor(n, TensorProto.FLOAT, (16, 16), random.standard_normal(256))
        for n in ("v", "w")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 16]) for n in "xy"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "two", ends[:1], ends[1:], weights)), path)
    return path


def test_every_command_compiles_in_the_precision_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, given = two_products(tmp_path / "two.onnx"), tmp_path / "in.npz"
    x = np.random.default_rng(3).standard_normal((4, 16)).astype(np.float32)
    np.savez(given, x=x)
    results = {}
    for precision in ("float32", "bfloat16", "float16"):
        command = ("--precision", precision)
        out, folder = tmp_path / f"{precision}.npz", tmp_path / precision
        assert run("run", model, "--inputs", given, "--outputs", out, *command) == 0
        assert run("compile", model, "-o", folder, *command) == 0
        again = tmp_path / f"{precision}-again.npz"
        assert run("run", folder, "--inputs", given, "--outputs", again) == 0
        results[precision] = np.load(out)["y"]
        np.testing.assert_array_equal(np.load(again)["y"], results[precision])
        capsys.readouterr()
        assert run("show", "graph", model, "--json", *command) == 0
        kernels = [task["operators"] for task in json.loads(capsys.readouterr().out)["tasks"]]
        assert (["matmul", "relu", "cast"] in kernels) == (precision != "float32")
        assert run("show", "kernels", model, "--json", *command) == 0
        report = json.loads(capsys.readouterr().out)
        assert (precision in report["kernels"][0]["operators"]) or precision == "float32"
        assert run("bench", model, "--rounds", "1", "--seconds", "0.01", *command) == 0
        capsys.readouterr()
    wide = results["float32"]
    for precision, step in (("bfloat16", 2.0**-8), ("float16", 2.0**-11)):
        error = np.abs(results[precision] - wide).max() / np.abs(wide).max()
        assert 0 < error < 2 * step


@pytest.mark.usefixtures("few_children")
def test_a_model_is_tuned_in_a_precision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = two_products(tmp_path / "two.onnx")
    folder = tmp_path / "artifact"
    command = ("tune", model, "--trials", "2", "--precision", "bfloat16", "-o", folder)
    assert run(*command) == 0
    assert "verified: by steps: " in capsys.readouterr().out


def test_run_computes_the_outputs(model: Path, inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    assert run("run", model, "--dim", "batch=2", "--inputs", inputs, "--outputs", out) == 0
    with np.load(out) as found:
        np.testing.assert_allclose(found["y"], expected())


def test_an_artifact_runs_like_its_model(
    model: Path, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "artifact", tmp_path / "out.npz"
    assert run("compile", model, "--dim", "batch=2", "-o", folder) == 0
    assert "0 of 1 workloads known; the defaults are served" in capsys.readouterr().out
    assert (folder / "manifest.json").is_file()
    assert run("run", folder, "--inputs", inputs, "--outputs", out) == 0
    with np.load(out) as found:
        np.testing.assert_allclose(found["y"], expected())


@pytest.mark.usefixtures("few_children")
def test_a_late_command_does_what_its_artifact_needs(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another engine is not timed."""
    monkeypatch.setattr("tilewright.service.options.LATE_SECONDS", -100.0)
    assert run("tune", model, "--dim", "batch=2", "--seconds", "1", "-o", tmp_path / "a") == 0
    said = capsys.readouterr().out
    assert "artifact: " in said and "ONNX Runtime" not in said


def test_tune_fills_the_database_and_a_second_run_spends_nothing(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = "a cost model [red] was trained" + " and is better" * 20
    monkeypatch.setattr(
        "tilewright.service.jobs.knowledge.cost_models.train_due", lambda *_: [None]
    )
    monkeypatch.setattr("tilewright.service.jobs.knowledge.cost_models.describe", lambda _: trained)
    arguments = ("tune", model, "--dim", "batch=2", "--trials", "6", "-o", tmp_path / "a")
    assert run(*arguments) == 0
    first = capsys.readouterr().out
    assert f"{trained}\n" in first
    lines = first.splitlines()
    phases = ["importing", "planning", "tuning 1 tasks", "choosing", "building", "verifying"]
    assert [line for line in lines if line in phases] == phases, "a line for each phase"
    assert "trials 0/6" not in first, "and none for a trial"
    (end,) = (number for number, line in enumerate(lines) if line.startswith("run it: "))
    latency, peer, certificate, artifact, use = lines[end - 4 : end + 1]
    assert latency.startswith("latency: ") and " ms" in latency
    assert re.match(
        r"ONNX Runtime [\d.]+: [\d.e-]+ ms; the artifact, in turns with it: [\d.]+x ONNX", peer
    )
    assert certificate.startswith("verified: by steps: ")
    assert artifact == f"artifact: {tmp_path / 'a'}"
    assert use == f"run it: tilewright run {tmp_path / 'a'} --inputs IN.npz --outputs OUT.npz"
    assert run(*arguments[:-2]) == 0
    second = capsys.readouterr().out
    assert "; 0 trials" in second and "artifact:" not in second
    assert "latency: " in second and "ONNX Runtime" not in second
    assert run("compile", model, "--dim", "batch=2", "-o", tmp_path / "b") == 0
    compiled = capsys.readouterr().out
    assert "1 of 1 workloads known" in compiled and "not raced" not in compiled


@pytest.mark.usefixtures("few_children")
def test_a_run_is_listed_and_repeated(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("job", "replay") == 0
    assert run("tune", model, "--dim", "batch=64", "--trials", "12") == 0
    storage = open_storage(Settings())
    (kept,) = storage.runs.list()
    storage.close()
    assert run("job", "replay") == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if kept.id in line]
    assert row[1:3] == ["1", str(kept.trials)]
    assert run("job", "replay", kept.id, "--curve", tmp_path / "curve.csv") == 0
    repeated = capsys.readouterr().out
    assert f"1 tasks, {kept.trials} trials: as then" in repeated
    assert "suggested by: " in repeated and "record " in repeated
    curve = list(csv.DictReader((tmp_path / "curve.csv").open()))
    trials = [int(point["trials"]) for point in curve]
    assert trials == sorted(trials) and trials[-1] == kept.trials
    for point in curve:
        assert f"model {milliseconds(float(point['model_seconds']))}" in repeated
        assert float(point["model_seconds"]) > 0
    assert run("job", "replay", kept.id, "--curve", tmp_path) == 1
    assert f"--curve '{tmp_path}'" in capsys.readouterr().err
    assert run("job", "replay", "none") == 1


def test_there_are_no_cost_models_before_one_is_trained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("cost-model", "list") == 0
    assert run("cost-model", "promote", "1") == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_run_takes_a_range(
    model: Path, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.npz"
    command = ("run", model, "--inputs", inputs, "--outputs", out)
    assert run(*command, "--dim", "batch=1..8") == 0
    np.testing.assert_array_equal(np.load(out)["y"], expected())
    assert capsys.readouterr().out.count("end to end:") == 1
    assert run(*command, "--dim", "batch=4..8") == 1
    assert "dimension 0 ('batch') is 2, expected 4..8" in capsys.readouterr().err


def test_run_without_inputs_says_that_they_are_random(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again = tmp_path / "a.npz", tmp_path / "b.npz"
    assert run("run", model, "--dim", "batch=1..8@3", "--outputs", out) == 0
    told = capsys.readouterr()
    said = "the inputs are random at batch=3: --inputs FILE.npz gives real ones\n"
    assert told.err == said and "y: float32 (3, 4)\n" in told.out
    assert run("compile", model, "--dim", "batch=3", "-o", tmp_path / "artifact") == 0
    assert run("run", tmp_path / "artifact", "--outputs", again) == 0
    # the same inputs, but two programs, which add up four products in other orders
    np.testing.assert_allclose(np.load(out)["y"], np.load(again)["y"], rtol=1e-5)
    assert np.load(out)["y"].any(), "the inputs are not zeros, and the same each time"
    assert "the inputs are random: --inputs" in capsys.readouterr().err
    assert run("run", tmp_path / "artifact", "--json") == 0
    assert json.loads(capsys.readouterr().out)["outputs"]["y"]["shape"] == [3, 4]


def test_a_token_is_made_with_its_scopes(
    data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("token", "create", "ci", "--scope", "read", "--scope", "submit") == 0
    secret = capsys.readouterr().out.strip()
    from tilewright.service.settings import Settings

    storage = open_storage(Settings())
    token = storage.tokens.verify(secret)
    storage.close()
    assert token is not None
    assert sorted(token.scopes) == ["read", "submit"]


MISTAKES = [
    (["show", "graph", "{none}"], 1, "no such file: '{none}'"),
    (["show", "graph", "{empty}"], 1, "empty"),
    (["show", "graph", "{noise}"], 1, "noise.onnx"),
    (["show", "graph", "{folder}"], 1, "is not an artifact"),
    (["show", "graph", "{model}", "--dim", "batch"], 1, "NAME=SIZE"),
    (["show", "graph", "{model}", "--dim", "batch=-1"], 1, "NAME=SIZE"),
    (["show", "graph", "{model}", "--dim", "batch=" + "9" * 5000], 1, "NAME=SIZE"),
    (["show", "graph", "{model}", "--dim", "batch=٣"], 1, "NAME=SIZE"),
    (
        ["show", "graph", "{model}", "--dim", "batch=2", "--dim", "batch=3"],
        1,
        "'batch' has sizes already",
    ),
    (
        ["show", "graph", "{model}", "--dim", "batch=2", "--dim", "bach=3"],
        1,
        "no dynamic dimension 'bach'",
    ),
    (["show", "graph", "/dev/null"], 1, "a device"),
    (["show", "graph", "{model}", "--dim", "batch=2", "--target", "z80"], 1, "z80"),
    (
        ["show", "graph", "{model}", "--dim", "batch=2", "--target", "host:" + "9" * 5000],
        1,
        "of bits",
    ),
    (["compile", "{model}", "--dim", "batch=2", "--threads", "257", "-o", "o"], 2, "256"),
    (["tune", "{model}", "--dim", "batch=2", "--trials", "-1"], 2, "trials"),
    (["tune", "{model}", "--dim", "batch=2", "--seconds", "-1"], 2, "seconds"),
    (["run", "{model}", "--dim", "batch=2", "--inputs", "{noise}", "--outputs", "o"], 1, "npz"),
    (["run", "{model}", "--dim", "batch=3", "--inputs", "{in}", "--outputs", "o"], 1, "x"),
    (["run", "{model}", "--dim", "batch=2", "--inputs", "{in}", "--outputs", "/no/o"], 1, "/no/o"),
    (["run", "{folder}", "--inputs", "{in}", "--outputs", "o"], 1, "manifest"),
    (["compile", "{model}", "--dim", "batch=2"], 2, "output"),
    (
        ["job", "submit", "{model}", "--server", "http://127.0.0.1:9"],
        1,
        "127.0.0.1:9 does not answer: [Errno 111] Connection refused; start one with `tilewright "
        "server run`, or set TILEWRIGHT_SERVER",
    ),
    (
        ["job", "submit", "{model}", "--server", ""],
        1,
        "address is empty: give --server URL, or set",
    ),
    (["job", "submit", "{model}", "--server", "nonsense"], 1, "nonsense"),
    (["job", "cancel"], 2, "JOB"),
    (
        ["token", "create", "ci", "--scope", "everything"],
        1,
        "--scope is 'everything', expected submit, ",
    ),
    (["no-such-command"], 2, "no-such-command"),
    (["show", "graph"], 2, "MODEL"),
    (["show", "graph", "{model}", "--no-such-option"], 2, "no-such-option"),
]


@pytest.mark.parametrize(("arguments", "status", "words"), MISTAKES)
def test_a_mistake_is_one_sentence(
    arguments: list[str],
    status: int,
    words: str,
    model: Path,
    inputs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "noise.onnx").write_bytes(bytes(range(256)) * 4)
    names = {
        "none": tmp_path / "none.onnx",
        "empty": tmp_path / "empty.onnx",
        "noise": tmp_path / "noise.onnx",
        "folder": tmp_path,
        "model": model,
        "in": inputs,
    }
    assert run(*(argument.format(**names) for argument in arguments)) == status
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1, error
    assert words.format(**names) in error


def test_limits_are_those_of_the_runtime_and_the_service() -> None:
    from tilewright.compiler.limits import LARGEST_SIZE, MAX_THREADS
    from tilewright.compiler.runtime import native
    from tilewright.service.api.schemas.jobs import JobRequest

    header = (Path(native.__file__).parent / "native/tilewright.h").read_text()
    assert f"#define TW_MAX_THREADS {MAX_THREADS}\n" in header
    limits = {"threads": MAX_THREADS, "dims": {"n": LARGEST_SIZE}}
    request = JobRequest.model_validate({"model": "0" * 64, **limits})
    assert request.mode_options.threads == MAX_THREADS
    for wrong in ({"threads": MAX_THREADS + 1}, {"dims": {"n": LARGEST_SIZE + 1}}):
        with pytest.raises(ValueError, match="less than or equal"):
            JobRequest.model_validate({"model": "0" * 64, **wrong})


def test_a_setting_that_is_wrong_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_PORT", "many")
    assert run("job", "list") == 1
    assert "port" in capsys.readouterr().err


def test_a_data_folder_that_cannot_be_made_is_named(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "file" / "data"))
    assert run("compile", model, "--dim", "batch=2", "-o", tmp_path / "a") == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_commands_import_what_they_need_when_they_run() -> None:
    """Importing the command line loads neither the compiler nor the database."""
    folder = Path(cli.__file__).parent
    for path in folder.glob("*.py"):
        if path.name.endswith("view.py"):
            continue  # imported by a command that runs
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                assert node.module is not None
                ours = node.module.startswith("tilewright.")
                light = node.module.startswith("tilewright.service.cli")
                light |= node.module.removeprefix("tilewright.") in (
                    "compiler.package",
                    "service.show.text",
                    "service.show.units",
                    "service.show.console",
                    "service.option_texts",
                    "service.options",
                    "compiler.runtime.json_form",
                )
                assert not ours or light, (path.name, node.module)


def test_a_user_without_a_name_or_number_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where the environment does not name the user."""

    def getuser() -> str:
        raise ImportError("No module named 'pwd'")

    monkeypatch.setattr(getpass, "getuser", getuser)
    monkeypatch.delattr(os, "getuid")
    assert _who_runs_this() == f"unknown@{platform.node()}"


def test_targets_are_listed_with_the_one_that_this_machine_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("show", "targets", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    by_name = {one["name"]: one for one in told["targets"]}
    assert by_name.keys() == known_targets().keys()
    assert told["host"]["name"] == host_target().name
    here = told["host"]["described"]
    assert by_name[here]["here"] and not by_name["wasm32"]["here"]
    assert by_name[here]["key"] == known_targets()[here].key
    assert run("show", "targets") == 0
    text = capsys.readouterr().out
    (marked,) = [line for line in text.splitlines() if line.rstrip().endswith("this machine")]
    assert marked.split()[0] == here
    assert f"host: {host_target().name}; {told['host']['reason']}\n" in text


def test_a_device_is_checked_under_both_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `tilewright-worker --check`: without a service or a token."""
    finding = DeviceFinding("clock", Grade.POOR, "slow", "type this")
    monkeypatch.setattr(process, "check_device", lambda *_: [finding])
    assert run("device", "check", "--json") == 3
    assert json.loads(capsys.readouterr().out)[0]["name"] == "clock"


def test_compile_keeps_to_the_weight_limit(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("compile", model, "--dim", "batch=2", "-o", tmp_path / "a", "--weight-limit")
    assert run(*arguments, "63") == 1
    assert "the limit is 63" in capsys.readouterr().err
    assert run(*arguments, "4096") == 0
    assert "packed weights take" in capsys.readouterr().out


def test_a_report_says_who_suggested_what() -> None:
    def task(best: str, **origins: int) -> TaskView:
        return TaskView(
            workload_key="w",
            name="n",
            count=1,
            weight=1.0,
            status="tuned",
            default_seconds=1.0,
            best_seconds=0.5,
            trials=sum(origins.values()),
            facts={"origins": origins, "best_origin": best},
        )

    tasks = [task("bayesian", default=1, bayesian=6), task("default", default=1, random=3)]
    assert origins_line(tasks) == (
        "suggested by bayesian 6 (best of 1), random 3, default 2 (best of 1)"
    )
    known = task("").model_copy(update={"facts": {}})
    assert origins_line([known]) == ""
