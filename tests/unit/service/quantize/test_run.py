"""Whole runs with the real onnxruntime.quantization, on small models."""

from __future__ import annotations

import builtins
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.exact_int8 import exact_int8
from tests.unit.service.quantize.small import (
    Clockwork,
    drawn,
    model,
    network,
    perceptron,
    saved,
    weights,
)
from tilewright.compiler.errors import CompilerError
from tilewright.service.quantize.errors import NothingToQuantizeError, QuantizeError
from tilewright.service.quantize.limit import LeastSqnr, MostChanged
from tilewright.service.quantize.methods import (
    DynamicInt8,
    Int4,
    Method,
    Quantiser,
    Ranges,
    StaticInt8,
    check_installed,
    load_whole,
    prepare,
)
from tilewright.service.quantize.output import check_place, save_model
from tilewright.service.quantize.run import QuantizeWork, quantize
from tilewright.service.quantize.samples import Samples
from tilewright.service.quantize.selection import PartNoise, Selection


def work(path: Path, method: Method, samples: Samples, **more: Any) -> QuantizeWork:
    device: Any = Clockwork()
    return QuantizeWork(path, method, samples, more.pop("device", device), **more)


def operators(made: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in made.graph.node}


def onnxruntime_outputs(made: onnx.ModelProto, samples: Sequence[Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), exact_int8(), providers=["CPUExecutionProvider"]
    )
    return [session.run(None, dict(sample)) for sample in samples]


def sqnr(wanted: Sequence[Any], came: Sequence[Any]) -> float:
    first, second = (np.concatenate([np.ravel(o[0]) for o in each]) for each in (wanted, came))
    return float(10 * np.log10((first**2).sum() / ((first - second) ** 2).sum()))


METHODS = {
    StaticInt8(): "QuantizeLinear",
    StaticInt8(per_channel=False): "QuantizeLinear",
    DynamicInt8(): "DynamicQuantizeLinear",
    Int4(): "MatMulNBits",
    Int4(16, accuracy_level=4): "MatMulNBits",
}


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_loss_is_that_of_onnxruntime_on_the_same_file(tmp_path: Path, method: Method) -> None:
    path, samples = saved(network(), tmp_path), drawn([1, 3, 12, 12], 16)
    made, report = quantize(work(path, method, samples))
    (output,) = report.outputs
    theirs = sqnr(
        onnxruntime_outputs(onnx.load(path), samples.held_out),
        onnxruntime_outputs(made, samples.held_out),
    )
    assert output.fidelity.sqnr_db == pytest.approx(theirs, abs=0.5)
    assert 15 < output.fidelity.sqnr_db < 60
    assert output.top_one is not None and output.top_one.rows == 4
    assert METHODS[method] in operators(made)
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["method"] == str(method)


def test_times_are_those_of_the_device(tmp_path: Path) -> None:
    path, samples = saved(network(), tmp_path), drawn([1, 3, 12, 12])
    _, report = quantize(work(path, StaticInt8(), samples))
    times = report.times
    assert times.device == "clockwork" and times.float_seconds and times.quantised_seconds
    parts = sum(part.float_seconds or 0 for part in times.parts) + (times.elsewhere[0] or 0)
    assert parts == pytest.approx(times.float_seconds)
    assert report.selection is None and not any(layer.kept for layer in report.layers)
    _, blind = quantize(work(path, StaticInt8(), samples, device=Clockwork(runnable=False)))
    assert blind.times.float_seconds is None
    assert all(part.saved_seconds is None for part in blind.times.parts)
    assert blind.to_json()["outputs"] == report.to_json()["outputs"]


