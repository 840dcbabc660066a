"""Cases of com.microsoft's operators around attention, and of its image models.

ONNX Runtime's CPU kernels give the expected results; NumPy, where there are only GPU kernels.
"""

from __future__ import annotations

from math import erf, sqrt
from typing import Any

import numpy as np

from tests.unit.ops.microsoft_cases import ms
from tests.unit.ops.rule_case import FLOAT, Case, data, i64

_RANDOM = np.random.default_rng(12)
_HEADS = {"num_heads": 4}
_WIDTH, _PROJECTED = 64, (20, 192)


def i32(*values: Any) -> np.ndarray:
    return data(values, np.int32)


def _bits(*shape: int) -> np.ndarray:
    """A mask that shows the first key, so that every query has one."""
    drawn = _RANDOM.integers(0, 2, shape)
    drawn[..., 0] = 1
    return data(drawn, np.int32)


_ATOL = 2e-4
"""Scores of about 150 are known to 2e-5 in float32, and so are the logarithms of their powers; the
values that these weigh are up to 15."""

_CACHE = (2, 2, 4, 3, 16)
_PAST = (2, 4, 3, 16)
_ROWS = (2, 5, _WIDTH)

PLAIN = [
    *(
        ms(
            "Attention",
            ((2, 5, 20), _PROJECTED, (192,), mask, *rest),
            _HEADS | attrs,
            atol=_ATOL,
            **more,
        )
        for attrs in ({}, {"unidirectional": 1})
        for mask, rest, more in (
            (None, (), {}),
            (i32(3, 5), (), {}),
            (i32(5, 4, 2, 0), (), {}),
            (_bits(2, 5), (), {}),
            (_bits(2, 5, 5), (), {}),
            (None, (_CACHE,), {"outputs": 2}),
            (_bits(2, 8), (_CACHE,), {"outputs": 2}),
        )
    ),
    ms("Attention", ((2, 5, 20), _PROJECTED, (192,), None, None, (1, 4, 5, 5)), _HEADS, atol=_ATOL),
    ms(
        "Attention",
        ((2, 5, 20), (20, 144), (144,)),
        _HEADS | {"qkv_hidden_sizes": [64, 64, 16], "scale": 0.3},
        atol=_ATOL,
    ),
    ms("MultiHeadAttention", (_ROWS, (2, 7, _WIDTH), (2, 7, 12)), _HEADS),
    ms("MultiHeadAttention", (_ROWS, (2, 4, 7, 16), (2, 4, 7, 16)), _HEADS),
    *(
        ms("MultiHeadAttention", (_ROWS, _ROWS, _ROWS, bias, mask, *rest), attrs, outputs=3)
        for attrs in (_HEADS, _HEADS | {"unidirectional": 1, "scale": 0.1})
        for bias, mask, rest in (
            ((192,), None, ()),
            (None, i32(2, 5), ()),
            (None, _bits(2, 8), ((1, 1, 5, 8), _PAST, _PAST)),
        )
    ),
    ms(
        "MultiHeadAttention",
        (_ROWS, _ROWS, _ROWS, (192,), _bits(2, 5), (1, 4, 5, 5)),
        _HEADS | {"mask_filter_value": -50.0},
    ),
]

_TABLE = (32, 8)


def gqa(
    batch: int,
    rows: int,
    past: int = 0,
    cached: int = 0,
    *,
    lengths: tuple[int, ...] = (),
    rest: tuple[Any, ...] = (),
    packed: bool = False,
    known: bool = True,
    **attrs: Any,
) -> Case:
    """`rows` new rows behind `past` ones, in a cache of `cached`; `rest` from the positions on.

    Unless `known`, the number of rows is an input of the run.
    """
    total = past + rows
    last = lengths or (total - 1,) * batch
    key, cache = (batch, rows, 32), (batch, 2, cached, 16) if cached else None
    tables = (_TABLE, _TABLE) if attrs.get("do_rotary") else (None, None)
    parts = ((batch, rows, 128), None, None) if packed else ((batch, rows, _WIDTH), key, key)
    count = np.array(total, np.int32) if known else data(total, np.int32)
    operands = (*parts, cache, cache, i32(*last), count, *tables, *rest)
    names = {"num_heads": 4, "kv_num_heads": 2, **attrs}
    return ms("GroupQueryAttention", operands, names, outputs=3)


_FORMS: list[dict[str, Any]] = [
    {},
    {"do_rotary": 1},
    {"do_rotary": 1, "rotary_interleaved": 1, "scale": 0.2},
    {"local_window_size": 3},
    {"softcap": 2.0},
    {"smooth_softmax": 1},
    {"causal": 0},
]

