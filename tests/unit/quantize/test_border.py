"""What onnxruntime's quantiser does wrong is said as such, with what helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization
import pytest

from service.quantize.errors import QuantizeError
from service.quantize.methods import DynamicInt8, Int4, Method, Quantiser, StaticInt8
from service.quantize.run import QuantizeWork, quantize
from tests.unit.quantize.small import drawn, network, perceptron, saved


def work(path: Path, method: Method, samples: Any) -> QuantizeWork:
    device: Any = None  # never asked: the model fails before it is timed
    return QuantizeWork(path, method, samples, device)


@pytest.mark.parametrize(
    ("method", "function"),
    [(StaticInt8(), "quantize_static"), (DynamicInt8(), "quantize_dynamic")],
)
def test_weights_that_take_one_scale_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Method, function: str
) -> None:
    """Where arrays of scales fail and single ones do not, the option that helps is named."""
    real = getattr(onnxruntime.quantization, function)

    def by_tensor(*args: Any, per_channel: bool, **named: Any) -> None:
        if per_channel and np.array([1, 2]):
            raise AssertionError
        real(*args, per_channel=per_channel, **named)

    monkeypatch.setattr(onnxruntime.quantization, function, by_tensor)
    path = saved(network(), tmp_path)
    with pytest.raises(QuantizeError, match="one for each tensor it can: --per-tensor") as caught:
        quantize(work(path, method, drawn([1, 3, 12, 12])))
    assert "truth value" not in str(caught.value)


def test_a_failure_that_no_scale_helps_is_told_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(onnxruntime.quantization, "quantize_dynamic", never)
    with pytest.raises(QuantizeError, match=r"cannot quantise the model .*: no such thing"):
        quantize(work(saved(perceptron(), tmp_path), DynamicInt8(), drawn([4, 64])))


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