@pytest.mark.parametrize(
    ("method", "runnable"),
    [(StaticInt8(), True), (StaticInt8(), False), (DynamicInt8(), True), (Int4(), True)],
)
def test_a_stated_loss_is_kept(tmp_path: Path, method: Method, runnable: bool) -> None:
    path, samples = saved(perceptron(layers=5), tmp_path), drawn([4, 64], 12)
    _, free = quantize(work(path, method, samples))
    limit = LeastSqnr(free.outputs[0].fidelity.sqnr_db + 3)
    told: list[str] = []
    device = Clockwork(runnable)
    made, report = quantize(
        work(path, method, samples, limit=limit, tell=told.append, device=device)
    )
    assert report.outputs[0].fidelity.sqnr_db >= limit.decibels
    assert report.limit == str(limit) and report.selection is not None
    kept = [layer.layer.name for layer in report.layers if layer.kept]
    assert 0 < len(kept) < len(report.layers)
    floats = {node.name for node in made.graph.node if node.op_type == "MatMul"}
    if not isinstance(method, StaticInt8):
        assert floats == set(kept)
    wanted = onnxruntime_outputs(onnx.load(path), samples.held_out)
    assert sqnr(wanted, onnxruntime_outputs(made, samples.held_out)) >= limit.decibels - 0.5
    assert any("alone" in line for line in told) and any("anew" in line for line in told)


def initializers_as_inputs(ir_version: int) -> onnx.ModelProto:
    """A model of opset 9 that lists its initializers as inputs: the shape of a Reshape and that of
    the weight 'filled', too."""
    filled = numpy_helper.from_array(np.array([0.02], np.float32))
    nodes = [
        helper.make_node("ConstantOfShape", ["filled_shape"], ["filled"], "fill", value=filled),
        helper.make_node("MatMul", ["x", "w0"], ["m0"], "first"),
        helper.make_node("Reshape", ["m0", "shape"], ["r0"], "reshape"),
        helper.make_node("MatMul", ["r0", "filled"], ["m1"], "middle"),
        helper.make_node("Sub", ["r0", "m1"], ["apart"], "sub"),
        helper.make_node("MatMul", ["apart", "w1"], ["y"], "last"),
    ]
    parameters = [
        weights("w0", 32, 64),
        weights("w1", 32, 32),
        numpy_helper.from_array(np.array([8, 32]), "shape"),
        numpy_helper.from_array(np.array([32, 32]), "filled_shape"),
    ]
    made = model(nodes, [("x", [4, 32])], [("y", [8, 32])], parameters, opset=9)
    made.graph.input.extend(
        helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in parameters
    )
    made.ir_version = ir_version
    onnx.checker.check_model(made)
    return made


@pytest.mark.parametrize(("ir_version", "more_decibels"), [(3, 3.0), (8, 0.0)])
@pytest.mark.parametrize("method", [StaticInt8(), DynamicInt8(), Int4()], ids=str)
def test_initializers_may_be_graph_inputs(
    tmp_path: Path, method: Method, ir_version: int, more_decibels: float
) -> None:
    """Models of IR versions below 4 list all of them; onnxruntime requires values of inputs."""
    path = saved(initializers_as_inputs(ir_version), tmp_path)
    samples = drawn([4, 32], 12)
    made, report = quantize(work(path, method, samples))
    if more_decibels:
        least = LeastSqnr(report.outputs[0].fidelity.sqnr_db + more_decibels)
        made, report = quantize(work(path, method, samples, limit=least))
        assert report.selection is not None and report.selection.kept
        assert report.outputs[0].fidelity.sqnr_db >= least.decibels
    assert {"first", "middle", "last"} <= {each.layer.name for each in report.layers}
    assert [info.name for info in made.graph.input] == ["x"]
    onnx.checker.check_model(made, full_check=not isinstance(method, Int4))
    wanted = onnxruntime_outputs(onnx.load(path), samples.held_out)
    found = onnxruntime_outputs(made, samples.held_out)
    assert sqnr(wanted, found) == pytest.approx(report.outputs[0].fidelity.sqnr_db, abs=0.5)