GROUPED = [
    *(gqa(*sizes, **form) for form in _FORMS for sizes in ((1, 5), (2, 5), (1, 1, 6, 6))),
    *(gqa(1, 3, 6, 6, **form) for form in _FORMS),
    gqa(2, 5, packed=True, do_rotary=1),
    gqa(
        1, 3, 6, 6, rest=(data([[4, 5, 6]]), (1, 4, 3, 9), (4,)), do_rotary=1, softcap=3.0
    ),
]  # fmt: skip

RAGGED = [
    *(gqa(2, 5, lengths=(2, 4), **form) for form in _FORMS),
    *(gqa(1, 3, 6, 16, **form) for form in _FORMS),
    *(gqa(2, 1, 6, 16, **form) for form in _FORMS),
    *(gqa(2, 1, 6, cached, lengths=(3, 6), **form) for form in _FORMS for cached in (6, 16)),
    gqa(2, 1, 6, 16, lengths=(3, 6), rest=(None, (1, 4, 1, 7), (4,)), do_rotary=1),
    *(
        gqa(*sizes, known=False, **form)
        for form in _FORMS
        for sizes in ((1, 5, 0, 16), (1, 1, 6, 16), (1, 3, 6, 9), (2, 5, 0, 16), (2, 1, 6, 7))
    ),
    gqa(2, 5, 0, 16, lengths=(2, 4), known=False, do_rotary=1),
    gqa(2, 1, 6, 16, lengths=(3, 6), rest=(None, (1, 4, 1, 7), (4,)), known=False, do_rotary=1),
]
"""Caches with unused room behind their rows, which no operator may read."""

ROTARY = [
    ms("RotaryEmbedding", (_ROWS, data(_RANDOM.integers(0, 32, (2, 5))), _TABLE, _TABLE)),
    ms("RotaryEmbedding", (_ROWS, i64(3), _TABLE, _TABLE), {"interleaved": 1}),
    ms("RotaryEmbedding", ((2, 4, 5, 16), data([3]), _TABLE, _TABLE)),
    *(
        ms(
            "RotaryEmbedding",
            (_ROWS, data([3]), (32, 2), (32, 2)),
            {"num_heads": 4, "rotary_embedding_dim": 4, "interleaved": interleaved},
        )
        for interleaved in (0, 1)
    ),
]

_WORDS, _SEGMENTS = i32([3, 0, 8], [1, 1, 7]), i32([0, 1, 1], [0, 0, 1])

EMBEDDED = [
    ms(
        "EmbedLayerNormalization",
        (_WORDS, segments, (9, 8), (6, 8), table, (8,), (8,), *rest),
        {"epsilon": 1e-5},
        outputs=outputs,
    )
    for segments, table, rest, outputs in (
        (_SEGMENTS, (2, 8), (), 2),
        (None, None, (i32([1, 1, 0], [1, 0, 0]),), 2),
        (_SEGMENTS, (2, 8), (None, i32([5, 1, 0])), 3),
    )
]

MOVES = [
    ms("TransposeMatMul", ((4, 3), (4, 5)), {"transA": 1, "alpha": 0.5}),
    ms("Trilu", ((3, 4, 5), np.array(-1)), {"upper": 0}),
    ms("GatherND", ((3, 4), data([[0, 1], [2, 2]]))),
    ms("Pad", ((2, 3), i64(0, 1, 0, 2), np.array(0.5, FLOAT))),
    ms("ExpandDims", ((2, 3), np.array(-2, np.int32))),
]


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(erf)(x / sqrt(2)))


def _fast_gelu(x: np.ndarray, w: np.ndarray, bias: Any = 0.0) -> list[np.ndarray]:
    y = x @ w + bias
    return [(y * 0.5 * (1 + np.tanh(sqrt(2 / np.pi) * (y + 0.044715 * y**3)))).astype(FLOAT)]


