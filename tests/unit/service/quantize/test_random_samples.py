"""Generated samples: at the sizes at which a job plans the model, and of valid tokens."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.integration.small_models import encoder, recogniser
from tests.unit.service.quantize.small import perceptron, saved
from tilewright.service.quantize.errors import QuantizeError
from tilewright.service.quantize.random_samples import random_samples_at_hints


def test_open_sizes_are_the_hints_of_a_job(tmp_path: Path) -> None:
    drawn = random_samples_at_hints(saved(recogniser(), tmp_path), {})
    assert drawn.dims == {"n": 1, "height": 16, "width": 224}, "the height that the model wants"
    assert {sample["x"].shape for sample in drawn.held_out} == {(1, 3, 16, 224)}
    given = random_samples_at_hints(saved(recogniser(), tmp_path), {"width": 40})
    assert given.held_out[0]["x"].shape == (1, 3, 16, 40)


def test_tokens_are_rows_of_their_table(tmp_path: Path) -> None:
    drawn = random_samples_at_hints(saved(encoder(), tmp_path), {"length": 20})
    tokens = drawn.held_out[0]["tokens"]
    assert tokens.shape == (1, 20) and 1 < tokens.max() < 50


def test_texts_are_empty(tmp_path: Path) -> None:
    model = perceptron()
    text = onnx.helper.make_tensor_value_info("text", onnx.TensorProto.STRING, ["words"])
    model.graph.input.append(text)
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    model.graph.node.append(
        onnx.helper.make_node(
            "LabelEncoder",
            ["text"],
            ["number"],
            domain="ai.onnx.ml",
            keys_strings=["a", "b"],
            values_floats=[1.0, 2.0],
        )
    )
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("number", onnx.TensorProto.FLOAT, ["words"])
    )
    drawn = random_samples_at_hints(saved(model, tmp_path), {"words": 3})
    assert drawn.held_out[0]["text"].tolist() == ["", "", ""]


def test_inputs_that_no_sample_can_have_are_refused(tmp_path: Path) -> None:
    model = perceptron()
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.COMPLEX64
    with pytest.raises(QuantizeError, match="holds complex64, which no sample can have"):
        random_samples_at_hints(saved(model, tmp_path), {})
