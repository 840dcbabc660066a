"""Models with dynamic dimensions, whose shapes are computed by Shape nodes, as exporters do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks.onnx_writer import OnnxWriter
from benchmarks.transformer import BERT_VOCABULARY, GPT2_VOCABULARY, Blocks

POSITIONS = 1024
"""Number of rows of tables indexed by position, and so the longest sequence."""

LOWEST = np.finfo(np.float32).min


def opened(model: Any, inputs: Mapping[str, Sequence[int | str]]) -> Any:
    """Copy a model and change the shapes of its inputs.

    A text in a shape names a dynamic dimension. Reshapes to a constant shape that starts with 1
    keep the first dimension of their operand instead.

    Raises:
        ValueError: if the model has no input of a given name.
    """
    if absent := inputs.keys() - {info.name for info in model.graph.input}:
        raise ValueError(f"the model has no input {', '.join(sorted(absent))}")
    copy = type(model)()
    copy.CopyFrom(model)
    for info in copy.graph.input:
        if info.name in inputs:
            element = info.type.tensor_type.elem_type
            info.CopyFrom(helper.make_tensor_value_info(info.name, element, inputs[info.name]))
    for info in copy.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    shapes = {node.input[1] for node in copy.graph.node if node.op_type == "Reshape"}
    for tensor in copy.graph.initializer:
        if tensor.name in shapes and numpy_helper.to_array(tensor)[:1] == 1:
            shape = numpy_helper.to_array(tensor).copy()
            shape[0] = 0  # as the operand has it
            tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))
    return copy


class _Shapes:
    """Shape arithmetic as PyTorch's exporter writes it: Shape and Gather nodes for each extent."""

    def __init__(self, writer: OnnxWriter) -> None:
        self._writer = writer

    def extent(self, value: str, dim: int) -> str:
        """Add nodes for the extent of dimension `dim` of a value.

        Returns the name of the scalar.
        """
        shape = self._writer.node("Shape", value)
        return self._writer.node("Gather", shape, self._writer.constant(np.int64(dim)), axis=0)

    def joined(self, *extents: str | int) -> str:
        """Add nodes that join extents (names of scalars, or integers) to a shape.

        Returns the shape's name.
        """
        writer = self._writer
        zero = writer.constant(np.array([0], np.int64))
        parts = [
            writer.constant(np.array([extent], np.int64))
            if isinstance(extent, int)
            else writer.node("Unsqueeze", extent, zero)
            for extent in extents
        ]
        return writer.node("Concat", *parts, axis=0)

    def reshape(self, value: str, *extents: str | int) -> str:
        return self._writer.node("Reshape", value, self.joined(*extents))

    def rows(self, table: str, first: str, end: str) -> str:
        """Add a Slice of rows `first` to `end` (names of scalars) of a table; returns its name."""
        writer = self._writer
        zero = writer.constant(np.array([0], np.int64))
        begin, stop = (writer.node("Unsqueeze", place, zero) for place in (first, end))
        return writer.node("Slice", table, begin, stop, zero)


class _DynamicBlocks(Blocks):
    """Builds transformer layers for values of shape (batch, sequence, hidden).

    `batch` and `sequence` are dynamic, unlike in the base class `Blocks`.
    """

    def __init__(self, writer: OnnxWriter, hidden: int, heads: int) -> None:
        super().__init__(writer, hidden, heads)
        self.shapes = _Shapes(writer)

    def split(self, value: str, permutation: Sequence[int], heads: int = 0) -> str:
        batch, sequence = (self.shapes.extent(value, dim) for dim in (0, 1))
        split = self.shapes.reshape(value, batch, sequence, heads or self.heads, self.head)
        return self.writer.node("Transpose", split, perm=list(permutation))

    def mixed(self, query: str, key: str, value: str, mask: str) -> str:
        """Add multi-head attention with an additive mask.

        `key` has shape (batch, heads, head, keys). Returns a value of shape (batch, sequence,
        hidden).
        """
        mixed = self.weighted(query, key, value, mask)
        turned = self.writer.node("Transpose", mixed, perm=[0, 2, 1, 3])
        batch, sequence = (self.shapes.extent(turned, dim) for dim in (0, 1))
        return self.shapes.reshape(turned, batch, sequence, self.hidden)

    def fed_forward(self, x: str, inner: int) -> str:
        hidden = self.writer.gelu(self.writer.linear(x, self.hidden, inner))
        return self.writer.linear(hidden, inner, self.hidden)


