"""The raced models: seeded, runnable, and with outputs that differ from each other."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks import models
from benchmarks.light import LIGHT_MODELS, light_model
from benchmarks.quantized import dynamic_int8, static_int8, weights_int4
from tilewright.compiler.api import compile_model

small_llama = partial(models.llama, hidden=32, heads=4, cached=2, intermediate=48)

SMALL = {
    "mlp": lambda: models.mlp(widths=(16, 8, 4)),
    "mobilenetv2": lambda: models.mobilenet_v2(size=32, classes=10),
    "bert-base-128": lambda: models.bert(
        tokens=8, layers=1, hidden=32, heads=4, intermediate=64, vocabulary=models.BERT_VOCABULARY
    ),
    "efficientnet-b0": lambda: models.efficientnet_b0(size=64, classes=10),
    "efficientnet-lite0": lambda: models.efficientnet_lite0(size=64, classes=10),
    "yolo-nano": lambda: models.yolo_nano(size=64, classes=3),
    "c3d-small": lambda: models.c3d_small(frames=4, size=16, classes=10),
    "minilm-l6-128": lambda: models.minilm(
        tokens=8, layers=2, hidden=32, heads=4, intermediate=64, vocabulary=models.BERT_VOCABULARY
    ),
    "deit-small": lambda: models.deit(size=32, layers=2, hidden=32, heads=4, classes=10),
    "convnext-tiny": lambda: models.convnext(size=32, depths=(1, 1), widths=(16, 32), classes=10),
    "pvt-tiny": lambda: models.pvt(size=64, depths=(1, 1), widths=(16, 32), classes=10),
    "segformer-b0": lambda: models.segformer(
        size=64, depths=(1, 1), widths=(16, 32), decoded=16, classes=10
    ),
    "whisper-tiny-encoder": lambda: models.whisper_encoder(
        frames=40, features=8, layers=2, hidden=32, heads=4
    ),
    "gpt2-prefill-64": lambda: models.gpt2(tokens=8, layers=2, hidden=32, heads=4),
    "gpt2-decode-64": lambda: models.gpt2(tokens=1, past=8, layers=2, hidden=32, heads=4),
    "llama-prefill-64": lambda: small_llama(tokens=8),
    "llama-decode-64": lambda: small_llama(tokens=1, past=8),
    "lstm-2x256-64": lambda: models.lstm(steps=4, features=8, hidden=16),
    "vgg16-features": lambda: models.vgg16_features(height=32, width=32),
    "shufflenet": lambda: light_model("shufflenet"),
    "squeezenet": lambda: light_model("squeezenet"),
}


@pytest.mark.parametrize("name", SMALL)
def test_model_runs_and_its_outputs_spread(name: str) -> None:
    model = SMALL[name]()
    feeds = models.feeds(name, model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert {info.name for info in session.get_inputs()} == feeds.keys()
    outputs = session.run(None, feeds)
    models.check_spread(outputs[-1])
    others = session.run(None, models.feeds(name, model, seed=2))
    difference = np.max(np.abs(outputs[-1] - others[-1])) / np.max(np.abs(outputs[-1]))
    assert difference > 1e-3, "the outputs hardly depend on the inputs"


@pytest.mark.parametrize("name", ["mlp", "shufflenet"])
def test_a_model_is_the_same_bytes_each_time(name: str) -> None:
    assert models.build(name).SerializeToString() == models.build(name).SerializeToString()


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_quantised_model_has_weights_of_8_bits_and_answers_alike(kind: str) -> None:
    def build() -> onnx.ModelProto:
        return models.mlp(widths=(64, 32, 16))

    def run(model: onnx.ModelProto) -> np.ndarray:
        session = onnxruntime.InferenceSession(model.SerializeToString())
        return session.run(None, feeds)[0]

    feeds = models.feeds("mlp", build())
    made = [
        static_int8(build, models.case("mlp").feeds) if kind == "static" else dynamic_int8(build)
        for _ in range(2)
    ]
    assert made[0].SerializeToString() == made[1].SerializeToString()
    weights = {one.data_type for one in made[0].graph.initializer if len(one.dims) == 2}
    assert weights == {onnx.TensorProto.INT8}
    exact = run(build())
    assert 0 < np.max(np.abs(run(made[0]) - exact)) < 0.1 * np.max(np.abs(exact))


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_products_have_weights_of_4_bits_and_answer_alike(name: str, level: int) -> None:
    """Tied embeddings, which are transposed in the graph, too; this compiler agrees."""
    kind = f"{name}-prefill-64"
    build = {"llama": partial(small_llama, tokens=8), "gpt2": SMALL["gpt2-prefill-64"]}[name]

    def run(model: onnx.ModelProto) -> np.ndarray:
        session = onnxruntime.InferenceSession(model.SerializeToString())
        return session.run(None, feeds)[0]

    model, feeds = build(), models.feeds(kind, build())
    made = weights_int4(build, level, block=16)
    products = [node for node in made.graph.node if node.op_type == "MatMulNBits"]
    weights = {one.name for one in model.graph.initializer if one.name.startswith("weight")}
    assert len(products) == len(weights) + (name == "gpt2")
    for node in products:
        attrs = {a.name: a.i for a in node.attribute}
        assert (attrs.get("accuracy_level", 0), attrs["bits"], attrs["block_size"]) == (
            level,
            4,
            16,
        )
    expected = run(made)
    largest = np.max(np.abs(expected))
    assert 0 < np.max(np.abs(run(model) - expected)) < 0.5 * largest
    found = compile_model(made).run(feeds)[0]
    assert np.max(np.abs(found - expected)) < (0.1 if level else 1e-4) * largest


def test_another_seed_gives_other_parameters() -> None:
    first, second = light_model("squeezenet", seed=0), light_model("squeezenet", seed=1)
    assert first.SerializeToString() != second.SerializeToString()


def test_no_parameter_is_an_input() -> None:
    graph = light_model("shufflenet").graph
    assert [info.name for info in graph.input] == ["gpu_0/data_0"]
    assert not any(node.op_type == "ConstantOfShape" for node in graph.node)


def test_the_light_models_are_all_nine() -> None:
    assert len(LIGHT_MODELS) == 9
    assert set(LIGHT_MODELS) <= set(models.MODELS)


@pytest.mark.parametrize("outputs", [np.ones(10), np.array([1.0, np.nan]), np.zeros(4)])
def test_worthless_outputs_are_refused(outputs: np.ndarray) -> None:
    with pytest.raises(ValueError, match="outputs are"):
        models.check_spread(outputs)


def test_integer_inputs_stay_below_their_bound() -> None:
    model = SMALL["bert-base-128"]()
    ids = models.feeds("bert-base-128", model)["input_ids"]
    assert ids.dtype == np.int64
    assert ids.min() >= 0
    assert ids.max() < models.BERT_VOCABULARY
