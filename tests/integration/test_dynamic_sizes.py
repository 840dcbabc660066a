"""One program over fifty size vectors: against ONNX Runtime, programs of fixed sizes, and an
artifact that a process without the compiler loads."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tilewright
from benchmarks.dynamic_models import dynamic_bert, open_gpt2, open_llama
from tests.unit.frontend.test_dynamic_sizes import cache as cached_rows
from tilewright.compiler import driver
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.sizes import DynamicSizeError
from tilewright.service import cli
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage

TOLERANCE = 1e-5
"""Of each output's largest element: float32 products in another order than ONNX Runtime's."""

VOCABULARY, HIDDEN, HEADS, LAYERS = 60, 32, 4, 1

Feeds = Callable[[Mapping[str, int]], dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Case:
    model: Any
    ranges: Mapping[str, str]
    feeds: Feeds


def _ids(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, VOCABULARY, shape)


def _bert(sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    shape = sizes["batch"], sizes["sequence"]
    rng = np.random.default_rng(shape)
    mask = np.arange(shape[1]) <= rng.integers(0, shape[1], (shape[0], 1))
    return {"input_ids": _ids(shape, rng), "attention_mask": mask.astype(np.int64)}


def _decoder(heads: int, width: int) -> Feeds:
    def feeds(sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        rng = np.random.default_rng((sizes["sequence"], sizes["past"]))
        given = {"input_ids": _ids((1, sizes["sequence"]), rng)}
        for layer in range(LAYERS):
            for name in ("key", "value"):
                cache = rng.standard_normal((1, heads, sizes["past"], width))
                given[f"past_{name}_{layer}"] = cache.astype(np.float32)
        return given

    return feeds


@cache
def case(name: str) -> Case:
    small: dict[str, int] = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS}
    past = {"sequence": "1..40", "past": "0..70"}
    match name:
        case "bert":
            model = dynamic_bert(**small, intermediate=64, vocabulary=VOCABULARY)
            return Case(model, {"batch": "1..5", "sequence": "1..70"}, _bert)
        case "gpt2":
            model = open_gpt2(**small, vocabulary=VOCABULARY)
            return Case(model, past, _decoder(HEADS, HIDDEN // HEADS))
        case _:
            model = open_llama(**small, cached=2, intermediate=64, vocabulary=VOCABULARY)
            return Case(model, past, _decoder(2, HIDDEN // HEADS))


def vectors(ranges: Mapping[str, str], count: int = 50) -> list[dict[str, int]]:
    """Both ends of all ranges, the neighbours of tile sizes, then random sizes."""
    draw = Random(1)
    ends = {name: tuple(map(int, text.split(".."))) for name, text in ranges.items()}
    first, last = ({name: pair[k] for name, pair in ends.items()} for k in (0, 1))
    edges = [1, 7, 8, 9, 15, 16, 17, 31, 32, 33]
    listed = [first, last]
    for edge in edges:
        listed.append({n: min(max(edge, low), high) for n, (low, high) in ends.items()})
    while len(listed) < count:
        listed.append({n: draw.randint(low, high) for n, (low, high) in ends.items()})
    draw.shuffle(listed)
    return listed


def agree(got: Sequence[np.ndarray], expected: Sequence[np.ndarray], what: object) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.shape == theirs.shape, what
        largest = float(np.abs(theirs).max(initial=0))
        np.testing.assert_allclose(
            mine, theirs, rtol=0, atol=TOLERANCE * largest, err_msg=f"{what}"
        )


NAMES = ["bert", "gpt2", "llama"]


@pytest.mark.parametrize("name", NAMES)
def test_one_program_over_fifty_size_vectors(name: str) -> None:
    tried = case(name)
    executable = tilewright.compile_model(tried.model, dims=dict(tried.ranges))
    assert isinstance(executable, GuardedModel)
    assert executable.reason == ""
    session = onnxruntime.InferenceSession(tried.model.SerializeToString())
    for sizes in vectors(tried.ranges):
        given = tried.feeds(sizes)
        agree(executable.run(given), session.run(None, given), sizes)
    assert executable.made == ()


@pytest.mark.parametrize("name", NAMES)
def test_a_size_of_its_own_computes_the_same(name: str) -> None:
    tried = case(name)
    executable = tilewright.compile_model(tried.model, dims=dict(tried.ranges))
    for sizes in vectors(tried.ranges, 14)[::7]:
        fixed = tilewright.compile_model(tried.model, dims=dict(sizes))
        assert isinstance(fixed, Executable)
        given = tried.feeds(sizes)
        agree(executable.run(given), fixed.run(given), sizes)


def test_two_threads_run_one_program_with_different_sizes() -> None:
    tried = case("gpt2")
    executable = tilewright.compile_model(tried.model, dims=dict(tried.ranges), threads=2)
    listed = [tried.feeds(sizes) for sizes in vectors(tried.ranges, 20)]
    expected = [executable.run(given) for given in listed]

    def run(seed: int) -> None:
        order = list(range(len(listed))) * 3
        Random(seed).shuffle(order)
        for k in order:
            agree(executable.run(listed[k]), expected[k], k)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    onnx.save(case("bert").model, tmp_path / "bert.onnx")
    return tmp_path / "bert.onnx"


def test_an_artifact_serves_ranges_without_the_compiler(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tried, folder = case("bert"), tmp_path / "artifact"
    dims = ["--dim", "batch=1..5,2", "--dim", "sequence=1..70,16"]
    assert cli.run(["compile", str(saved), "-o", str(folder), *dims]) == 0
    assert "one program for batch 1..5, sequence 1..70" in capsys.readouterr().out
    listed = vectors(tried.ranges, 12)
    given = {f"{k} {n}": a for k, sizes in enumerate(listed) for n, a in tried.feeds(sizes).items()}
    np.savez(tmp_path / "in.npz", **given)
    code = f"""
