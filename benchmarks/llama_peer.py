"""llama.cpp as an engine that runs the benchmarks' Llama with 4-bit weights.

The models `llama-*-int4*` are converted to GGUF. MatMulNBits with blocks of 32 and without zero
points stores the same as Q4_0: per block, a scale and 32 numbers minus 8. Both engines therefore
multiply the same weights, except that the scales are float16 in Q4_0. llama.cpp's rotary embedding
rotates adjacent elements, but ONNX models rotate the two halves of a head. Therefore the columns of
queries and keys, and the cached keys, are reordered. The cache is llama.cpp's own, in float16.

    python -m venv llama
    CMAKE_ARGS=-DGGML_NATIVE=ON llama/bin/pip install llama-cpp-python gguf onnx onnxruntime onnx_ir
    python -m benchmarks.race --models llama-decode-64-int4-int8 --python llama.cpp=llama/bin/python
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper

from benchmarks.peers import Arrays, Run

Array = NDArray[Any]

BLOCK = 32
LAYER_WEIGHTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""llama.cpp's names of a layer's weights, in the order of the ONNX model's products."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a decoder, read from the ONNX model; `past` is the number of cached tokens."""

    layers: int
    hidden: int
    heads: int
    cached: int
    intermediate: int
    vocabulary: int
    past: int

    @property
    def head(self) -> int:
        return self.hidden // self.heads


def load_llama_cpp(model: Any, feeds: Arrays, threads: int, schedules: str) -> Run:
    """Load a model in llama.cpp.

    The returned function decodes the tokens in `feeds` after the given cache. Each run first
    removes the previous run's tokens from the cache.
    """
    import llama_cpp as api

    weights = LlamaWeights(model)
    shape = weights.shape
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        weights.write(path)
        api.llama_log_set(_SILENT, None)
        settings = api.llama_model_default_params()
        settings.use_mmap = False  # the file goes away
        loaded = api.llama_model_load_from_file(str(path).encode(), settings)
    if not loaded:
        raise RuntimeError("llama.cpp does not load the model")
    options = api.llama_context_default_params()
    tokens = [int(token) for token in feeds["input_ids"].reshape(-1)]
    options.n_ctx = options.n_batch = options.n_ubatch = 256
    options.n_threads = options.n_threads_batch = threads
    context = api.llama_init_from_model(loaded, options)
    decoder = _Decoder(api, context, shape)
    if shape.past:
        decoder.decode([0] * shape.past, 0)
        decoder.set_cache(feeds)
    decoder.decode(tokens, shape.past)
    outputs = decoder.outputs(len(tokens))
    named = [outputs[output.name] for output in model.graph.output]

    def run() -> list[Array]:
        decoder.forget(shape.past)
        decoder.decode(tokens, shape.past)
        return named

    return run


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_SILENT = _LOG(lambda level, text, data: None)
"""Callback that discards llama.cpp's log messages."""


class LlamaWeights:
    """Constants of the ONNX model, in the order in which llama.cpp stores them."""

    def __init__(self, model: Any) -> None:
        graph = model.graph
        self._arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self._products = [
            tuple(self._arrays[name] for name in node.input[1:3])
            for node in graph.node
            if node.op_type == "MatMulNBits"
        ]
        (self._words,) = (
            self._arrays[n.input[0]]
            for n in graph.node
            if n.op_type == "Gather" and n.input[1] == "input_ids"
        )
        hidden = self._words.shape[1]
        self._norms = [
            self._arrays[node.input[1]]
            for node in graph.node
            if node.op_type == "Mul" and self._arrays.get(node.input[1], _NONE).shape == (hidden,)
        ]
        (head,) = (a.shape[-1] for name, a in self._arrays.items() if name.startswith("cosine"))
        caches = [given for given in graph.input if given.name == "past_key_0"]
        past = caches[0].type.tensor_type.shape.dim[2].dim_value if caches else 0
        keys, gate = self._products[1][0], self._products[4][0]
        layers = len(self._products) // len(LAYER_WEIGHTS)
        heads, cached, rows = hidden // head, len(keys) // head, len(self._words)
        self.shape = LlamaShape(layers, hidden, heads, cached, len(gate), rows, past)

    def write(self, path: Path) -> None:
        """Write the model as a GGUF file."""
        from gguf import GGMLQuantizationType, GGUFWriter

        shape = self.shape
        writer = GGUFWriter(path, "llama")
        writer.add_context_length(2048)
        writer.add_embedding_length(shape.hidden)
        writer.add_block_count(shape.layers)
        writer.add_feed_forward_length(shape.intermediate)
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(shape.cached)
        writer.add_rope_dimension_count(shape.head)
        writer.add_rope_freq_base(1e4)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(shape.vocabulary)
        writer.add_tokenizer_model("no_vocab")
        writer.add_tensor("token_embd.weight", self._words)
        writer.add_tensor("output_norm.weight", self._norms[-1])
        names = [f"blk.{i}.{name}" for i in range(shape.layers) for name in LAYER_WEIGHTS]
        for layer in range(shape.layers):
            for number, name in enumerate(("attn_norm", "ffn_norm")):
                writer.add_tensor(f"blk.{layer}.{name}.weight", self._norms[2 * layer + number])
        for name, (stored, scales) in zip([*names, "output"], self._products, strict=True):
            blocks = q4_0(stored, scales)
            if name.endswith(("attn_q", "attn_k")):
                heads = shape.heads if name.endswith("q") else shape.cached
                split = blocks.reshape(heads, shape.head, -1)
                blocks = split[:, neighbours(shape.head)].reshape(blocks.shape)
            writer.add_tensor(f"{name}.weight", blocks, raw_dtype=GGMLQuantizationType.Q4_0)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


