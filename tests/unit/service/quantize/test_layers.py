"""Layers in both models, whose time a kernel is, and models with a switch for each part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.unit.service.quantize.small import drawn, model, network, perceptron, saved, weights
from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.service.quantize.attribution import ModelPart, Timed, attribute, kernel_layers
from tilewright.service.quantize.layers import Layer, Owners, as_read, find_layers
from tilewright.service.quantize.methods import (
    DynamicInt8,
    Method,
    Quantiser,
    StaticInt8,
    prepare,
    tensor_names,
)
from tilewright.service.quantize.running import CompiledFor, FloatOutputs, layer_fidelity
from tilewright.service.quantize.samples import Samples
from tilewright.service.quantize.switched import flags, switched_model, with_outputs

TARGET = resolve_target("cascadelake")


class Made:
    """A small model, quantised."""

    def __init__(self, made: onnx.ModelProto, method: Method, folder: Path) -> None:
        path = saved(made, folder)
        shape = [dim.dim_value for dim in made.graph.input[0].type.tensor_type.shape.dim]
        self.samples: Samples = drawn(shape)
        self.model = prepare(path, method, folder)
        self.quantiser = Quantiser(self.model, method, self.samples.calibration, folder)
        self.quantised = self.quantiser.quantise()
        self.layers = find_layers(self.model.graph, self.quantised.graph, self.quantiser.operators)

    def timed(self, model: onnx.ModelProto, seconds: float) -> Timed:
        """Each kernel takes so long."""
        graph = driver.optimise(driver.load_graph(model), Mode(TARGET))
        plan = driver.make_plan(graph, Mode(TARGET))
        owners = Owners(model.graph, tensor_names(self.model.graph), self.layers)
        return Timed(plan, [seconds] * len(plan.kernels), owners, tensor_names(model.graph))


@pytest.fixture
def static(tmp_path: Path) -> Made:
    return Made(network(), StaticInt8(), tmp_path)


@pytest.fixture
def dynamic(tmp_path: Path) -> Made:
    return Made(perceptron(), DynamicInt8(), tmp_path)


def test_layers_of_a_static_model(static: Made) -> None:
    by_name = {layer.name: layer for layer in static.layers}
    assert list(by_name) == ["first", "relu", "second", "add", "pool", "flatten", "classes"]
    # onnxruntime takes the Relu away: the Conv makes its value
    assert by_name["first"].value == by_name["relu"].value == "r0"
    assert by_name["second"] == Layer("second", "Conv", ("r0", "w1"), ("c1",), "c1")
    seen = as_read(static.quantised.graph, ["r0", "y"])
    assert seen["r0"] == "r0_DequantizeLinear_Output" and seen["y"] == "y"


def test_layers_of_a_dynamic_model_are_its_products(dynamic: Made) -> None:
    assert [layer.name for layer in dynamic.layers] == ["mm0", "mm1", "mm2"]
    assert [layer.value for layer in dynamic.layers] == ["m0", "m1", "m2"]


def test_layers_that_stay_in_float32_are_none(static: Made) -> None:
    rest = static.quantiser.quantise(["first", "relu", "second", "add", "pool", "flatten"])
    names = [n.name for n in rest.graph.node if n.op_type == "QuantizeLinear"]
    assert {name.split("_")[0] for name in names} == {"flat", "y"}
    assert static.quantiser.quantise([layer.name for layer in static.layers]).graph.node[
        0
    ].op_type not in ("QuantizeLinear", "DequantizeLinear")


def test_values_between_belong_where_they_lie(static: Made, dynamic: Made) -> None:
    owners = Owners(static.quantised.graph, tensor_names(static.model.graph), static.layers)
    relu, classes = 1, 6  # the first Conv produces the Relu's value now
    assert owners.makers("r0") == owners.makers("r0_QuantizeLinear_Output") == {relu}
    assert owners.makers("x_QuantizeLinear_Output") == frozenset() == owners.makers("x")
    assert owners.served("x_QuantizeLinear_Output") == {relu}
    assert owners.served("x") == frozenset() == owners.makers("w0")
    assert owners.served("y_QuantizeLinear_Input") == {classes}
    products = Owners(dynamic.quantised.graph, tensor_names(dynamic.model.graph), dynamic.layers)
    integers = [n for n in dynamic.quantised.graph.node if n.op_type == "MatMulInteger"]
    assert [products.served(node.output[0]) for node in integers] == [{0}, {1}, {2}]
    assert products.makers("t0") == frozenset()


def test_every_kernel_has_its_layers(static: Made) -> None:
    before, after = static.timed(static.model, 2.0), static.timed(static.quantised, 1.0)
    found = attribute(static.layers, before, after)
    assert sorted(index for part in found.parts for index in part.layers) == list(range(7))
    assert found.float_elsewhere == found.quantised_elsewhere == 0.0
    totals = [sum(part.float_seconds or 0 for part in found.parts)]
    totals += [sum(part.quantised_seconds or 0 for part in found.parts)]
    assert totals == [sum(before.seconds), sum(after.seconds)]
    first = next(part for part in found.parts if 0 in part.layers)
    assert 1 in first.layers, "a Relu is computed with its Conv"
    assert first.saved_seconds is not None


def test_what_no_layer_makes_is_elsewhere(dynamic: Made) -> None:
    """Neither quantiser handles Tanh. The kernel of a Tanh is fused with the product before it, or
    separate, and then it belongs to no layer."""
    before, after = dynamic.timed(dynamic.model, 1.0), dynamic.timed(dynamic.quantised, 1.0)
    owned = kernel_layers(before)
    found = attribute(dynamic.layers, before, after)
    assert found.float_elsewhere == sum(not layers for layers in owned)
    assert len(found.parts) <= 3 and {i for part in found.parts for i in part.layers} == {0, 1, 2}


def test_without_times_every_layer_is_a_part(static: Made) -> None:
    found = attribute(static.layers, None, static.timed(static.quantised, 1.0))
    assert found.parts == tuple(ModelPart((i,), None, None) for i in range(7))
    assert found.parts[0].saved_seconds is None


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_switched_model_is_either(kind: str, request: pytest.FixtureRequest) -> None:
    made: Made = request.getfixturevalue(kind)
    count = len(made.layers)
    parts = [ModelPart((index,), None, None) for index in range(count)]
    sizes = CompiledFor({}, 1)
    switched = sizes.compile(switched_model(made.model, made.quantised, made.layers, parts))
    reference = FloatOutputs.of(sizes.compile(made.model), made.samples.held_out)
    quantised = reference.compare(sizes.compile(made.quantised))
    (whole,) = reference.compare(switched, flags(count, frozenset(range(count))))
    (none,) = reference.compare(switched, flags(count, ()))
    assert whole.fidelity.sqnr_db > 90
    assert none.fidelity.sqnr_db == pytest.approx(quantised[0].fidelity.sqnr_db, abs=0.1)
    for index in range(count):
        alone = reference.compare(switched, flags(count, frozenset(range(count)) - {index}))
        assert none.fidelity.sqnr_db - 3 < alone[0].fidelity.sqnr_db


def test_a_switch_turns_its_own_part_only(static: Made) -> None:
    """With the last layer in float32 and all others too but the first, the error is the first's."""
    parts = [ModelPart((index,), None, None) for index in range(len(static.layers))]
    model = switched_model(static.model, static.quantised, static.layers, parts)
    executable = CompiledFor({}, 1).compile(with_outputs(model, ["c1", "sum"]))
    sample = static.samples.held_out[0]
    outputs = [
        dict(
            zip(executable.output_names, executable.run({**sample, **flags(7, keep)}), strict=True)
        )
        for keep in (frozenset(range(7)), frozenset(range(7)) - {2}, frozenset(range(7)) - {6})
    ]
    assert np.abs(outputs[0]["c1"] - outputs[1]["c1"]).max() > 0
    assert np.array_equal(outputs[0]["sum"], outputs[2]["sum"])
    assert not np.array_equal(outputs[0]["y"], outputs[2]["y"])


