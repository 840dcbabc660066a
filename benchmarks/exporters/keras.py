"""Keras networks with random parameters, exported by tf2onnx in opsets 7 to 15."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf2onnx
from tensorflow.keras import Model, applications, layers

from benchmarks.exporters.written import Feeds, Maker, make_all

VOCABULARY = 500


def converted(
    build: Callable[[], Any], path: Path, *, opset: int, runs: Sequence[Mapping[str, Any]]
) -> Sequence[Feeds]:
    """Build a Keras model with a dynamic batch, and export it to `path`.

    A run maps each input to a shape, for random float32 values, or to an array. Returns the inputs
    of all runs.
    """
    tf.keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    model = build()
    for layer in model.submodules:
        if isinstance(layer, layers.BatchNormalization):
            *scale, offset, mean, variance = layer.get_weights()  # some have no scale
            layer.set_weights(
                [
                    *(random.uniform(0.7, 1.3, each.shape) for each in scale),
                    random.normal(0, 0.05, offset.shape),
                    random.normal(0, 0.05, mean.shape),
                    random.uniform(0.6, 1.2, variance.shape),
                ]
            )
    signature = [tf.TensorSpec(i.shape, i.dtype, name=i.name) for i in model.inputs]
    tf2onnx.convert.from_keras(model, signature, opset=opset, output_path=str(path))
    return [
        {
            name: value
            if isinstance(value, np.ndarray)
            else random.standard_normal(value).astype(np.float32)
            for name, value in run.items()
        }
        for run in runs
    ]


def images(name: str, path: Path, *, opset: int, size: int = 96, **options: Any) -> Sequence[Feeds]:
    """Export a network of keras.applications: images (batch, size, size, 3) to 100 classes."""

    def build() -> Any:
        network = getattr(applications, name)
        whole = {"weights": None, "input_shape": (size, size, 3), "classes": 100}
        made = network(**whole, **options)
        inputs = layers.Input((size, size, 3), name="images")
        return Model(inputs, made(inputs))

    shapes = [{"images": (batch, size, size, 3)} for batch in (1, 2)]
    return converted(build, path, opset=opset, runs=shapes)


def recurrent(kind: str, path: Path, *, opset: int) -> Sequence[Feeds]:
    """Export two layers of `kind` ("LSTM" or "GRU"), the first bidirectional.

    The input is (batch, 20, 16).
    """

    def build() -> Any:
        layer = getattr(layers, kind)
        inputs = layers.Input((20, 16), name="series")
        x = layers.Bidirectional(layer(24, return_sequences=True))(inputs)
        return Model(inputs, layers.Dense(5, activation="softmax")(layer(32)(x)))

    return converted(build, path, opset=opset, runs=[{"series": (b, 20, 16)} for b in (2, 1)])


def tokens(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, VOCABULARY, (rows, 32)).astype(np.int32)


def text_cnn() -> Any:
    """A text classifier with parallel 1-D convolutions over token embeddings.

    Their windows are 2, 3 and 5 tokens wide.
    """
    inputs = layers.Input((32,), dtype="int32", name="tokens")
    x = layers.Embedding(VOCABULARY, 48)(inputs)
    parts = [
        layers.GlobalMaxPooling1D()(layers.Conv1D(32, w, activation="relu")(x)) for w in (2, 3, 5)
    ]
    x = layers.Dropout(0.5)(layers.Concatenate()(parts))
    return Model(inputs, layers.Dense(4, activation="sigmoid")(x))


def transformer() -> Any:
    """A language model with two causal transformer blocks."""
    inputs = layers.Input((32,), dtype="int32", name="tokens")
    x = layers.Embedding(VOCABULARY, 64)(inputs)
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, 16)(x, x, use_causal_mask=True)
        x = layers.LayerNormalization()(x + attended)
        inner = layers.Dense(64)(layers.Dense(128, activation="gelu")(x))
        x = layers.LayerNormalization()(x + inner)
    return Model(inputs, layers.Dense(VOCABULARY)(x))


def autoencoder() -> Any:
    """An image autoencoder with strided and transposed convolutions."""
    inputs = layers.Input((64, 64, 3), name="images")
    x: Any = inputs
    for width in (16, 32):
        x = layers.Conv2D(width, 3, strides=2, padding="same", activation="elu")(x)
    for width in (32, 16):
        x = layers.Conv2DTranspose(width, 3, strides=2, padding="same")(x)
        x = layers.LeakyReLU()(layers.BatchNormalization()(x))
    return Model(inputs, layers.Conv2D(3, 3, padding="same", activation="tanh")(x))


def unet() -> Any:
    """A U-Net for segmentation, with nearest and bilinear upsampling."""
    inputs = layers.Input((48, 64, 3), name="images")
    a = layers.SeparableConv2D(16, 3, padding="same", activation="relu")(inputs)
    b = layers.Conv2D(32, 3, padding="same", activation="swish")(layers.MaxPool2D()(a))
    c = layers.Conv2D(48, 3, padding="same", dilation_rate=2)(layers.AveragePooling2D()(b))
    x = layers.Concatenate()([layers.UpSampling2D(interpolation="bilinear")(c), b])
    x = layers.PReLU(shared_axes=[1, 2])(layers.Conv2D(32, 3, padding="same")(x))
    x = layers.Concatenate()([layers.UpSampling2D()(x), a])
    return Model(inputs, layers.Conv2D(2, 1, activation="softmax")(x))


def convlstm() -> Any:
    """A ConvLSTM over five frames, followed by global average pooling."""
    inputs = layers.Input((5, 16, 16, 2), name="frames")
    x = layers.ConvLSTM2D(8, 3, padding="same")(inputs)
    return Model(inputs, layers.GlobalAveragePooling2D()(x))


def _named(build: Callable[[], Any], name: str, shape: tuple[int, ...]) -> Callable[..., Any]:
    runs = [{name: (batch, *shape)} for batch in (1, 3)]
    return partial(converted, build, runs=runs)


_TOKENS = [{"tokens": tokens(rows)} for rows in (2, 1)]

MAKERS: dict[str, Maker] = {
    "keras-mobilenet": partial(images, "MobileNet", opset=7, alpha=0.25),
    "keras-mobilenet-v2": partial(images, "MobileNetV2", opset=9, alpha=0.35),
    "keras-mobilenet-v3": partial(images, "MobileNetV3Small", opset=12, alpha=0.75),
    "keras-resnet50-v2": partial(images, "ResNet50V2", opset=8),
    "keras-xception": partial(images, "Xception", opset=10),
    "keras-inception-v3": partial(images, "InceptionV3", opset=11),
    "keras-densenet": partial(images, "DenseNet121", opset=7),
    "keras-efficientnet": partial(images, "EfficientNetB0", opset=11),
    "keras-nasnet": partial(images, "NASNetMobile", opset=13),
    "keras-lstm": partial(recurrent, "LSTM", opset=9),
    "keras-gru": partial(recurrent, "GRU", opset=13),
    "keras-text-cnn": partial(converted, text_cnn, opset=10, runs=_TOKENS),
    "keras-transformer": partial(converted, transformer, opset=15, runs=_TOKENS),
    "keras-autoencoder": partial(_named(autoencoder, "images", (64, 64, 3)), opset=11),
    "keras-unet": partial(_named(unet, "images", (48, 64, 3)), opset=11),
    "keras-conv-lstm": partial(_named(convlstm, "frames", (5, 16, 16, 2)), opset=12),
}

if __name__ == "__main__":
    make_all(MAKERS)
