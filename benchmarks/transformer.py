"""Transformers in ONNX with seeded random parameters, in the operators that exporters write."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from benchmarks.onnx_writer import OnnxWriter

BERT_VOCABULARY = 30522
GPT2_VOCABULARY = 50257


class Blocks:
    """Builds common transformer layers for values of shape (1, tokens, hidden)."""

    def __init__(self, writer: OnnxWriter, hidden: int, heads: int) -> None:
        self.writer = writer
        self.hidden = hidden
        self.heads = heads
        self.head = hidden // heads

    def normalise(self, value: str, epsilon: float) -> str:
        return self.writer.layer_norm(value, self.hidden, epsilon)

    def split_heads(self, value: str, tokens: int, permutation: list[int]) -> str:
        shape = self.writer.constant(np.array([1, tokens, self.heads, self.head], np.int64))
        reshaped = self.writer.node("Reshape", value, shape)
        return self.writer.node("Transpose", reshaped, perm=permutation)

    def attend(self, query: str, key: str, value: str, tokens: int, mask: str = "") -> str:
        """Add multi-head attention, and merge the heads to shape (1, tokens, hidden).

        `query` and `value` have shape (1, heads, tokens, size), and `key` has shape (1, heads,
        size, tokens), where size is the length of a head. `mask` is added to the scores, if given.
        Returns the name of the merged value.
        """
        writer = self.writer
        return writer.node(
            "Reshape",
            writer.node("Transpose", self.weighted(query, key, value, mask), perm=[0, 2, 1, 3]),
            writer.constant(np.array([1, tokens, self.hidden], np.int64)),
        )

    def weighted(self, query: str, key: str, value: str, mask: str = "") -> str:
        """Add scaled dot-product attention with an optional additive mask.

        Returns (batch, heads, tokens, head). `query` and `value` have shape (batch, heads, tokens,
        head); `key` has shape (batch, heads, head, tokens).
        """
        writer = self.writer
        scores = writer.node(
            "Div", writer.node("MatMul", query, key), writer.constant(np.float32(self.head**0.5))
        )
        if mask:
            scores = writer.node("Add", scores, mask)
        return writer.node("MatMul", writer.node("Softmax", scores, axis=-1), value)

    def self_attend(self, x: str, tokens: int, keys: str = "", count: int = 0) -> str:
        """Add multi-head attention with projections of queries, keys and values.

        It has no mask and no output projection. Keys and values are projected from `keys` (1,
        count, hidden) if given, and otherwise from x.
        """
        linear, keys, count = self.writer.linear, keys or x, count or tokens
        query = self.split_heads(linear(x, self.hidden, self.hidden), tokens, [0, 2, 1, 3])
        key = self.split_heads(linear(keys, self.hidden, self.hidden), count, [0, 2, 3, 1])
        value = self.split_heads(linear(keys, self.hidden, self.hidden), count, [0, 2, 1, 3])
        return self.attend(query, key, value, tokens)


def bert(
    seed: int = 0,
    tokens: int = 128,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    intermediate: int = 3072,
    vocabulary: int = BERT_VOCABULARY,
) -> Any:
    """The BERT encoder (Devlin et al. 2018) with its embeddings.

    With 6 layers and a hidden size of 384 it is MiniLM-L6 (Wang et al. 2020). The input `input_ids`
    is int64 (1, tokens), below `vocabulary`; the output is float32 (1, tokens, hidden).
    """
    writer = OnnxWriter("bert", seed)
    blocks = Blocks(writer, hidden, heads)
    ids = writer.input("input_ids", (1, tokens), TensorProto.INT64)
    words = writer.constant(writer.normal((vocabulary, hidden), 1.0), "words")
    positions = writer.constant(writer.normal((1, tokens, hidden), 0.5), "positions")
    embedded = writer.node("Add", writer.node("Gather", words, ids, axis=0), positions)
    x = blocks.normalise(embedded, 1e-12)
    for _ in range(layers):
        mixed = writer.linear(blocks.self_attend(x, tokens), hidden, hidden)
        x = blocks.normalise(writer.node("Add", x, mixed), 1e-12)
        inner = writer.gelu(writer.linear(x, hidden, intermediate))
        outer = writer.linear(inner, intermediate, hidden)
        x = blocks.normalise(writer.node("Add", x, outer), 1e-12)
    return writer.finish([(x, (1, tokens, hidden))])


def deit(
    seed: int = 0,
    size: int = 224,
    patch: int = 16,
    layers: int = 12,
    hidden: int = 384,
    heads: int = 6,
    classes: int = 1000,
) -> Any:
    """DeiT (Touvron et al. 2020), a vision transformer with a class token; by default DeiT-small.

    The input is (1, 3, size, size), and `size` is a multiple of `patch`. The output is (1,
    classes).
    """
    writer = OnnxWriter("deit", seed)
    blocks = Blocks(writer, hidden, heads)
    patches = (size // patch) ** 2
    tokens = patches + 1
    image = writer.input("x", (1, 3, size, size))
    grid = writer.conv(image, 3, hidden, patch, stride=patch, gain=1.0, padding=0)
    flat = writer.node("Reshape", grid, writer.constant(np.array([1, hidden, patches], np.int64)))
    rows = writer.node("Transpose", flat, perm=[0, 2, 1])
    first = writer.constant(writer.normal((1, 1, hidden), 1.0), "class_token")
    positions = writer.constant(writer.normal((1, tokens, hidden), 0.5), "positions")
    x = writer.node("Add", writer.node("Concat", first, rows, axis=1), positions)
    for _ in range(layers):
        mixed = blocks.self_attend(blocks.normalise(x, 1e-6), tokens)
        x = writer.node("Add", x, writer.linear(mixed, hidden, hidden))
        inner = writer.linear(blocks.normalise(x, 1e-6), hidden, 4 * hidden)
        outer = writer.linear(writer.gelu(inner), 4 * hidden, hidden, gain=2.0)
        x = writer.node("Add", x, outer)
    x = blocks.normalise(x, 1e-6)
    x = writer.node("Gather", x, writer.constant(np.int64(0)), axis=1)
    return writer.finish([(writer.gemm(x, hidden, classes), (1, classes))])


def whisper_encoder(
    seed: int = 0,
    frames: int = 3000,
    features: int = 80,
    layers: int = 4,
    hidden: int = 384,
    heads: int = 6,
) -> Any:
    """The encoder of Whisper (Radford et al. 2022), by default of Whisper-tiny.

    It has attention over frames / 2 tokens (1,500 by default). The input is a spectrogram (1,
    features, frames), and the output (1, frames / 2, hidden).
    """
    writer = OnnxWriter("whisper_encoder", seed)
    blocks = Blocks(writer, hidden, heads)
    x, channels, tokens = writer.input("x", (1, features, frames)), features, frames // 2
    for stride in (1, 2):
        weight = writer.normal((hidden, channels, 3), (1 / (3 * channels)) ** 0.5)
        x = writer.node(
            "Conv", x, writer.constant(weight, "weight"),
            writer.constant(writer.normal((hidden,), 0.05), "bias"),
            kernel_shape=[3], strides=[stride], pads=[1, 1],
        )  # fmt: skip
        x, channels = writer.gelu(x), hidden
    x = writer.node("Transpose", x, perm=[0, 2, 1])
    positions = writer.constant(writer.normal((tokens, hidden), 0.5), "positions")
    x = writer.node("Add", x, positions)
    for _ in range(layers):
        mixed = blocks.self_attend(blocks.normalise(x, 1e-5), tokens)
        x = writer.node("Add", x, writer.linear(mixed, hidden, hidden))
        inner = writer.gelu(writer.linear(blocks.normalise(x, 1e-5), hidden, 4 * hidden))
        x = writer.node("Add", x, writer.linear(inner, 4 * hidden, hidden, gain=2.0))
    return writer.finish([(blocks.normalise(x, 1e-5), (1, tokens, hidden))])


def gpt2(
    seed: int = 0,
    tokens: int = 64,
    past: int = 0,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocabulary: int = GPT2_VOCABULARY,
) -> Any:
    """GPT-2 (Radford et al. 2019), by default GPT-2 small, with logits for every token.

    The input `input_ids` is int64 (1, tokens), below `vocabulary`. If `past` is positive, the
    inputs past_key_0, past_value_0, ... have shape (1, heads, past, head) and cache earlier tokens,
    and the outputs present_key_0, present_value_0, ... cover all tokens. The last output is
    `logits`, (1, tokens, vocabulary).
    """
    writer = OnnxWriter("gpt2", seed)
    blocks = Blocks(writer, hidden, heads)
    every = past + tokens
    cache = (1, heads, every, hidden // heads)
    ids = writer.input("input_ids", (1, tokens), TensorProto.INT64)
    # the words are the output's weights too: logits deviate by 768 ** 0.5 * 0.1 = 2.8
    words = writer.constant(writer.normal((vocabulary, hidden), 0.1), "words")
    positions = writer.constant(writer.normal((1, tokens, hidden), 0.05), "positions")
    x = writer.node("Add", writer.node("Gather", words, ids, axis=0), positions)
    mask = ""
    if tokens > 1:
        ahead = np.triu(np.full((tokens, every), np.finfo(np.float32).min, np.float32), past + 1)
        mask = writer.constant(ahead[None, None], "mask")
    outputs: list[tuple[str, tuple[int, ...]]] = []
    for layer in range(layers):
        joined = writer.linear(blocks.normalise(x, 1e-5), hidden, 3 * hidden)
        parts = writer.split(joined, [hidden] * 3, axis=-1)
        query, key, value = (blocks.split_heads(part, tokens, [0, 2, 1, 3]) for part in parts)
        if past:
            presents = []
            for name, new in (("key", key), ("value", value)):
                old = writer.input(f"past_{name}_{layer}", (1, heads, past, hidden // heads))
                present = f"present_{name}_{layer}"
                presents.append(writer.node("Concat", old, new, axis=2, output=present))
                outputs.append((present, cache))
            key, value = presents
        key = writer.node("Transpose", key, perm=[0, 1, 3, 2])
        mixed = blocks.attend(query, key, value, tokens, mask)
        x = writer.node("Add", x, writer.linear(mixed, hidden, hidden))
        inner = writer.linear(blocks.normalise(x, 1e-5), hidden, 4 * hidden)
        outer = writer.linear(writer.gelu_tanh(inner), 4 * hidden, hidden, gain=2.0)
        x = writer.node("Add", x, outer)
    x = blocks.normalise(x, 1e-5)
    logits = writer.node("MatMul", x, writer.node("Transpose", words, perm=[1, 0]), output="logits")
    return writer.finish([*outputs, (logits, (1, tokens, vocabulary))])