import sys
import numpy as np
for name in ("llvmlite", "onnx", "xgboost", "sqlalchemy", "ml_dtypes"):
    sys.modules[name] = None
import tilewright
loaded = tilewright.load_artifact({str(folder)!r})
given, made = np.load({str(tmp_path / "in.npz")!r}), {{}}
for k in range({len(listed)}):
    names = [name for name in given.files if name.startswith(f"{{k}} ")]
    made[str(k)] = loaded.run({{name.split()[1]: given[name] for name in names}})[0]
assert loaded.made == (), loaded.made
two = {{"input_ids": np.zeros((2, 16), np.int64), "attention_mask": np.ones((2, 16), np.int64)}}
loaded.run(two)
assert loaded.made == ((("batch", 2), ("sequence", 16)),), loaded.made
np.savez({str(tmp_path / "out.npz")!r}, **made)
"""
    listed = [sizes for sizes in listed if sizes != {"batch": 2, "sequence": 16}]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(tried.model.SerializeToString())
    made = np.load(tmp_path / "out.npz")
    for k, sizes in enumerate(listed):
        agree([made[str(k)]], session.run(None, tried.feeds(sizes)), sizes)

    assert cli.run(["show", "graph", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    ranges = [program["ranges"] for program in facts["programs"]]
    assert ranges == [{"batch": "1..5", "sequence": "1..70"}, {}]
    assert facts["programs"][1]["sizes"] == {"batch": 2, "sequence": 16}
    assert facts["programs"][0]["inputs"][0]["shape"] == ["batch", "sequence"]
    assert cli.run(["show", "graph", str(folder)]) == 0
    assert "batch 1..5, sequence 1..70" in capsys.readouterr().out
    np.savez(tmp_path / "one.npz", **tried.feeds({"batch": 6, "sequence": 3}))
    run = ["run", str(folder), "--inputs", str(tmp_path / "one.npz")]
    assert cli.run([*run, "--outputs", str(tmp_path / "o.npz")]) == 1
    assert "dimension 0 ('batch') is 6, expected 1..5" in capsys.readouterr().err


def test_open_dimensions_without_a_range_have_a_default_one(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "artifact"
    command = ["compile", str(saved), "-o", str(folder), "--dim", "sequence=1..70"]
    assert cli.run(command) == 0
    shown = capsys.readouterr().out
    assert "one program for batch 1..4096, sequence 1..70" in shown
    assert "dynamic: batch=1 (1..4096); tuned at these sizes; change with --dim" in shown
    loaded = tilewright.load_artifact(folder)
    assert loaded.run(_bert({"batch": 40, "sequence": 3}))[0].shape == (40, 3, HIDDEN)


def test_a_range_is_tuned_where_somebody_states_its_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    w = np.random.default_rng(1).standard_normal((24, 40), dtype=np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 24])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", 40])],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    tune = ["tune", str(tmp_path / "m.onnx"), "--trials", "4", "--dim"]
    stated = "rows=1..90@7:0.5,64:0.5"
    assert cli.run([*tune, stated, "-o", str(tmp_path / "artifact")]) == 0
    with contextlib.closing(open_storage(Settings())) as storage:
        records = storage.ledger.list(limit=9)
    assert all(record.record.measurement.certified for record in records)
    found = [record.record.measurement.distribution for record in records]
    measured = sorted([sizes for sizes, _ in each] for each in found)  # 7 of 2..16, 64 of 17..90
    assert measured == [[(("s0", 7),)], [(("s0", 64),)]]
    capsys.readouterr()
    assert cli.run([*tune, stated]) == 0
    assert "0 trials" in capsys.readouterr().out, "the same sizes need nothing more"
    assert cli.run([*tune, "rows=1..90@7,64"]) == 0
    shown = capsys.readouterr().out
    assert "0 trials" in shown, "hints have equal shares"
    x = np.random.default_rng(2).standard_normal((53, 24), dtype=np.float32)
    (y,) = tilewright.load_artifact(tmp_path / "artifact").run({"x": x})
    assert np.abs(y - x @ w).max() < 1e-4
    for given, message in (
        ("rows=1..90@91:1", "hint 91 is not a size of 1..90"),
        ("columns=@3:1", "no dynamic dimension 'columns', only: 'rows'"),
        ("rows=@7:x", "the share of hint 7 is 'x'"),
        ("rows@7", "expected NAME=SIZE"),
    ):
        assert cli.run([*tune, given]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (["sequence=1..70,16"], "dimension 'batch' has a range alone"),
        (["sequence=1..70", "batch=1,2"], "give 'batch' a range too"),
        (["sequence=1..70,1..8"], "'sequence' has two ranges"),
        (["sequence=70..1"], "70..1 has no sizes"),
        (["sequence=1..70:3"], "70 is not a multiple of 3|1 is not a multiple of 3"),
        (["sequence=a..b"], "'a..b' is not a size"),
        (["sequence=1..70@8,71"], "hint 71 is not a size of 1..70"),
        (["sequence=1..2", "sequence=1..3"], "'sequence' has sizes already"),
        (["=1..2"], "expected NAME=SIZE"),
        (["width=1..2"], "no dynamic dimension 'width'"),
    ],
)
def test_ranges_that_mean_nothing_are_refused(
    saved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    dims: list[str],
    message: str,
) -> None:
    given = [part for text in dims for part in ("--dim", text)]
    assert cli.run(["compile", str(saved), "-o", str(tmp_path / "artifact"), *given]) != 0
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "artifact").exists()


def test_a_model_without_a_program_for_ranges_is_compiled_at_its_hints(
    saved: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_plan = driver.make_plan

    def refusing(graph: Graph, *rest: Any, **options: Any) -> GraphPlan:
        if graph.dimensions:
            raise DynamicSizeError("whether sequence is even is known at run time only")
        return make_plan(graph, *rest, **options)

    monkeypatch.setattr(driver, "make_plan", refusing)
    ranges = ["--dim", "batch=1..2", "--dim", "sequence=1..70@16,24"]
    folder = tmp_path / "artifact"
    assert cli.run(["compile", str(saved), "-o", str(folder), *ranges]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    said = "whether sequence is even is known at run time only"
    assert f"sequence=16, since no program serves 1..70: {said}" in shown
    assert f"batch=1, since no program serves 1..2: {said}" in shown
    loaded = tilewright.load_artifact(folder)
    for sequence in (16, 24):
        sizes = {"batch": 1, "sequence": sequence}
        assert loaded.run(_bert(sizes))[0].shape == (1, sequence, HIDDEN)


@pytest.mark.parametrize("name", ["total", "past + sequence"])
def test_a_mask_is_as_long_as_past_and_new_rows(name: str) -> None:
    """The model adds it to scores of that length, or its dimension's name implies it."""
    proto = cached_rows(name)
    executable = tilewright.compile_model(proto)
    assert isinstance(executable, GuardedModel)
    assert executable.reason == ""
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for past, sequence in [(3, 5), (1, 1), (17, 2)]:
        rng = np.random.default_rng(past)
        shapes = {"past": (1, past, 4), "x": (1, sequence, 4), "mask": (1, past + sequence)}
        feeds = {key: rng.standard_normal(s).astype(np.float32) for key, s in shapes.items()}
        agree(executable.run(feeds), session.run(None, feeds), (past, sequence))