def dynamic_bert(
    seed: int = 0,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    intermediate: int = 3072,
    vocabulary: int = BERT_VOCABULARY,
) -> Any:
    """BERT as PyTorch exports it, with dynamic dimensions `batch` and `sequence`.

    Inputs are `input_ids` and `attention_mask`, int64 (batch, sequence). The output is (batch,
    sequence, hidden).
    """
    writer = OnnxWriter("open_bert", seed)
    blocks = _DynamicBlocks(writer, hidden, heads)
    ids = writer.input("input_ids", ("batch", "sequence"), TensorProto.INT64)
    mask = writer.input("attention_mask", ("batch", "sequence"), TensorProto.INT64)
    words = writer.constant(writer.normal((vocabulary, hidden), 1.0), "words")
    positions = writer.constant(writer.normal((POSITIONS, hidden), 0.5), "positions")
    sequence = blocks.shapes.extent(ids, 1)
    places = blocks.shapes.rows(
        writer.constant(np.arange(POSITIONS, dtype=np.int64)),
        writer.constant(np.int64(0)),
        sequence,
    )
    x = writer.node("Gather", words, ids, axis=0)
    x = writer.node("Add", x, writer.node("Gather", positions, places, axis=0))
    x = blocks.normalise(x, 1e-12)
    wide = writer.node("Unsqueeze", mask, writer.constant(np.array([1, 2], np.int64)))
    seen = writer.node("Cast", wide, to=TensorProto.FLOAT)
    hidden_keys = writer.node("Sub", writer.constant(np.float32(1)), seen)
    added = writer.node("Mul", hidden_keys, writer.constant(np.float32(LOWEST)))
    for _ in range(layers):
        query, key, value = (
            blocks.split(writer.linear(x, hidden, hidden), perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        mixed = writer.linear(blocks.mixed(query, key, value, added), hidden, hidden)
        x = blocks.normalise(writer.node("Add", x, mixed), 1e-12)
        x = blocks.normalise(writer.node("Add", x, blocks.fed_forward(x, intermediate)), 1e-12)
    return writer.finish([(x, ("batch", "sequence", hidden))])


def _causal(writer: OnnxWriter, shapes: _Shapes, tokens: str, past: str) -> str:
    """Add a causal mask (tokens, past + tokens), computed by Range and comparisons.

    It is 0 where a token may read a key, and the lowest float32 elsewhere.
    """
    zero, one = writer.constant(np.int64(0)), writer.constant(np.int64(1))
    every = writer.node("Add", past, tokens)
    keys = writer.node("Range", zero, every, one)
    queries = writer.node("Range", past, every, one)
    row = writer.node("Unsqueeze", keys, writer.constant(np.array([0], np.int64)))
    column = writer.node("Unsqueeze", queries, writer.constant(np.array([1], np.int64)))
    ahead = writer.node("Greater", row, column)
    low, nothing = writer.constant(np.float32(LOWEST)), writer.constant(np.float32(0))
    return writer.node("Where", ahead, low, nothing)


def open_gpt2(
    seed: int = 0,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocabulary: int = GPT2_VOCABULARY,
) -> Any:
    """GPT-2 with a cache and dynamic dimensions `sequence` and `past`.

    Inputs are `input_ids`, int64 (1, sequence), and past_key_0, past_value_0, ..., (1, heads, past,
    head). The outputs present_key_0, ... contain the keys and values of past and new tokens. The
    last output is `logits`, (1, sequence, vocabulary).
    """
    writer = OnnxWriter("open_gpt2", seed)
    blocks = _DynamicBlocks(writer, hidden, heads)
    shapes = blocks.shapes
    cache = (1, heads, "past", hidden // heads)
    every = (1, heads, "past + sequence", hidden // heads)
    ids = writer.input("input_ids", (1, "sequence"), TensorProto.INT64)
    pasts = [
        [writer.input(f"past_{name}_{layer}", cache) for name in ("key", "value")]
        for layer in range(layers)
    ]
    words = writer.constant(writer.normal((vocabulary, hidden), 0.1), "words")
    positions = writer.constant(writer.normal((POSITIONS, hidden), 0.05), "positions")
    tokens, past = shapes.extent(ids, 1), shapes.extent(pasts[0][0], 2)
    places = shapes.rows(
        writer.constant(np.arange(POSITIONS, dtype=np.int64)),
        past,
        writer.node("Add", past, tokens),
    )
    x = writer.node("Gather", words, ids, axis=0)
    x = writer.node("Add", x, writer.node("Gather", positions, places, axis=0))
    mask = _causal(writer, shapes, tokens, past)
    outputs: list[tuple[str, tuple[int | str, ...]]] = []
    for layer in range(layers):
        joined = writer.linear(blocks.normalise(x, 1e-5), hidden, 3 * hidden)
        parts = writer.split(joined, [hidden] * 3, axis=-1)
        query, key, value = (blocks.split(part, [0, 2, 1, 3]) for part in parts)
        presents = []
        for name, old, new in zip(("key", "value"), pasts[layer], (key, value), strict=True):
            present = f"present_{name}_{layer}"
            presents.append(writer.node("Concat", old, new, axis=2, output=present))
            outputs.append((present, every))
        key = writer.node("Transpose", presents[0], perm=[0, 1, 3, 2])
        mixed = blocks.mixed(query, key, presents[1], mask)
        x = writer.node("Add", x, writer.linear(mixed, hidden, hidden))
        inner = writer.linear(blocks.normalise(x, 1e-5), hidden, 4 * hidden)
        x = writer.node("Add", x, writer.linear(writer.gelu_tanh(inner), 4 * hidden, hidden))
    x = blocks.normalise(x, 1e-5)
    logits = writer.node("MatMul", x, writer.node("Transpose", words, perm=[1, 0]), output="logits")
    return writer.finish([*outputs, (logits, (1, "sequence", vocabulary))])


def open_llama(
    seed: int = 0,
    layers: int = 2,
    hidden: int = 2048,
    heads: int = 32,
    cached: int = 4,
    intermediate: int = 5632,
    vocabulary: int = 32000,
) -> Any:
    """A Llama-shaped decoder with a cache and dynamic dimensions `sequence` and `past`.

    The cache has `cached` heads. Inputs and outputs are those of `open_gpt2`.
    """
    writer = OnnxWriter("open_llama", seed)
    blocks = _DynamicBlocks(writer, hidden, heads)
    shapes, head = blocks.shapes, hidden // heads
    ids = writer.input("input_ids", (1, "sequence"), TensorProto.INT64)
    pasts = [
        [writer.input(f"past_{n}_{layer}", (1, cached, "past", head)) for n in ("key", "value")]
        for layer in range(layers)
    ]
    tokens, past = shapes.extent(ids, 1), shapes.extent(pasts[0][0], 2)
    every = writer.node("Add", past, tokens)
    steps = 1e4 ** -(np.arange(0, head, 2) / head)
    angles = np.arange(POSITIONS)[:, None] * np.concatenate([steps, steps])
    cosine, sine = (
        shapes.rows(writer.constant(table.astype(np.float32)), past, every)
        for table in (np.cos(angles), np.sin(angles))
    )
    mask = _causal(writer, shapes, tokens, past)

    def product(x: str, features: int, columns: int, gain: float = 1.0) -> str:
        weight = writer.normal((features, columns), (gain / features) ** 0.5)
        return writer.node("MatMul", x, writer.constant(weight, "weight"))

    def normalise(x: str) -> str:
        square = writer.node("Pow", x, writer.constant(np.float32(2)))
        mean = writer.node("ReduceMean", square, axes=[-1])
        root = writer.node("Sqrt", writer.node("Add", mean, writer.constant(np.float32(1e-5))))
        scale = writer.constant(writer.random.uniform(0.5, 1.5, hidden).astype(np.float32))
        return writer.node("Mul", writer.node("Div", x, root), scale)

    def rotated(x: str) -> str:
        first, second = writer.split(x, [head // 2] * 2, axis=-1)
        turned = writer.node("Concat", writer.node("Neg", second), first, axis=-1)
        kept = writer.node("Mul", x, cosine)
        return writer.node("Add", kept, writer.node("Mul", turned, sine))

    def repeated(x: str) -> str:
        count = heads // cached
        split = writer.node("Unsqueeze", x, writer.constant(np.array([2], np.int64)))
        keys = shapes.extent(x, 2)
        full = writer.node("Expand", split, shapes.joined(1, cached, count, keys, head))
        return shapes.reshape(full, 1, heads, keys, head)

    x = writer.node(
        "Gather", writer.constant(writer.normal((vocabulary, hidden), 1.0)), ids, axis=0
    )
    outputs: list[tuple[str, tuple[int | str, ...]]] = []
    for layer in range(layers):
        inner = normalise(x)
        query = rotated(blocks.split(product(inner, hidden, hidden), [0, 2, 1, 3]))
        new = [
            blocks.split(product(inner, hidden, cached * head), [0, 2, 1, 3], cached) for _ in "kv"
        ]
        new[0] = rotated(new[0])
        presents = []
        for name, old, value in zip(("key", "value"), pasts[layer], new, strict=True):
            present = f"present_{name}_{layer}"
            presents.append(writer.node("Concat", old, value, axis=2, output=present))
            outputs.append((present, (1, cached, "past + sequence", head)))
        key = writer.node("Transpose", repeated(presents[0]), perm=[0, 1, 3, 2])
        mixed = blocks.mixed(query, key, repeated(presents[1]), mask)
        x = writer.node("Add", x, product(mixed, hidden, hidden))
        inner = normalise(x)
        gate, up = (product(inner, hidden, intermediate) for _ in range(2))
        gate = writer.node("Mul", gate, writer.node("Sigmoid", gate))
        x = writer.node("Add", x, product(writer.node("Mul", gate, up), intermediate, hidden, 2.0))
    weight = writer.constant(writer.normal((hidden, vocabulary), hidden**-0.5), "weight")
    logits = writer.node("MatMul", normalise(x), weight, output="logits")
    return writer.finish([*outputs, (logits, (1, "sequence", vocabulary))])