def _split_gelu(x: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
    left, right = np.split(x + bias, 2, axis=-1)
    return [(left * _gelu(right)).astype(FLOAT)]


def _group_norm(groups: int, *, silu: bool, last: bool, outputs: int = 1) -> Any:
    def numpy(
        x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, skip: Any = 0.0, bias: Any = None
    ) -> list[np.ndarray]:
        channels = gamma.shape[0]
        row = (1, 1, 1, channels) if last else (1, channels, 1, 1)
        if np.ndim(skip) == 2:
            skip = skip.reshape(-1, *row[1:])
        total = x + skip + (0 if bias is None else bias.reshape(row))
        image = np.moveaxis(total, 3, 1) if last else total
        parts = image.reshape(image.shape[0], groups, -1).astype(np.float64)
        mean, spread = parts.mean(2, keepdims=True), parts.var(2, keepdims=True)
        image = ((parts - mean) / np.sqrt(spread + 1e-5)).reshape(image.shape)
        image = image * gamma.reshape(-1, 1, 1) + beta.reshape(-1, 1, 1)
        if silu:
            image = image / (1 + np.exp(-image))
        made = np.moveaxis(image, 1, 3) if last else image
        return [made.astype(FLOAT), total.astype(FLOAT)][:outputs]

    return numpy


def _nhwc_conv(x: np.ndarray, w: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
    """Stride 2, pads of 1, two groups."""
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    rows, half, each = range(0, x.shape[1] - 2, 2), w.shape[0] // 2, w.shape[3]
    out = np.zeros((x.shape[0], len(rows), len(rows), w.shape[0]))
    for i, top in enumerate(rows):
        for j, left in enumerate(rows):
            for f in range(w.shape[0]):
                group = f // half * each
                window = x[:, top : top + 3, left : left + 3, group : group + each]
                out[:, i, j, f] = (window * w[f]).sum((1, 2, 3)) + bias[f]
    return [out.astype(FLOAT)]


_IMAGE = (2, 3, 4, 8)
_CHANNELS = (8,)

IMAGES = [
    ms("GemmFastGelu", ((2, 3, 4), (4, 5), (5,)), numpy=_fast_gelu),
    ms("GemmFastGelu", ((3, 4), (4, 5)), numpy=_fast_gelu),
    ms("BiasSplitGelu", ((2, 3, 10), (10,)), numpy=_split_gelu),
    *(
        ms(
            "GroupNorm",
            (_IMAGE if last else (2, 8, 3, 4), _CHANNELS, _CHANNELS),
            {"groups": 4, "activation": silu, "channels_last": last},
            numpy=_group_norm(4, silu=bool(silu), last=bool(last)),
            atol=1e-5,
        )
        for silu in (0, 1)
        for last in (0, 1)
    ),
    *(
        ms(
            "SkipGroupNorm",
            (_IMAGE, _CHANNELS, _CHANNELS, *rest),
            {"groups": 2, "activation": 1},
            outputs=2,
            numpy=_group_norm(2, silu=True, last=True, outputs=2),
            atol=1e-5,
        )
        for rest in ((_IMAGE,), ((2, 8), (8,)), ((2, 1, 1, 8),))
    ),
    ms(
        "NhwcConv",
        ((2, 6, 6, 4), (6, 3, 3, 2), (6,)),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "group": 2},
        numpy=_nhwc_conv,
        atol=1e-5,
    ),
]

CASES = [*PLAIN, *GROUPED, *ROTARY, *EMBEDDED, *MOVES, *IMAGES]

CONTRADICTIONS = [
    (ms("Attention", ((2, 5, 20), (21, 192)), _HEADS), r"the weights \(input 1\) are \(21, 192\)"),
    (ms("Attention", ((2, 5, 20), _PROJECTED), {"num_heads": 5}), "the query is .* 5 heads"),
    (
        ms("Attention", ((2, 5, 20), _PROJECTED), _HEADS | {"qkv_hidden_sizes": [64, 64]}),
        r"attribute 'qkv_hidden_sizes' is \[64, 64\]",
    ),
    (ms("Attention", ((2, 5, 20), _PROJECTED, None, i32(1, 2, 3)), _HEADS), r"the mask is \(3\)"),
    (
        ms("Attention", ((2, 5, 20), _PROJECTED, None, None, (2, 4, 3, 16)), _HEADS),
        r"past \(input 4\) is \(2, 4, 3, 16\)",
    ),
    (ms("MultiHeadAttention", (_ROWS,), _HEADS), r"packed operands are \(2, 5, 64\)"),
    (ms("MultiHeadAttention", (_ROWS, _ROWS), _HEADS), r"packed operands are \(2, 5, 64\)"),
    (ms("MultiHeadAttention", (_ROWS, _ROWS, _ROWS, (191,)), _HEADS), r"the bias is \(191\)"),
    (
        ms("MultiHeadAttention", (_ROWS, (2, 3, 7, 16), (2, 3, 7, 16)), _HEADS),
        r"the key is \(2, 3, 7, 16\)",
    ),
    (
        ms("MultiHeadAttention", (_ROWS, _ROWS, _ROWS, None, None, None, _PAST), _HEADS),
        "one of them is missing",
    ),
    (
        ms(
            "MultiHeadAttention",
            (_ROWS, _ROWS, _ROWS, None, None, None, (2, 3, 3, 16), _PAST),
            _HEADS,
        ),
        r"past_key is \(2, 3, 3, 16\)",
    ),
    (gqa(1, 5, num_heads=3), "attribute 'num_heads' is 3"),
    (gqa(1, 3, 6, 5), r"total_sequence_length \(input 6\) is 9, more than 3 new and 5 cached rows"),
    (gqa(2, 1, 6), "past_key is missing"),
    (gqa(1, 5, -2), r"total_sequence_length \(input 6\) is 3, less than the 5 new rows"),
    (gqa(2, 1, 6, 6, lengths=(3,)), r"seqlens_k \(input 5\) is \(1\)"),
    (gqa(1, 5, rest=(data([[1, 2]]),), do_rotary=1), r"position_ids \(input 9\) is \(1, 2\)"),
    (gqa(1, 5, rest=(None, None, (3,))), r"head_sink \(input 11\) is \(3\)"),
    (gqa(1, 5, rest=(None, (5, 5))), r"attention_bias \(input 10\) is \(5, 5\)"),
    (
        ms("RotaryEmbedding", (_ROWS, i64(3), (32, 9), (32, 8)), {"num_heads": 4}),
        r"the cosines are \(32, 9\) and the sines \(32, 8\)",
    ),
    (ms("RotaryEmbedding", ((5, _WIDTH), i64(3), _TABLE, _TABLE)), r"the input is \(5, 64\)"),
    (ms("RotaryEmbedding", (_ROWS, i64(3, 4, 5), _TABLE, _TABLE)), "there are 3 first positions"),
    (
        ms("RotaryEmbedding", (_ROWS, data([[1, 2]]), _TABLE, _TABLE)),
        r"position_ids \(input 1\) is \(1, 2\)",
    ),
    (
        ms("EmbedLayerNormalization", (_WORDS, None, (9, 8), (2, 8), None, (8,), (8,))),
        r"position_embedding \(input 3\) has 2 rows, and input_ids \(input 0\) 3 words",
    ),
    (ms("GroupNorm", ((2, 3, 8), (8,), (8,)), {"groups": 2, "activation": 0}), "an image is"),
    (
        ms("GroupNorm", (_IMAGE, (8,), (8,)), {"groups": 2, "activation": 7}),
        "attribute 'activation' is 7",
    ),
    (
        ms("SkipGroupNorm", (_IMAGE, (8,), (8,), (3, 8)), {"groups": 2, "activation": 0}),
        r"skip \(input 3\) is \(3, 8\)",
    ),
    (ms("BiasSplitGelu", ((2, 5), (5,))), r"the input is \(2, 5\)"),
    (ms("ExpandDims", ((2, 3), i64(0, 1))), "not one integer"),
]

UNSUPPORTED = [
    (
        ms("Attention", ((2, 5, 20), _PROJECTED), _HEADS | {"do_rotary": 1}),
        "attribute 'do_rotary' with the value 1",
    ),
    (
        ms("MultiHeadAttention", (_ROWS, (2, 7, 64), (2, 7, 64)), _HEADS | {"unidirectional": 1}),
        "attribute 'unidirectional' with 7 keys for 5 queries",
    ),
    (ms("MultiHeadAttention", (_ROWS,) * 3, _HEADS, outputs=4), "the output 'y3' of scores"),
    (gqa(1, 5, qk_output=1), "attribute 'qk_output' with the value 1"),
    (gqa(1, 5, k_quant_type="PER_TENSOR"), "attribute 'k_quant_type' with the value PER_TENSOR"),
    (gqa(1, 5, rest=(None, None, None, (1,), (1,))), r"k_scale \(input 12\)"),
    (
        ms(
            "GroupQueryAttention",
            ((1, 5, _WIDTH), (1, 5, 32), (1, 5, 32), None, None, i32(4), i32(5)),
            {"num_heads": 4, "kv_num_heads": 2},
        ),
        r"total_sequence_length \(input 6\) depends on a run-time value",
    ),
    (
        ms("RotaryEmbedding", (_ROWS, i64(3), _TABLE, _TABLE), {"scale": 2.0}),
        r"attribute 'scale' is 2\.0, not 1",
    ),
    (ms("RotaryEmbedding", (_ROWS, i64(3), _TABLE, _TABLE), {"is_packed_batching": 1}), "packed"),
]