def test_a_model_that_was_tried_and_lost_too_much_is_not_the_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, samples = saved(perceptron(), tmp_path), drawn([4, 64])
    _, free = quantize(work(path, DynamicInt8(), samples))
    limit = LeastSqnr(free.outputs[0].fidelity.sqnr_db + 0.1)

    def back_and_forth(
        candidates: Sequence[PartNoise], _: object, does_keep: Callable[[frozenset[int]], bool]
    ) -> Selection:
        most = frozenset(range(len(candidates) - 1))
        assert does_keep(most) and not does_keep(frozenset())
        return Selection(tuple(candidates), most, 0, (len(most), 0))

    monkeypatch.setattr("tilewright.service.quantize.run.select", back_and_forth)
    made, report = quantize(work(path, DynamicInt8(), samples, limit=limit))
    assert report.outputs[0].fidelity.sqnr_db >= limit.decibels
    kept = {layer.layer.name for layer in report.layers if layer.kept}
    assert {node.name for node in made.graph.node if node.op_type == "MatMul"} == kept


def test_a_loss_that_is_kept_anyway_costs_no_search(tmp_path: Path) -> None:
    path, samples = saved(network(), tmp_path), drawn([1, 3, 12, 12])
    _, report = quantize(work(path, StaticInt8(), samples, limit=LeastSqnr(5)))
    assert report.selection is None and report.limit == "5 dB"
    _, report = quantize(work(path, StaticInt8(), samples, limit=MostChanged(0.5)))
    assert report.limit == "50 %"


def test_a_loss_that_no_choice_keeps(tmp_path: Path) -> None:
    path, samples = saved(network(), tmp_path), drawn([1, 3, 12, 12])
    with pytest.raises(QuantizeError, match="300 dB: no choice of layers that was tried keeps it"):
        quantize(work(path, StaticInt8(), samples, limit=LeastSqnr(300)))
    path = saved(perceptron(), tmp_path)
    with pytest.raises(QuantizeError, match="no output is a classification"):
        quantize(work(path, StaticInt8(), drawn([4, 64]), limit=MostChanged(0.1)))


def test_what_a_share_cannot_show_is_said(tmp_path: Path) -> None:
    path, samples = saved(network(), tmp_path), drawn([1, 3, 12, 12])
    _, report = quantize(work(path, StaticInt8(), samples, limit=MostChanged(0.001)))
    assert any("2 rows cannot show" in note for note in report.notes)


@pytest.mark.parametrize("ranges", list(Ranges))
def test_ranges(tmp_path: Path, ranges: Ranges, capsys: pytest.CaptureFixture[str]) -> None:
    path, samples = saved(network(), tmp_path), drawn([1, 3, 12, 12])
    _, report = quantize(work(path, StaticInt8(ranges=ranges), samples))
    assert report.outputs[0].fidelity.sqnr_db > 5
    assert str(ranges) in report.method
    captured = capsys.readouterr()
    assert captured.out == "", "onnxruntime prints what it does"


def test_one_sample_serves_for_both_and_is_said(tmp_path: Path) -> None:
    path = saved(network(), tmp_path)
    _, report = quantize(work(path, StaticInt8(), drawn([1, 3, 12, 12], 1)))
    assert report.seen and (report.samples, report.measured) == (1, 1)
    _, report = quantize(work(path, DynamicInt8(), drawn([1, 3, 12, 12], 1)))
    assert not report.seen and report.samples == 0


@pytest.mark.parametrize("value", [0.0, 1.0, -3e30, 1e-40])
def test_constant_samples(tmp_path: Path, value: float) -> None:
    path = saved(network(), tmp_path)
    samples = drawn([1, 3, 12, 12], 4)
    for sample in (*samples.calibration, *samples.held_out):
        sample["x"][:] = value
    _, report = quantize(work(path, StaticInt8(), samples))
    json.dumps(report.to_json(), allow_nan=False)


