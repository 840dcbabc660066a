"""A Llama decoder (Touvron et al. 2023) in ONNX with static shapes and seeded random parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from benchmarks.onnx_writer import OnnxWriter

LLAMA_VOCABULARY = 32000


class _Decoder:
    """Builds attention layers for values of shape (1, tokens, hidden).

    `heads` query heads share the `cached` heads of the key-value cache.
    """

    def __init__(
        self, writer: OnnxWriter, tokens: int, past: int, hidden: int, heads: int, cached: int
    ) -> None:
        self.writer, self.tokens, self.past, self.hidden = writer, tokens, past, hidden
        self.heads, self.cached, self.head = heads, cached, hidden // heads
        steps = 1e4 ** -(np.arange(0, self.head, 2) / self.head)
        angles = np.arange(past, past + tokens)[:, None] * np.concatenate([steps, steps])
        self._cosine = writer.constant(np.cos(angles).astype(np.float32), "cosine")
        self._sine = writer.constant(np.sin(angles).astype(np.float32), "sine")

    def split_heads(self, x: str, heads: int) -> str:
        shape = self.writer.constant(np.array([1, self.tokens, heads, self.head], np.int64))
        return self.writer.node(
            "Transpose", self.writer.node("Reshape", x, shape), perm=[0, 2, 1, 3]
        )

    def rotated(self, x: str) -> str:
        """Apply rotary position embedding to the last axis.

        The result is x cos + (-second half, first half) sin.
        """
        writer = self.writer
        first, second = writer.split(x, [self.head // 2] * 2, axis=-1)
        turned = writer.node("Concat", writer.node("Neg", second), first, axis=-1)
        kept = writer.node("Mul", x, self._cosine)
        return writer.node("Add", kept, writer.node("Mul", turned, self._sine))

    def repeated(self, x: str, every: int) -> str:
        """Repeat each cached head for all query heads that share it.

        The shape changes from (1, cached, every, head) to (1, heads, every, head).
        """
        writer, count = self.writer, self.heads // self.cached
        wide = np.array([1, self.cached, count, every, self.head], np.int64)
        split = writer.node("Unsqueeze", x, writer.constant(np.array([2], np.int64)))
        full = writer.node("Expand", split, writer.constant(wide))
        shape = np.array([1, self.heads, every, self.head], np.int64)
        return writer.node("Reshape", full, writer.constant(shape))

    def attend(self, query: str, key: str, value: str, mask: str) -> str:
        writer, every = self.writer, self.past + self.tokens
        turned = writer.node("Transpose", self.repeated(key, every), perm=[0, 1, 3, 2])
        scores = writer.node("MatMul", query, turned)
        scores = writer.node("Div", scores, writer.constant(np.float32(self.head**0.5)))
        if mask:
            scores = writer.node("Add", scores, mask)
        weights = writer.node("Softmax", scores, axis=-1)
        mixed = writer.node("MatMul", weights, self.repeated(value, every))
        shape = writer.constant(np.array([1, self.tokens, self.hidden], np.int64))
        return writer.node("Reshape", writer.node("Transpose", mixed, perm=[0, 2, 1, 3]), shape)


def llama(
    seed: int = 0,
    tokens: int = 64,
    past: int = 0,
    layers: int = 2,
    hidden: int = 2048,
    heads: int = 32,
    cached: int = 4,
    intermediate: int = 5632,
    vocabulary: int = LLAMA_VOCABULARY,
) -> Any:
    """A Llama decoder with logits for every token; by default two layers of TinyLlama's size.

    The input `input_ids` has shape (1, tokens). If `past` is positive, the decoder also has a
    key-value cache with `cached` heads. The inputs past_key_0, past_value_0, ... then contain the
    keys and values of `past` earlier tokens. The outputs present_key_0, present_value_0, ...
    contain the keys and values of all tokens. The last output is the logits.
    """
    writer = OnnxWriter("llama", seed)
    decoder = _Decoder(writer, tokens, past, hidden, heads, cached)
    every = past + tokens
    shape = (1, cached, every, hidden // heads)
    ids = writer.input("input_ids", (1, tokens), TensorProto.INT64)
    words = writer.constant(writer.normal((vocabulary, hidden), 1.0), "words")
    x = writer.node("Gather", words, ids, axis=0)
    mask = ""
    if tokens > 1:
        ahead = np.triu(np.full((tokens, every), np.finfo(np.float32).min, np.float32), past + 1)
        mask = writer.constant(ahead[None, None], "mask")
    outputs: list[tuple[str, tuple[int, ...]]] = []
    for layer in range(layers):
        inner = writer.rms_norm(x, hidden)
        query = decoder.split_heads(writer.product(inner, hidden, hidden), heads)
        width = cached * decoder.head
        key, value = (
            decoder.split_heads(writer.product(inner, hidden, width), cached) for _ in "kv"
        )
        query, key = decoder.rotated(query), decoder.rotated(key)
        if past:
            presents = []
            for name, new in (("key", key), ("value", value)):
                old = writer.input(f"past_{name}_{layer}", (1, cached, past, decoder.head))
                present = f"present_{name}_{layer}"
                presents.append(writer.node("Concat", old, new, axis=2, output=present))
                outputs.append((present, shape))
            key, value = presents
        mixed = decoder.attend(query, key, value, mask)
        x = writer.node("Add", x, writer.product(mixed, hidden, hidden))
        inner = writer.rms_norm(x, hidden)
        gate, up = (writer.product(inner, hidden, intermediate) for _ in range(2))
        gate = writer.node("Mul", gate, writer.node("Sigmoid", gate))
        down = writer.product(writer.node("Mul", gate, up), intermediate, hidden, gain=2.0)
        x = writer.node("Add", x, down)
    weight = writer.constant(writer.normal((hidden, vocabulary), hidden**-0.5), "weight")
    logits = writer.node("MatMul", writer.rms_norm(x, hidden), weight, output="logits")
    return writer.finish([*outputs, (logits, (1, tokens, vocabulary))])
