"""Text-generating decoders in ONNX, GPT-2 and Llama, with caches and seeded random parameters.

Inputs are `input_ids`, int64 (1, tokens), and the caches of all earlier tokens. Outputs are
`logits`, float32 (1, vocabulary), for the last token, and the updated caches of each layer. Output
`present_key_0` of one step is input `past_key_0` of the next. There are two kinds of caches:

- "fixed": (1, heads, length, size), allocated for all tokens, in ONNX Runtime's
  GroupQueryAttention. The input `past_length`, int32 (1,), is the number of tokens in the caches.
- "growing": (1, heads, past, size), to which new rows are appended by Concat.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from benchmarks.llama import LLAMA_VOCABULARY
from benchmarks.onnx_writer import OnnxWriter
from benchmarks.transformer import GPT2_VOCABULARY

CACHES = ("fixed", "growing")

GPT2_POSITIONS = 1024


def state_names(model: Any) -> dict[str, str]:
    """Map the name of each cache output to the input that receives it in the next step."""
    return {
        output.name: output.name.replace("present", "past")
        for output in model.graph.output
        if output.name.startswith("present")
    }


def first_states(model: Any) -> dict[str, NDArray[np.float32]]:
    """The caches before the first step, by input name.

    Fixed caches are zeros, and growing ones have no rows.
    """
    states = set(state_names(model).values())
    shapes = {
        given.name: [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        for given in model.graph.input
    }
    return {name: np.zeros(shapes[name], np.float32) for name in states}  # an open one is 0


def read_bytes(model: Any) -> tuple[int, int]:
    """Bytes that a decoding step of one token reads.

    The first number is the size of the parameters, without embedding tables (a Gather reads only
    one of their rows). The second is the size of the caches per cached token.
    """
    read = {name for node in model.graph.node for name in node.input[node.op_type == "Gather" :]}
    parameters = sum(len(each.raw_data) for each in model.graph.initializer if each.name in read)
    states = set(state_names(model).values())
    row = 0
    for given in model.graph.input:
        if given.name in states:
            _, groups, _, size = given.type.tensor_type.shape.dim
            row += groups.dim_value * size.dim_value * np.dtype(np.float32).itemsize
    return parameters, row


class _Attention:
    """Attention layers of a decoder and their shared inputs (caches, positions, mask).

    Queries have `heads` heads of `size` elements. Keys and values have `groups` heads, each shared
    by heads / groups query heads. Queries therefore have shape (1, tokens, heads * size), and keys
    and values (1, tokens, groups * size).
    """

    def __init__(
        self,
        writer: OnnxWriter,
        heads: int,
        groups: int,
        size: int,
        length: int,
        cache: str,
        tables: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
    ) -> None:
        if cache not in CACHES:
            raise ValueError(f"cache is '{cache}', known are {', '.join(CACHES)}")
        self.writer, self.heads, self.groups, self.size = writer, heads, groups, size
        self.fixed = cache == "fixed"
        self.outputs: list[tuple[str, tuple[int | str, ...]]] = []
        one = self._integers(1)
        self.ids = writer.input("input_ids", (1, "tokens"), TensorProto.INT64)
        tokens = writer.node("Gather", writer.node("Shape", self.ids), one, axis=0)
        self._shape = (1, groups, length if self.fixed else "past", size)
        if self.fixed:
            past = writer.input("past_length", (1,), TensorProto.INT32)
            past = writer.node("Cast", past, to=TensorProto.INT64)
        else:
            shape = writer.node("Shape", writer.input("past_key_0", self._shape))
            past = writer.node("Gather", shape, self._integers(2), axis=0)
        scalar = writer.node("Squeeze", tokens)
        steps = writer.node(
            "Range", writer.constant(np.int64(0)), scalar, writer.constant(np.int64(1))
        )
        self.positions = writer.node(
            "Unsqueeze", writer.node("Add", steps, past), self._integers(0)
        )
        self._all = writer.node("Add", past, tokens)
        self._tables = None
        if tables is not None:
            self._tables = tuple(writer.constant(table, "table") for table in tables)
        if self.fixed:
            last = writer.node("Sub", self._all, one)
            self._last = writer.node("Cast", last, to=TensorProto.INT32)
            total = writer.node("Cast", self._all, to=TensorProto.INT32)
            self._total = writer.node("Squeeze", total)
        else:
            self._mask = self._hidden()

    def attend(self, layer: int, query: str, key: str, value: str) -> str:
        """Add the attention of one layer, with its caches as inputs and outputs of the model.

        Returns the name of the result, of shape (1, tokens, heads * size).
        """
        past = [f"past_{name}_{layer}" for name in ("key", "value")]
        for name in past[layer == 0 and not self.fixed :]:  # the first said how long it is
            self.writer.input(name, self._shape)
        names = [f"present_{name}_{layer}" for name in ("key", "value")]
        after = self._shape if self.fixed else (1, self.groups, "all", self.size)
        self.outputs += [(name, after) for name in names]
        if self.fixed:
            return self._grouped(query, key, value, past, names)
        return self._spelled_out(query, key, value, past, names)

    def _integers(self, *values: int) -> str:
        return self.writer.constant(np.array(values, np.int64))

    def _grouped(self, query: str, key: str, value: str, past: list[str], names: list[str]) -> str:
        tables = self._tables or ()
        mixed, _, _ = self.writer.nodes(
            "GroupQueryAttention",
            (query, key, value, *past, self._last, self._total, *tables),
            ("", *names),
            domain="com.microsoft",
            num_heads=self.heads,
            kv_num_heads=self.groups,
            do_rotary=int(bool(tables)),
        )
        return mixed

    def _spelled_out(
        self, query: str, key: str, value: str, past: list[str], names: list[str]
    ) -> str:
        writer = self.writer
        query = self._rotated(self._split(query, self.heads))
        key = self._rotated(self._split(key, self.groups))
        value = self._split(value, self.groups)
        key, value = (
            writer.node("Concat", old, new, axis=2, output=name)
            for old, new, name in zip(past, (key, value), names, strict=True)
        )
        turned = writer.node("Transpose", self._shared(key), perm=[0, 1, 3, 2])
        scores = writer.node("MatMul", query, turned)
        scores = writer.node("Mul", scores, writer.constant(np.float32(self.size**-0.5)))
        weights = writer.node("Softmax", writer.node("Add", scores, self._mask), axis=-1)
        mixed = writer.node("MatMul", weights, self._shared(value))
        mixed = writer.node("Transpose", mixed, perm=[0, 2, 1, 3])
        return writer.node("Reshape", mixed, self._integers(1, -1, self.heads * self.size))

    def _split(self, x: str, heads: int) -> str:
        split = self.writer.node("Reshape", x, self._integers(1, -1, heads, self.size))
        return self.writer.node("Transpose", split, perm=[0, 2, 1, 3])

    def _rotated(self, x: str) -> str:
        """Apply rotary position embedding to the last axis: x cos + (-second half, first half) sin.

        Without tables of cosines and sines, `x` is returned unchanged.
        """
        if self._tables is None:
            return x
        writer = self.writer
        cosine, sine = (
            writer.node(
                "Unsqueeze", writer.node("Gather", table, self.positions), self._integers(1)
            )
            for table in self._tables
        )
        first, second = writer.split(x, [self.size // 2] * 2, axis=-1)
        ends = (
            writer.node("Sub", writer.node("Mul", first, cosine), writer.node("Mul", second, sine)),
            writer.node("Add", writer.node("Mul", second, cosine), writer.node("Mul", first, sine)),
        )
        return writer.node("Concat", *ends, axis=-1)

    def _shared(self, x: str) -> str:
        """Repeat each cached head for all query heads of its group.

        The shape changes from (1, groups, keys, size) to (1, heads, keys, size).
        """
        if self.heads == self.groups:
            return x
        writer, count = self.writer, self.heads // self.groups
        split = writer.node("Unsqueeze", x, self._integers(2))
        full = writer.node("Expand", split, self._integers(1, 1, count, 1, 1))
        return writer.node("Reshape", full, self._integers(1, self.heads, -1, self.size))

    def _hidden(self) -> str:
        """Add nodes that compute the causal attention mask, and return the name of the mask.

        The mask has shape (1, 1, tokens, keys), where the keys are those of the cached and the new
        tokens. The mask is 0 where a query may read a key, and the lowest float32 elsewhere.
        """
        writer, zero, one = self.writer, self._integers(0), self._integers(1)
        count = writer.node("Squeeze", self._all)
        steps = [writer.constant(np.int64(step)) for step in (0, 1)]
        keys = writer.node("Range", steps[0], count, steps[1])
        queries = writer.node("Unsqueeze", writer.node("Squeeze", self.positions, zero), one)
        seen = writer.node("LessOrEqual", keys, queries)
        ends = (writer.constant(np.float32(end)) for end in (0, np.finfo(np.float32).min))
        mask = writer.node("Where", seen, *ends)
        return writer.node("Unsqueeze", mask, self._integers(0, 1))

    def last(self, x: str) -> str:
        """Select the last token of `x`: (1, tokens, hidden) to (1, hidden)."""
        return self.writer.node("Gather", x, self.writer.constant(np.int64(-1)), axis=1)


def gpt2_decoder(
    seed: int = 0,
    length: int = 256,
    cache: str = "fixed",
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    vocabulary: int = GPT2_VOCABULARY,
) -> Any:
    """GPT-2 (Radford et al. 2019), GPT-2 small by default, for up to `length` tokens.

    `cache` is "fixed" or "growing".
    """
    writer = OnnxWriter("gpt2-decoder", seed)
    attention = _Attention(writer, heads, heads, hidden // heads, length, cache)
    words = writer.constant(writer.normal((vocabulary, hidden), 0.1), "words")
    # as many random numbers for any length, so that all later parameters are the same
    drawn = writer.normal((max(length, GPT2_POSITIONS), hidden), 0.05)
    places = writer.constant(np.ascontiguousarray(drawn[:length]), "positions")
    x = writer.node(
        "Add",
        writer.node("Gather", words, attention.ids, axis=0),
        writer.node("Gather", places, attention.positions, axis=0),
    )
    for layer in range(layers):
        joined = writer.linear(writer.layer_norm(x, hidden, 1e-5), hidden, 3 * hidden)
        mixed = attention.attend(layer, *writer.split(joined, [hidden] * 3, axis=-1))
        x = writer.node("Add", x, writer.linear(mixed, hidden, hidden))
        inner = writer.linear(writer.layer_norm(x, hidden, 1e-5), hidden, 4 * hidden)
        outer = writer.linear(writer.gelu_tanh(inner), 4 * hidden, hidden, gain=2.0)
        x = writer.node("Add", x, outer)
    x = attention.last(writer.layer_norm(x, hidden, 1e-5))
    logits = writer.node("MatMul", x, writer.node("Transpose", words, perm=[1, 0]), output="logits")
    return writer.finish([*attention.outputs, (logits, (1, vocabulary))])


def llama_decoder(
    seed: int = 0,
    length: int = 256,
    cache: str = "fixed",
    layers: int = 4,
    hidden: int = 2048,
    heads: int = 32,
    groups: int = 4,
    intermediate: int = 5632,
    vocabulary: int = LLAMA_VOCABULARY,
) -> Any:
    """Llama (Touvron et al. 2023) for up to `length` tokens.

    By default it has four layers of TinyLlama's size. `cache` is "fixed" or "growing", and `groups`
    is the number of cached heads.
    """
    writer = OnnxWriter("llama-decoder", seed)
    size = hidden // heads
    angles = np.arange(length)[:, None] * 1e4 ** -(np.arange(0, size, 2) / size)
    tables = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    attention = _Attention(writer, heads, groups, size, length, cache, tables)
    words = writer.constant(writer.normal((vocabulary, hidden), 1.0), "words")
    x = writer.node("Gather", words, attention.ids, axis=0)
    for layer in range(layers):
        inner = writer.rms_norm(x, hidden)
        widths = hidden, groups * size, groups * size
        parts = (writer.product(inner, hidden, width) for width in widths)
        mixed = attention.attend(layer, *parts)
        x = writer.node("Add", x, writer.product(mixed, hidden, hidden))
        inner = writer.rms_norm(x, hidden)
        gate, up = (writer.product(inner, hidden, intermediate) for _ in range(2))
        gate = writer.node("Mul", gate, writer.node("Sigmoid", gate))
        down = writer.product(writer.node("Mul", gate, up), intermediate, hidden, gain=2.0)
        x = writer.node("Add", x, down)
    weight = writer.constant(writer.normal((hidden, vocabulary), hidden**-0.5), "weight")
    x = attention.last(writer.rms_norm(x, hidden))
    return writer.finish(
        [*attention.outputs, (writer.node("MatMul", x, weight, output="logits"), (1, vocabulary))]
    )


DECODERS: Mapping[str, Any] = {"gpt2": gpt2_decoder, "llama": llama_decoder}