def test_open_dimensions_and_old_opsets(tmp_path: Path) -> None:
    path = saved(network("batch", opset=11), tmp_path)
    samples = drawn([2, 3, 12, 12])
    sized = Samples(samples.calibration, samples.held_out, {"batch": 2}, "seeds")
    made, report = quantize(work(path, StaticInt8(), sized))
    assert report.outputs[0].top_one is not None and report.outputs[0].top_one.rows == 4
    (dim, *_) = made.graph.input[0].type.tensor_type.shape.dim
    assert dim.dim_param == "batch", "the quantised model takes any batch, too"


def test_nodes_without_names_of_their_own(tmp_path: Path) -> None:
    plain = perceptron(layers=4)
    for node, name in zip(plain.graph.node, ["", "same", "same", "", "", "same", ""], strict=False):
        node.name = name
    path, samples = saved(plain, tmp_path), drawn([4, 64])
    _, free = quantize(work(path, DynamicInt8(), samples))
    names = [layer.layer.name for layer in free.layers]
    assert len(set(names)) == 4 and "" not in names
    limit = LeastSqnr(free.outputs[0].fidelity.sqnr_db + 2)
    made, report = quantize(work(path, DynamicInt8(), samples, limit=limit))
    kept = {layer.layer.name for layer in report.layers if layer.kept}
    assert {node.name for node in made.graph.node if node.op_type == "MatMul"} == kept


def test_a_model_with_bodies(tmp_path: Path) -> None:
    """A branch reads a value that is quantised outside; the branch's contents stay as they are."""
    branches = []
    for name, operator in (("then", "Relu"), ("otherwise", "Neg")):
        node = helper.make_node(operator, ["h"], [f"{name}_y"])
        port = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4, 8])
        branches.append(helper.make_graph([node], name, [], [port]))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["y"], then_branch=branches[0], else_branch=branches[1]
        ),
    ]
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    made = model(nodes, [("x", [4, 8])], [("y", [4, 8])], [weights("w", 8, 8), zero])
    path, samples = saved(made, tmp_path), drawn([4, 8], 12)
    for method in (StaticInt8(), DynamicInt8()):
        _, report = quantize(work(path, method, samples))
        assert "product" in [layer.layer.name for layer in report.layers]
        assert report.outputs[0].fidelity.sqnr_db > 15


def branching(*, outside: bool = True) -> onnx.ModelProto:
    """(4, 32) through a product, and another in each branch of an If; names are used twice."""
    branches = []
    for name in ("then", "otherwise"):
        nodes = [
            helper.make_node("MatMul", ["h", "v"], [f"{name}_m"], "mm0"),
            helper.make_node("MatMul", [f"{name}_m", f"{name}_w"], [f"{name}_y"]),
        ]
        port = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4, 32])
        own = [weights(f"{name}_w", 32, 32)]
        branches.append(helper.make_graph(nodes, name, [], [port], own))
    operator, operands = ("MatMul", ["x", "v"]) if outside else ("Tanh", ["x"])
    nodes = [
        helper.make_node(operator, operands, ["h"], "mm0"),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["y"], then_branch=branches[0], else_branch=branches[1]
        ),
    ]
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    return model(nodes, [("x", [4, 32])], [("y", [4, 32])], [weights("v", 32, 32), zero])


@pytest.mark.parametrize("method", [StaticInt8(), DynamicInt8(), Int4()])
def test_bodies_stay_in_float32(tmp_path: Path, method: Method) -> None:
    """Only the layers in the report are changed, and only they can be kept in float32."""
    path, samples = saved(branching(), tmp_path), drawn([4, 32], 12)
    made, report = quantize(work(path, method, samples))
    assert "mm0" in [layer.layer.name for layer in report.layers]
    (branch,) = (node for node in made.graph.node if node.op_type == "If")
    found = [node for attribute in branch.attribute for node in attribute.g.node]
    assert [node.op_type for node in found] == ["MatMul"] * 4
    assert report.notes == ("3 weights stay in float32 in bodies of If, Loop and Scan",)
    names = [node.name for node in (*found, *made.graph.node)]
    assert all(names) and len(set(names)) == len(names)
    wanted = onnxruntime_outputs(onnx.load(path), samples.held_out)
    assert sqnr(wanted, onnxruntime_outputs(made, samples.held_out)) > 10