def test_an_artifact_keeps_ranges_of_what_others_express(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    proto, folder = cached_rows("total"), tmp_path / "artifact"
    onnx.save(proto, tmp_path / "cache.onnx")
    ranges = ("past=0..8", "sequence=1..4", "total=1..6")
    dims = [word for each in ranges for word in ("--dim", each)]
    assert cli.run(["compile", str(tmp_path / "cache.onnx"), "-o", str(folder), *dims]) == 0
    loaded = tilewright.load_artifact(folder)
    assert isinstance(loaded, GuardedModel)
    session = onnxruntime.InferenceSession(proto.SerializeToString())

    def feeds(past: int, sequence: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(past)
        shapes = {"past": (1, past, 4), "x": (1, sequence, 4), "mask": (1, past + sequence)}
        return {key: rng.standard_normal(s).astype(np.float32) for key, s in shapes.items()}

    with pytest.raises(tilewright.InvalidInputError, match=r"\('total'\) is 7, expected 1\.\.6"):
        loaded.run(feeds(5, 2))
    sizes = {"past": 4, "sequence": 2, "total": 6}
    own = loaded.executable(sizes)  # a program with numbers alone, of the one with ranges
    for executable in (loaded, own):
        agree(executable.run(feeds(4, 2)), session.run(None, feeds(4, 2)), sizes)
    assert own.dimensions == () and loaded.made == (tuple(sorted(sizes.items())),)
    assert loaded.executable(sizes) is own
    for wrong, message in (
        ({"past": 4, "sequence": 5}, "'sequence' is 5, expected 1..4"),
        ({"past": 4, "sequence": 3, "total": 7}, "'total' is 7, expected 1..6"),
        ({"past": 4}, "past=4 is not served"),
        ({"past": 4, "sequence": 2, "batch": 1}, "is not served"),
        ({"past": 4, "sequence": 2, "total": 5}, "does not serve the sizes"),
    ):
        with pytest.raises(tilewright.CompilerError, match=re.escape(message)):
            loaded.executable(wrong)
