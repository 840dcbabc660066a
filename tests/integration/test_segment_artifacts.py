"""Artifacts of models that are cut: written by commands, run with NumPy alone, attacked."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright.compiler.bindings.ort as ort
from tests.integration.test_segments import (
    FLOAT,
    agrees,
    branches,
    chosen_rows,
    computed_shapes,
    marked,
    model,
)
from tilewright.compiler.api import compile_model
from tilewright.compiler.bindings.ort.description import numpy_type
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.errors import ArtifactError, InvalidArgumentError, InvalidInputError
from tilewright.compiler.runtime.artifact import load_artifact, manifest_checksum, read_artifact
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.service.cli import run as run_cli
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN
from tilewright.service.jobs.inputs.segment_inputs import staged_inputs
from tilewright.service.jobs.plan.planning import ModelRequest
from tilewright.service.jobs.plan.segment_planning import plan_first_program, plan_programs

pytestmark = pytest.mark.skipif(not linkers(), reason="no linker")

INT32 = onnx.TensorProto.INT32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of `chosen_rows`, made by the command line."""
    place = tmp_path_factory.mktemp("staged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_DATA_FOLDER", str(place / "data"))
        onnx.save(chosen_rows(), place / "m.onnx")
        assert run_cli(["compile", str(place / "m.onnx"), "-o", str(place / "a")]) == 0
    return place / "a"


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")  # of no rows
def test_an_artifact_runs_its_stages_with_numpy_alone(folder: Path, tmp_path: Path) -> None:
    counts = (0, 1, 2, 3, 4, 7, 23, 40)
    feeds = {n: marked(n, seed=n) for n in counts}
    np.savez(tmp_path / "in.npz", **{f"{k}{n}": a for n, f in feeds.items() for k, a in f.items()})
    code = f"""
import sys
import numpy as np
for name in ("llvmlite", "onnx", "xgboost", "sqlalchemy", "fastapi", "pydantic", "ml_dtypes"):
    sys.modules[name] = None
import tilewright
loaded = tilewright.load_artifact({str(folder)!r})
given = np.load({str(tmp_path / "in.npz")!r})
made = {{}}
for n in {counts!r}:
    found = loaded.run({{"x": given[f"x{{n}}"], "mark": given[f"mark{{n}}"]}})
    made |= {{f"{{name}}{{n}}": a for name, a in zip(loaded.output_names, found)}}
np.savez({str(tmp_path / "out.npz")!r}, **made)
assert loaded.programs == 4, loaded.programs  # before the cut; of none, up to three, and more
absent = {{f"tilewright.compiler.{{name}}" for name in ("graph", "frontend", "staged")}}
assert not absent & sys.modules.keys()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    made = np.load(tmp_path / "out.npz")
    for n, feed in feeds.items():
        expected = ReferenceEvaluator(chosen_rows()).run(None, feed)
        for name, theirs in zip(("centred", "part", "count"), expected, strict=True):
            np.testing.assert_allclose(made[f"{name}{n}"], theirs, rtol=1e-5, atol=1e-6)


def test_a_session_takes_an_artifact_in_stages(folder: Path) -> None:
    session = ort.InferenceSession(folder)
    feed = marked(5)
    assert [each.name for each in session.get_inputs()] == list(feed)
    made = session.run(None, feed)
    for each, array in zip(
        session.get_inputs() + session.get_outputs(), [*feed.values(), *made], strict=True
    ):
        assert numpy_type(each.type) == array.dtype
    expected = ReferenceEvaluator(chosen_rows()).run(None, feed)
    for ours, theirs in zip(made, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_no_size_selects_a_program_of_an_artifact_in_stages(folder: Path) -> None:
    loaded = load_artifact(folder)
    assert isinstance(loaded, GuardedModel) and loaded.is_segmented
    assert loaded.served is None and loaded.ranged is None and loaded.made == ()
    with pytest.raises(InvalidArgumentError, match="none of its programs is the whole model"):
        loaded.executable({})


def test_the_command_line_says_what_it_made(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    model = folder.parent / "m.onnx"
    feed = marked(5)
    np.savez(tmp_path / "in.npz", **feed)  # type: ignore[arg-type]
    results = []
    for what in (model, folder):
        out = tmp_path / f"{what.name}.npz"
        command = ["run", str(what), "--inputs", str(tmp_path / "in.npz"), "--outputs", str(out)]
        assert run_cli(command) == 0
        results.append(np.load(out))
    for name in results[0]:
        np.testing.assert_array_equal(results[0][name], results[1][name])
    capsys.readouterr()
    assert run_cli(["show", "graph", str(folder)]) == 0
    assert "stages" in capsys.readouterr().out
    for refused, said in (
        (["compile", str(model), "-o", str(tmp_path / "c"), "--format", "c"], "only artifacts"),
        (["compile", str(model), "-o", str(tmp_path / "c"), "--pad"], "cannot be padded"),
        (["run", str(folder), "--dim", "x=3", *command[2:]], "runs in stages"),
    ):
        assert run_cli(refused) == 1
        assert said in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")  # of no rows
def test_what_runs_in_stages_is_timed_on_drawn_inputs(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    model = tmp_path / "m.onnx"
    onnx.save(chosen_rows(), model)
    short = ["--rounds", "1", "--seconds", "0.01", "--json"]
    for what in (str(model), str(folder)):
        assert run_cli(["bench", what, *short]) == 0
        captured = capsys.readouterr()
        assert "it was timed with random inputs" in captured.err
        (row,) = json.loads(captured.out)["times"]
        assert row["sizes"] == "" and row["median_seconds"] > 0
        assert run_cli(["show", "time", what]) == 0
        printed = capsys.readouterr().out
        assert "stage 1 of 2: " in printed and "stage 2 of 2: " in printed
    assert run_cli(["show", "kernels", str(model)]) == 0
    captured = capsys.readouterr()
    assert "the figures are those of the first stage" in captured.err
    assert "greater 40" in captured.out
    output = str(tmp_path / "int8.onnx")
    assert run_cli(["quantize", str(model), "--random", "-o", output]) == 0
    assert "nothing was quantised" in capsys.readouterr().err


def test_drawn_inputs_that_a_model_refuses_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compile_model(chosen_rows())
    assert isinstance(made, GuardedModel) and made.is_segmented

    def fails(*_: object, **__: object) -> None:
        raise InvalidInputError("no rate of 7")

    monkeypatch.setattr(made, "run", fails)
    with pytest.raises(
        InvalidInputError, match=r"random inputs \(no rate of 7\): .* 'x', 'mark' with"
    ):
        list(staged_inputs(made, NONE_GIVEN))


def test_a_dimension_without_a_range_has_a_hint() -> None:
    proto = chosen_rows()
    for port in proto.graph.input:
        port.type.tensor_type.shape.dim[0].dim_param = "rows"
    made = compile_model(proto)
    assert isinstance(made, GuardedModel) and made.is_segmented and made.open == ("rows",)
    ((sizes, inputs),) = staged_inputs(made, NONE_GIVEN)
    assert sizes["rows"] == len(inputs["x"]) == len(inputs["mark"]) > 1


def test_sizes_that_nobody_foresaw_are_named() -> None:
    with pytest.raises(InvalidArgumentError, match="no program serves all values that the data"):
        plan_programs(ModelRequest(computed_shapes().SerializeToString()), {})
    node = onnx.helper.make_node
    floats = onnx.helper.make_model(
        onnx.helper.make_graph(
            [node("Range", ["none", "limit", "step"], ["y"])],
            "floats",
            [onnx.helper.make_tensor_value_info(n, 1, ()) for n in ("limit", "step")],
            [onnx.helper.make_empty_tensor_value_info("y")],
            [onnx.numpy_helper.from_array(np.float32(0), "none")],
        )
    )
    request = ModelRequest(floats.SerializeToString())
    for plan in (plan_programs, plan_first_program):
        with pytest.raises(InvalidArgumentError, match="depend on the values of 'limit', of float"):
            plan(request, {})


def counts_multiplied() -> onnx.ModelProto:
    """As many elements as the product of three counts, which is in int32."""
    node = onnx.helper.make_node
    nodes = []
    for name in "abc":
        nodes.append(node("NonZero", [name], [f"{name}.found"]))
        nodes.append(node("Shape", [f"{name}.found"], [f"{name}.count"], start=1))
    nodes += [
        node("Concat", [f"{name}.count" for name in "abc"], ["counts"], axis=0),
        node("Cast", ["counts"], ["small"], to=INT32),
        node("ReduceProd", ["small"], ["count"], keepdims=1),
        node("Cast", ["count"], ["shape"], to=onnx.TensorProto.INT64),
        node("Expand", ["x", "shape"], ["y"]),
    ]
    inputs = [("x", FLOAT, (1,)), *((name, FLOAT, (f"n_{name}",)) for name in "abc")]
    return model(nodes, inputs, ["y"])


def chosen_of_a_tail() -> onnx.ModelProto:
    """The positive elements behind the first: an array of one element has none to choose from."""
    node = onnx.helper.make_node
    return model(
        [
            node("Slice", ["x", "one", "end", "none"], ["tail"]),
            node("Greater", ["tail", "zero"], ["mask"]),
            node("NonZero", ["mask"], ["found"]),
            node("Squeeze", ["found", "none"], ["places"]),
            node("Gather", ["tail", "places"], ["y"], axis=0),
        ],
        [("x", FLOAT, ("n",))],
        ["y"],
        zero=np.float32(0),
        none=np.array([0]),
        one=np.array([1]),
        end=np.array([1 << 40]),
    )


def two_chosen(operator: str) -> onnx.ModelProto:
    """Chosen rows, of which there must be two: to be turned, or, if not one, to be scaled."""
    node = onnx.helper.make_node
    last = {
        "Reshape": node("Reshape", ["rows", "turned"], ["y"]),
        "Mul": node("Mul", ["rows", "scale"], ["y"]),
    }
    nodes = [
        node("NonZero", ["mark"], ["found"]),
        node("Squeeze", ["found", "none"], ["places"]),
        node("Gather", ["x", "places"], ["rows"], axis=0),
        last[operator],
    ]
    inputs = [("x", FLOAT, (5, 3)), ("mark", FLOAT, (5,))]
    scale, turned = np.full((2, 3), 2, np.float32), np.array([3, 2])
    return model(nodes, inputs, ["y"], none=np.array([0]), scale=scale, turned=turned)


def _made(proto: onnx.ModelProto, place: Path) -> Any:
    from tilewright.service.jobs.evidence.end_to_end import FixedSchedules
    from tilewright.service.jobs.pipeline.tuning import build_artifact

    plans = plan_programs(ModelRequest(proto.SerializeToString()), {})
    build_artifact(plans, FixedSchedules({}), place)
    return load_artifact(place)


def test_a_question_about_several_sizes_parts_them_all(tmp_path: Path) -> None:
    """Whether a product fits into 32 bits has an answer up to the same end of each factor."""
    proto = counts_multiplied()
    made = _made(proto, tmp_path / "a")
    for counts in ((3, 1, 2), (40, 50, 60)):
        feeds = {n: np.ones(k, np.float32) for n, k in zip("abc", counts, strict=True)}
        agrees(made, proto, x=np.full(1, 3, np.float32), **feeds)
    feeds = {n: np.ones(4000, np.float32) for n in "abc"}
    with pytest.raises(InvalidInputError, match="no program"):
        made.run({"x": np.ones(1, np.float32), **feeds})


@pytest.mark.parametrize(("operator", "counts"), [("Reshape", (2,)), ("Mul", (1, 2))])
def test_a_size_that_must_be_one_has_a_program(
    operator: str, counts: tuple[int, ...], tmp_path: Path
) -> None:
    """The parts before and behind it have none, which leaves it its own."""
    proto = two_chosen(operator)
    made = _made(proto, tmp_path / "a")
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    for count in counts:
        agrees(made, proto, x=x, mark=(np.arange(5) >= 5 - count).astype(np.float32))
    with pytest.raises(InvalidInputError):
        made.run({"x": x, "mark": np.ones(5, np.float32)})


def test_a_table_that_may_be_empty_has_a_program_where_it_is_not(tmp_path: Path) -> None:
    proto = chosen_of_a_tail()
    made = _made(proto, tmp_path / "a")
    for x in ([1, 2, -3, 4], [1, 2], [5, -1, 2, 2, 2, -9, 8]):
        agrees(made, proto, x=np.array(x, np.float32))
    agrees(compile_model(proto, dims={"n": 1}), proto, x=np.ones(1, np.float32))


def test_a_branch_that_contradicts_itself_has_no_program(tmp_path: Path) -> None:
    from tilewright.service.jobs.evidence.end_to_end import FixedSchedules
    from tilewright.service.jobs.pipeline.tuning import build_artifact

    with pytest.warns(UserWarning, match="is an error if it is chosen"):
        plans = plan_programs(ModelRequest(branches().SerializeToString()), {})
    build_artifact(plans, FixedSchedules({}), tmp_path / "a")
    made = load_artifact(tmp_path / "a")
    assert isinstance(made, GuardedModel) and made.is_segmented
    mark, x = np.arange(9) % 2 == 0, np.ones((9, 4), np.float32)
    (y,) = made.run({"x": x, "mark": mark})
    np.testing.assert_array_equal(y, np.ones((5, 4), np.float32))
    with pytest.raises(InvalidInputError, match="chosen contradicts itself"):
        made.run({"x": -x, "mark": mark})


def _behind(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["stages"]["stages"][0]["behind"]
    return found


ATTACKS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no stages": (lambda m: m.pop("stages"), "'stages'"),
    "nothing behind": (lambda m: _behind(m).update(stages=[]), "no stage behind"),
    "the end is missing": (
        lambda m: m["stages"]["stages"][0].update(behind=None),
        "does not make output",
    ),
    "a program that is not there": (
        lambda m: _behind(m)["stages"][0].update(program=99),
        "names program 99",
    ),
    "a negative program": (
        lambda m: m["stages"]["stages"][0].update(program=-1),
        r"stages\[0\].program: expected an integer from 0, got -1",
    ),
    "another stage's program": (
        lambda m: _behind(m)["stages"][0].update(program=0),
        "which its cut does not",
    ),
    "a value that nobody makes": (
        lambda m: m["stages"]["stages"][0].update(makes=["other"]),
        "makes 1 values|nothing makes",
    ),
    "another type": (lambda m: _behind(m)["reads"][0].update(dtype="float64"), "read as float64"),
    "another rank": (lambda m: _behind(m)["reads"][0].update(dims=[1] * 7), "of 7 dimensions"),
    "other inputs": (lambda m: m["stages"]["reads"].pop(), "something else than the inputs"),
    "an input twice": (
        lambda m: m["stages"]["reads"].append(m["stages"]["reads"][0]),
        "read twice",
    ),
    "a size that is no integer": (
        lambda m: _behind(m)["stages"][0].update(sizes=[["count_0", 1.5]]),
        "expected an integer, got 1.5",
    ),
    "absurd extents": (
        lambda m: _behind(m)["reads"][0].update(dims=[-4, 5]),
        r"dims\[0\]: expected an integer from 0, got -4",
    ),
    "no ranges": (lambda m: _behind(m)["stages"][0].update(open=[["count_0", "9..2"]]), "9..2"),
    "deep": (lambda m: _nested(m, 5000), "malformed"),
}


def _nested(manifest: dict[str, Any], depth: int) -> None:
    cut = {"reads": [], "ranges": [], "ends": {}, "reason": "", "stages": []}
    stage = {"sizes": [], "known": [], "open": [], "program": None, "makes": []}
    inner: dict[str, Any] = cut
    for _ in range(depth // 20):
        inner = {**cut, "stages": [{**stage, "behind": inner}]}
    manifest["stages"]["stages"][0]["behind"] = inner


@pytest.mark.parametrize("attack", ATTACKS)
def test_stages_that_do_not_fit_each_other_are_refused(
    folder: Path, tmp_path: Path, attack: str
) -> None:
    change, said = ATTACKS[attack]
    manifest = _copied(folder, tmp_path / "a")
    change(manifest)
    _signed(manifest, tmp_path / "a")
    with pytest.raises(ArtifactError, match=said):
        read_artifact(tmp_path / "a")


def test_sizes_that_lie_are_refused_when_they_are_met(folder: Path, tmp_path: Path) -> None:
    """The program of up to three rows stands for more, and the one of more for few."""
    manifest = _copied(folder, tmp_path / "a")
    stages = _behind(manifest)["stages"]
    few, many = [s for s in stages if s["open"]][:2]
    few["program"], many["program"] = many["program"], few["program"]
    _signed(manifest, tmp_path / "a")
    made = load_artifact(tmp_path / "a")
    for count in (2, 23):
        with pytest.raises(InvalidInputError, match="that the data determine: count_0"):
            made.run(marked(count))


def _copied(folder: Path, place: Path) -> dict[str, Any]:
    place.mkdir()
    for path in folder.iterdir():
        (place / path.name).symlink_to(path)
    (place / "manifest.json").unlink()
    found: dict[str, Any] = copy.deepcopy(json.loads((folder / "manifest.json").read_bytes()))
    return found


def _signed(manifest: dict[str, Any], place: Path) -> None:
    manifest["checksum"] = manifest_checksum(manifest)
    (place / "manifest.json").write_text(json.dumps(manifest))