def test_values_that_are_no_numbers_stay_in_float32(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "plain"),
        helper.make_node("Mul", ["x", "x"], ["square"], "square"),
        helper.make_node("Sub", ["minus", "square"], ["below"], "below"),
        helper.make_node("Sqrt", ["below"], ["root"], "root"),
        helper.make_node("MatMul", ["root", "w"], ["product"], "wild"),
        helper.make_node("IsNaN", ["product"], ["none"], "none"),
        helper.make_node("Cast", ["none"], ["z"], "cast", to=onnx.TensorProto.FLOAT),
    ]
    minus = numpy_helper.from_array(np.array(-1, np.float32), "minus")
    ports = [("y", [4, 8]), ("z", [4, 8])]
    path = saved(model(nodes, [("x", [4, 8])], ports, [weights("w", 8, 8), minus]), tmp_path)
    made, report = quantize(work(path, StaticInt8(), drawn([4, 8])))
    named = {node.name: node for node in made.graph.node}
    assert named["wild"].input[0] == "root" and named["plain"].input[0] != "x"
    constant, wild = report.notes
    assert constant.startswith("all elements of 'z' are equal in float32 for each sample")
    assert wild == "3 nodes stay in float32: on the samples, values of theirs are NaN or infinite"


def test_a_softmax_without_a_type_stays_in_float32(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("Softmax", ["a"], ["b"], "shares"),
        helper.make_node("MatMul", ["b", "w"], ["y"], "second"),
    ]
    small = model(nodes, [("x", [4, 8])], [("y", [4, 8])], [weights("w", 8, 8)])
    assert not small.graph.value_info
    made = Quantiser(small, StaticInt8(), drawn([4, 8]).calibration, tmp_path).quantise()
    assert "shares" in {node.name for node in made.graph.node}


def test_bodies_alone_are_nothing_to_quantise(tmp_path: Path) -> None:
    path = saved(branching(outside=False), tmp_path)
    with pytest.raises(QuantizeError, match=r"it has no MatMul .*; 3 weights stay"):
        quantize(work(path, Int4(), drawn([4, 32])))


def test_weights_beside_the_file(tmp_path: Path) -> None:
    path, whole = tmp_path / "split.onnx", perceptron()
    onnx.save(whole, path, save_as_external_data=True, location="data.bin", size_threshold=0)
    made, report = quantize(work(path, DynamicInt8(), drawn([4, 64])))
    assert "MatMulInteger" in operators(made) and report.outputs[0].fidelity.sqnr_db > 20
    (tmp_path / "data.bin").unlink()
    with pytest.raises(QuantizeError, match=r"split\.onnx': weights next to it cannot be read"):
        load_whole(path)


def test_weights_that_no_message_holds(tmp_path: Path) -> None:
    huge = perceptron()
    tensor = huge.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.dims[:] = [1 << 20, 1 << 10]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="data.bin")
    with pytest.raises(QuantizeError, match="weights of 4295"):
        load_whole(saved(huge, tmp_path))
    inside = branching()
    body = next(a.g for n in inside.graph.node for a in n.attribute if a.HasField("g"))
    body.initializer[0].CopyFrom(tensor)
    with pytest.raises(QuantizeError, match="weights of 42949"):
        load_whole(saved(inside, tmp_path))


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    path, samples = saved(perceptron(), tmp_path), drawn([4, 64])
    made, _ = quantize(work(path, StaticInt8(), samples))
    again = saved(made, tmp_path, "again.onnx")
    with pytest.raises(
        NothingToQuantizeError, match=r"quantised already: node '.*' is a \w+Linear"
    ):
        quantize(work(again, DynamicInt8(), samples))
    inside = branching()
    body = next(a.g for n in inside.graph.node for a in n.attribute if a.HasField("g"))
    body.node[1].op_type = "MatMulNBits"
    with pytest.raises(QuantizeError, match=r"'\w+_y' is a MatMulNBits"):
        prepare(saved(inside, tmp_path), Int4(), tmp_path)