def test_layers_are_compared_with_their_noise(static: Made) -> None:
    near = layer_fidelity(
        static.model, static.quantised, static.layers, static.samples.held_out, CompiledFor({}, 1)
    )
    found = [one.sqnr_db for one in near if one is not None]
    assert len(found) == len(static.layers)
    assert all(20 < decibels < 60 for decibels in found)
    assert found[0] == found[1], "the Conv and the Relu that went into it make one value"


def test_a_layer_of_whole_numbers_is_compared(tmp_path: Path) -> None:
    """Classifiers look up their labels: onnxruntime quantises the ArgMax in front."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"], "scores"),
        helper.make_node("ArgMax", ["scores"], ["place"], "place", axis=1),
        helper.make_node("Cast", ["place"], ["y"], "cast", to=TensorProto.FLOAT),
    ]
    made = Made(
        model(nodes, [("x", [4, 8])], [("y", [4, 1])], [weights("w", 8, 5)]),
        StaticInt8(),
        tmp_path,
    )
    assert "place" in {layer.value for layer in made.layers}
    near = layer_fidelity(
        made.model, made.quantised, made.layers, made.samples.held_out, CompiledFor({}, 1)
    )
    assert len(near) == len(made.layers) and None not in near


def test_a_domain_that_is_listed_twice(tmp_path: Path) -> None:
    """skl2onnx does so."""
    proto = network()
    proto.opset_import.append(proto.opset_import[0])
    made = Made(proto, StaticInt8(), tmp_path)
    domains = [opset.domain for opset in made.quantised.opset_import]
    assert domains.count("") == 1


def test_a_bias_of_one_row(tmp_path: Path) -> None:
    """scikit-learn's have one; onnxruntime makes one node of a MatMul and the Add behind."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], "product"),
        helper.make_node("Add", ["product", "b"], ["y"], "bias"),
    ]
    parameters = [weights("w", 8, 5), weights("b", 1, 5)]
    proto = model(nodes, [("x", [4, 8])], [("y", [4, 5])], parameters)
    made = Made(proto, StaticInt8(), tmp_path)
    (sample, *_) = made.samples.held_out
    wanted, found = (
        CompiledFor({}, 1).compile(one).run(sample)[0] for one in (made.model, made.quantised)
    )
    np.testing.assert_allclose(found, wanted, atol=0.1)


def test_models_share_the_kernels_that_they_have_in_common() -> None:
    sizes = CompiledFor({}, 1)
    sizes.compile(network())
    before = len(sizes.kernels.compiled)
    sizes.compile(network())
    assert 0 < before == len(sizes.kernels.compiled)
    sizes.compile(with_outputs(network(), ["sum"]))
    assert before <= len(sizes.kernels.compiled) < 2 * before