_NONE = np.zeros(0)


def q4_0(stored: Array, scales: Array) -> Array:
    """Convert weights of MatMulNBits to rows of Q4_0 blocks.

    `stored` has shape (N, blocks, 16) and `scales` (N, blocks). A Q4_0 block is a float16 scale and
    16 bytes: element j in the low half of byte j, element j + 16 in its high half.
    """
    elements = np.stack([stored & 15, stored >> 4], axis=-1).reshape(*stored.shape[:2], BLOCK)
    halves = elements[..., :16] | elements[..., 16:] << 4
    factor = scales.reshape(*stored.shape[:2], 1).astype("<f2").view(np.uint8)
    blocks = np.concatenate([factor, halves], axis=-1)
    return np.ascontiguousarray(blocks.reshape(len(stored), -1))


def neighbours(head: int) -> Array:
    """Index array that reorders a head's elements from ONNX models' order to llama.cpp's.

    Elements i and i + head / 2 become adjacent.
    """
    return np.arange(head).reshape(2, head // 2).T.reshape(-1)


class _Decoder:
    """A llama.cpp context with a single sequence."""

    def __init__(self, api: Any, context: Any, shape: LlamaShape) -> None:
        self._api, self._context, self._shape = api, context, shape
        self._memory = api.llama_get_memory(context)
        self._batch = api.llama_batch_init(256, 0, 1)

    def decode(self, tokens: list[int], first: int) -> None:
        """Decode tokens from position `first` on, with logits for all of them.

        Raises RuntimeError on failure.
        """
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, first + i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode: {status}")

    def forget(self, first: int) -> None:
        """Remove all positions from `first` on from the cache."""
        self._api.llama_memory_seq_rm(self._memory, 0, first, -1)

    def set_cache(self, feeds: Mapping[str, Array]) -> None:
        """Replace the contents of the cache by the model's inputs `past_key_0` and so on."""
        state = self._state()
        for name, rows in self._cache(state).items():
            given = feeds[f"past_{name}"][0]
            if name.startswith("key"):
                given = given[..., neighbours(self._shape.head)]
            rows[...] = given.transpose(1, 0, 2).reshape(rows.shape)
        taken = (ctypes.c_uint8 * len(state)).from_buffer(state)
        self.forget(0)
        if not self._api.llama_state_seq_set_data(self._context, taken, len(state), 0):
            raise RuntimeError("llama.cpp does not take the cache")

    def outputs(self, tokens: int) -> dict[str, Array]:
        """The logits of the last `tokens` tokens, and the caches.

        Names and layouts are those of the ONNX model's outputs.
        """
        shape = self._shape
        logits = self._api.llama_get_logits(self._context)
        every = np.ctypeslib.as_array(logits, (tokens, shape.vocabulary))
        found = {"logits": every[None].copy()}
        inverse = np.argsort(neighbours(shape.head))
        for name, rows in self._cache(self._state()).items():
            split = rows.astype(np.float32).reshape(len(rows), shape.cached, shape.head)
            if name.startswith("key"):
                split = split[..., inverse]
            found[f"present_{name}"] = np.ascontiguousarray(split.transpose(1, 0, 2))[None]
        return found

    def _state(self) -> bytearray:
        size = self._api.llama_state_seq_get_size(self._context, 0)
        state = bytearray(size)
        taken = (ctypes.c_uint8 * size).from_buffer(state)
        if self._api.llama_state_seq_get_data(self._context, taken, size, 0) != size:
            raise RuntimeError("llama.cpp does not give its cache")
        return state

    def _cache(self, state: bytearray) -> dict[str, Array]:
        """Return views of the key and value caches in a serialised llama.cpp state.

        The names are `key_0`, `value_0`, `key_1`, and so on, with the number of the layer. Each
        view has the shape (tokens, key-value heads * head size).

        The state ends with the keys of all layers, and then the values of all layers. The data of
        one layer are its type (int32; 1 is float16), the size of a row in bytes (uint64), and the
        rows.

        Raises:
            RuntimeError: if a layer's data do not have this format.
        """
        shape = self._shape
        row = 2 * shape.cached * shape.head
        last = self._api.llama_memory_seq_pos_max(self._memory, 0)
        size = 12 + (last + 1) * row
        found = {}
        at = len(state) - 2 * shape.layers * size
        for kind in ("key", "value"):
            for layer in range(shape.layers):
                head = bytes(state[at : at + 12])
                if head != b"\1\0\0\0" + row.to_bytes(8, "little"):
                    raise RuntimeError("llama.cpp's state has another form than is known here")
                rows = np.frombuffer(memoryview(state)[at + 12 : at + size], "<f2")
                found[f"{kind}_{layer}"] = rows.reshape(last + 1, -1)
                at += size
        return found
