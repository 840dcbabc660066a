"""Failures of onnxruntime's quantiser are reported as such, with a remedy."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization
import pytest
from onnx import helper, numpy_helper

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
from tilewright.service.quantize.errors import QuantizeError
from tilewright.service.quantize.messages import kept_in_log
from tilewright.service.quantize.methods import DynamicInt8, Int4, Method, Quantiser, StaticInt8
from tilewright.service.quantize.run import QuantizeWork, quantize

CLOCKWORK = Clockwork(runnable=False)


def work(path: Path, method: Method, samples: Any, device: Any = None) -> QuantizeWork:
    """Work without a device: the model fails before it is timed."""
    return QuantizeWork(path, method, samples, device)


def session(
    made: onnx.ModelProto, options: onnxruntime.SessionOptions | None = None
) -> onnxruntime.InferenceSession:
    options = options or onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(made.SerializeToString(), options)


@pytest.mark.parametrize(
    ("method", "function"),
    [(StaticInt8(), "quantize_static"), (DynamicInt8(), "quantize_dynamic")],
)
def test_a_failure_of_scales_for_each_channel_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method, function: str
) -> None:
    """The model is not quantised once more to see whether that helps."""
    calls = []

    def failing(*_: Any, per_channel: bool, **__: Any) -> None:
        calls.append(per_channel)
        if np.array([1, 2]):
            raise AssertionError

    monkeypatch.setattr(onnxruntime.quantization, function, failing)
    path = saved(network(), tmp_path)
    with pytest.raises(QuantizeError, match=r"an array for a single number; .*--per-tensor"):
        quantize(work(path, method, drawn([1, 3, 12, 12])))
    assert calls == [True]
    by_tensor = type(method)(per_channel=False)
    with pytest.raises(QuantizeError, match=r"an array for a single number$"):
        quantize(work(path, by_tensor, drawn([1, 3, 12, 12])))


@pytest.mark.parametrize(
    ("error", "hinted"),
    [
        (ValueError("Weight w has a per-channel axis with value 3 that is out-of-bounds"), True),
        (ValueError("scale must a float32 or float16 numpy element"), True),
        (AssertionError("Scale and zero-point must have the same rank"), True),
        (ValueError("Required inputs (['g.scale', 'channel']) are missing from input feed"), False),
        (RuntimeError("Invalid model with unknown initializers/tensors."), False),
        (AssertionError(), False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_the_option_is_named_for_errors_about_channels_or_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, hinted: bool
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(onnxruntime.quantization, "quantize_dynamic", failing)
    with pytest.raises(QuantizeError) as caught:
        quantize(work(saved(perceptron(), tmp_path), DynamicInt8(), drawn([4, 64])))
    assert ("--per-tensor" in str(caught.value)) is hinted


def test_a_failure_that_no_scale_helps_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(onnxruntime.quantization, "quantize_dynamic", never)
    with pytest.raises(QuantizeError, match=r"cannot quantise the model .*: no such thing$"):
        quantize(work(saved(perceptron(), tmp_path), DynamicInt8(False), drawn([4, 64])))


@pytest.mark.parametrize(
    ("shape", "beta", "transposed"),
    [((), 1.0, 0), ((6,), 2.0, 0), ((1, 6), 0.5, 1), ((4, 6), 0.5, 0), ((4, 1), 1.0, 1)],
)
def test_biases_of_any_shape_are_quantised(
    tmp_path: Path, shape: tuple[int, ...], beta: float, transposed: int
) -> None:
    """onnxruntime takes those of one number for each channel alone, and forgets `beta`."""
    bias = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    nodes = [
        helper.make_node(
            "Gemm", ["x", "w", "g.bias"], ["y"], "g", beta=beta, transB=transposed, alpha=2.0
        )
    ]
    weight = weights("w", 6, 8) if transposed else weights("w", 8, 6)
    made = model(
        nodes, [("x", [4, 8])], [("y", [4, 6])], [weight, numpy_helper.from_array(bias, "g.bias")]
    )
    samples = drawn([4, 8])
    quantised, report = quantize(work(saved(made, tmp_path), StaticInt8(), samples, CLOCKWORK))
    assert "g" in [layer.layer.name for layer in report.layers]
    sample = samples.held_out[0]
    matrix = numpy_helper.to_array(weight)
    wanted = 2 * sample["x"] @ (matrix.T if transposed else matrix) + beta * bias
    (found,) = session(quantised, exact_int8()).run(None, dict(sample))
    # 8 bits of values up to some 6
    assert np.abs(found - wanted).max() < 0.1


@pytest.mark.parametrize("method", [StaticInt8(), DynamicInt8(), Int4()], ids=str)
def test_names_that_the_quantiser_would_give_may_be_there(tmp_path: Path, method: Method) -> None:
    derived = ("scale", "zero_point", "quantized", "QuantizeLinear_Output")
    names = ["x", *(f"x_{each}" for each in derived), "x_DequantizeLinear_Output", "y"]
    nodes = [
        helper.make_node("MatMul", [before, "w"], [after], f"{before}_QuantizeLinear")
        for before, after in pairwise(names)
    ]
    nodes[0].name, nodes[1].name = "mm", "mm_quant"
    more = [weights("w_Q4", 32, 32), weights("w_scales", 32, 32), weights("w_quantized", 32, 32)]
    for node, weight in zip(nodes[2:], more, strict=False):
        node.input[1] = weight.name
    path = saved(
        model(nodes, [("x", [4, 32])], [("y", [4, 32])], [weights("w", 32, 32), *more]), tmp_path
    )
    samples = drawn([4, 32], 12)
    made, report = quantize(work(path, method, samples, CLOCKWORK))
    assert {layer.layer.name for layer in report.layers} == {node.name for node in nodes}
    assert [info.name for info in (*made.graph.input, *made.graph.output)] == ["x", "y"]
    feeds = dict(samples.held_out[0])
    (wanted,), (found,) = (session(each).run(None, feeds) for each in (onnx.load(path), made))
    noise = np.square(found - wanted).mean() / np.square(wanted).mean()
    assert noise < 0.1  # six products one behind the other, of 4 bits: about 0.05


def test_a_bias_of_two_nodes_gets_no_name_that_the_model_has(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "bias"], ["bias0"], "first"),
        helper.make_node("Conv", ["bias0", "v", "bias"], ["bias1"], "second"),
        helper.make_node("Conv", ["bias1", "w", "bias"], ["y"], "third"),
    ]
    more = [weights("w", 4, 4, 1, 1), weights("v", 4, 4, 1, 1), weights("bias", 4)]
    path = saved(model(nodes, [("x", [1, 4, 8, 8])], [("y", [1, 4, 8, 8])], more), tmp_path)
    samples = drawn([1, 4, 8, 8], 12)
    made, report = quantize(work(path, StaticInt8(), samples, CLOCKWORK))
    assert {layer.layer.name for layer in report.layers} == {"first", "second", "third"}
    session(made).run(None, dict(samples.held_out[0]))


@pytest.mark.parametrize("method", [StaticInt8(), DynamicInt8(), Int4()], ids=str)
def test_nothing_of_onnxruntimes_is_printed(
    tmp_path: Path,
    method: Method,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The output of its C++ code on standard error goes to the log: here, about an unused
    constant."""
    small = perceptron()
    small.graph.initializer.append(weights("unused", 4, 4))
    before = logging.getLogger().handlers[:]
    with caplog.at_level(logging.INFO, "tilewright.quantize"):
        quantize(work(saved(small, tmp_path), method, drawn([4, 64]), CLOCKWORK))
    assert capfd.readouterr() == ("", "")
    assert any("'unused'" in each.getMessage() for each in caplog.records)
    assert all(each.name == "tilewright.quantize" for each in caplog.records)
    assert logging.getLogger().handlers == before


def test_records_of_others_go_where_they_went(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener = Listener(logging.ERROR)
    logging.getLogger().addHandler(listener)
    try:
        with kept_in_log():
            logging.getLogger("others").error("for others")
            logging.getLogger("others").warning("below its level")
            logging.getLogger("onnxruntime.quantization").error("for the log")
            print("printed")  # noqa: T201 - as onnxruntime does
    finally:
        logging.getLogger().removeHandler(listener)
    assert heard == ["for others"]
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("method", [DynamicInt8(), Int4()], ids=str)
def test_a_result_that_is_no_model_is_not_the_fault_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    real = Quantiser.quantise

    def broken(self: Quantiser, keep: Any = ()) -> onnx.ModelProto:
        made = real(self, keep)
        made.graph.node[-1].input[0] = "nobody makes this"
        return made

    monkeypatch.setattr(Quantiser, "quantise", broken)
    path = saved(perceptron(), tmp_path)
    with pytest.raises(QuantizeError, match=r"though the float32 model does: .*nobody makes this"):
        quantize(work(path, method, drawn([4, 64])))