def test_models_with_nothing_to_quantise(tmp_path: Path) -> None:
    tanh = model([helper.make_node("Tanh", ["x"], ["y"])], [("x", [2])], [("y", [2])])
    with pytest.raises(
        NothingToQuantizeError, match=r"there is nothing that dynamic int8, .* changes"
    ):
        quantize(work(saved(tanh, tmp_path), DynamicInt8(), drawn([2])))


def test_a_model_without_operators_of_onnx_has_nothing_to_quantise(tmp_path: Path) -> None:
    trees = model([helper.make_node("Tanh", ["x"], ["y"])], [("x", [2])], [("y", [2])])
    del trees.opset_import[:]
    trees.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    path = tmp_path / "trees.onnx"
    onnx.save(trees, path)
    with pytest.raises(NothingToQuantizeError, match=r"operators of 'ai.onnx.ml' alone"):
        prepare(path, StaticInt8(), tmp_path)


def test_what_does_not_compile_is_said(tmp_path: Path) -> None:
    unknown = perceptron()
    unknown.graph.node[1].op_type = "Unheard"
    with pytest.raises(CompilerError, match="Unheard"):
        quantize(work(saved(unknown, tmp_path), DynamicInt8(), drawn([4, 64])))


def test_blocks_and_levels_that_no_operator_takes() -> None:
    for block in (0, -32, 24, 512):
        with pytest.raises(QuantizeError, match=f"--block {block}: blocks are of 16, 32"):
            Int4(block)
    for level in (-1, 5):
        with pytest.raises(QuantizeError, match="levels are 0 to 4"):
            Int4(accuracy_level=level)


@pytest.mark.parametrize(
    ("method", "missing"),
    [(StaticInt8(), "onnxruntime"), (Int4(), "onnx_ir"), (DynamicInt8(), "onnxruntime")],
)
def test_the_extra_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method, missing: str
) -> None:
    def absent(name: str, *_: object) -> object:
        if name.split(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)
        return builtins.__import__(name)

    monkeypatch.setattr("tilewright.service.quantize.errors.import_module", absent)
    with pytest.raises(QuantizeError, match=rf"needs '{missing}' .*tilewright\[quantize\]'"):
        check_installed(method)
    with pytest.raises(QuantizeError, match=r"tilewright\[quantize\]"):
        prepare(saved(perceptron(), tmp_path), method, tmp_path)


def test_logging_is_left_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        quantize(work(saved(perceptron(), tmp_path), DynamicInt8(), drawn([4, 64])))
        assert not [r for r in caplog.records if r.name == "root"]
        logging.getLogger("after").warning("heard")
    assert "heard" in caplog.text


def test_places_for_the_result(tmp_path: Path) -> None:
    path = saved(perceptron(), tmp_path)
    check_place(tmp_path / "new.onnx", path)
    for place, sentence in (
        (tmp_path, "is a folder"),
        (tmp_path / "away" / "a.onnx", "does not exist"),
        (path, "is the model that is to be quantised"),
    ):
        with pytest.raises(QuantizeError, match=sentence):
            check_place(place, path)
    save_model(perceptron(), tmp_path / "new.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "new.onnx"]
    (tmp_path / "taken").mkdir()
    for place in (tmp_path / "taken", tmp_path / "away" / "a.onnx"):
        with pytest.raises(OSError, match="directory") as caught:
            save_model(perceptron(), place)
        assert caught.value.filename == str(place)
    assert len(list(tmp_path.iterdir())) == 3, "nothing half written is left"
    (tmp_path / "link.onnx").symlink_to("new.onnx")
    save_model(network(), tmp_path / "link.onnx")
    assert onnx.load(tmp_path / "new.onnx") == network(), "links lead to the new model"
