"""Generators of nodes that only `test_readers.py` uses, as readers of a value in any layout.

Other tests compare their results. Here, it matters that the compiler gives them the value.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, helper

from tests.differential.graphs import (
    BOOL,
    FLOAT,
    INT,
    MICROSOFT,
    Generator,
    Grower,
    Value,
)

BYTE = np.dtype(np.uint8)


def _any(g: Grower, rank: int | None = None, least: int = 0) -> Value:
    return g.some(rank=rank, least=least)


def _plain(operator: str, g: Grower, *, rank: int | None = None, **attributes: Any) -> None:
    g.add(operator, [_any(g, rank)], **attributes)


def _axis(operator: str, g: Grower) -> None:
    value = _any(g, least=1)
    g.add(operator, [value], axis=g.integer(0, value.rank - 1))


def _unique(g: Grower) -> None:
    value = _any(g, least=1)
    axis = {"axis": g.integer(0, value.rank - 1)} if g.flag() else {}
    g.add("Unique", [value], outputs=g.integer(1, 4), **axis)


def _compress(g: Grower) -> None:
    value = _any(g, least=1)
    axis = g.integer(0, value.rank - 1)
    kept = g.input((value.shape[axis],), BOOL)
    g.add("Compress", [value, kept], axis=axis)


def _quantised(g: Grower) -> None:
    scale, zero = g.constant(0.125), g.constant(3, BYTE)
    match g.pick(["QuantizeLinear", "DynamicQuantizeLinear", "both"]):
        case "QuantizeLinear":
            g.add("QuantizeLinear", [_any(g), scale, zero])
        case "DynamicQuantizeLinear":
            g.add("DynamicQuantizeLinear", [_any(g)], outputs=3)
        case _:
            stored = g.add("QuantizeLinear", [_any(g), scale, zero], keep=False)
            g.add("DequantizeLinear", [stored, scale, zero])


def _grid_sample(g: Grower) -> None:
    value = _any(g, rank=4)
    grid = g.weight(value.shape[0], 3, 2, 2)
    mode = g.pick(["linear", "nearest", "cubic"])
    g.add("GridSample", [value, g.shrunk(grid)], mode=mode, align_corners=g.integer(0, 1))


def _roi_align(g: Grower) -> None:
    value = _any(g, rank=4)
    boxes = g.constant([[0, 0, 2, 3], [1, 0, 3, 3]])
    batches = g.constant([0, value.shape[0] - 1], INT)
    g.add("RoiAlign", [value, boxes, batches], output_height=2, output_width=3, sampling_ratio=2)


def _deform_conv(g: Grower) -> None:
    value = _any(g, rank=4)
    batch, channels, height, width = value.shape
    offsets = g.shrunk(g.input((batch, 2, height, width)))
    g.add("DeformConv", [value, g.weight(8, channels, 1, 1), offsets])


def _reverse(g: Grower) -> None:
    value = _any(g, least=2)
    lengths = g.constant([value.shape[0]] * value.shape[1], INT)
    g.add("ReverseSequence", [value, lengths], batch_axis=1, time_axis=0)


def _crop(g: Grower) -> None:
    value = _any(g, least=2)
    sizes = g.constant([g.integer(1, extent + 2) for extent in value.shape], INT)
    g.add("CenterCropPad", [value, sizes])


def _attention(g: Grower) -> None:
    value = _any(g, rank=4)
    g.add("Attention", [value, value, value])


def _recurrent(operator: str, g: Grower) -> None:
    value = _any(g, rank=3)
    gates, hidden = {"RNN": 1, "GRU": 3, "LSTM": 4}[operator], g.pick([1, 4, 8])
    weights = [g.weight(1, gates * hidden, size) for size in (value.shape[-1], hidden)]
    g.add(operator, [value, *map(g.shrunk, weights)], outputs=2, hidden_size=hidden)


def _fourier(g: Grower) -> None:
    value = _any(g, least=2)
    columns = g.constant(range(value.rank, value.rank + 1), INT)
    complexes = g.add("Unsqueeze", [value, columns], keep=False)
    axis = g.constant(g.integer(0, value.rank - 1), INT)
    g.add("DFT", [complexes, None, axis], onesided=g.integer(0, 1))


def _loss(g: Grower) -> None:
    value = _any(g, least=2)
    classes = g.input((value.shape[0], *value.shape[2:]), INT)
    g.inputs[classes.name][...] %= value.shape[1]
    g.add("SoftmaxCrossEntropyLoss", [value, classes])


def _suppression(g: Grower) -> None:
    value = _any(g, rank=3)
    boxes = g.input((value.shape[0], value.shape[2], 4))
    g.add("NonMaxSuppression", [boxes, value, g.constant([3], INT), g.constant([0.5])])


def _sequence(g: Grower) -> None:
    value = _any(g, least=1)
    axis, number = g.integer(0, value.rank - 1), len(g.nodes)
    made = helper.make_node("SplitToSequence", [value.name], [f"list_{number}"], axis=axis)
    name = f"joined_{number}"
    whole = helper.make_node("ConcatFromSequence", [f"list_{number}"], [name], axis=axis)
    g.append([made, whole], [value], [name])


def _operators(g: Grower) -> tuple[str, str]:
    """Two for the bodies of nodes."""
    names = ("Relu", "Neg", "Tanh", "GlobalAveragePool")
    return g.pick(names[:3]), g.pick(names)


def _body(nodes: list[Any], outputs: list[str], inputs: list[Any]) -> GraphProto:
    infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
    return helper.make_graph(nodes, "body", inputs, infos)


def _if(g: Grower) -> None:
    value, condition = _any(g), g.input((), BOOL)
    branches = []
    for operator in _operators(g):
        name = f"branch_{len(g.nodes)}_{len(branches)}"
        branches.append(_body([helper.make_node(operator, [value.name], [name])], [name], []))
    then, otherwise = branches
    g.add("If", [condition], captured=[value], then_branch=then, else_branch=otherwise)


def _loop(g: Grower) -> None:
    """The value is a state, and is also read from around the loop."""
    value, (first, second) = _any(g), _operators(g)
    number = len(g.nodes)
    nodes = [
        helper.make_node("Identity", ["going"], ["still"]),
        helper.make_node(first, [value.name], [f"outer_{number}"]),
        helper.make_node("Sub", [f"outer_{number}", "state"], ["next"]),
        helper.make_node(second, ["next"], ["row"]),
    ]
    kinds = {"step": (TensorProto.INT64, ()), "going": (TensorProto.BOOL, ())}
    kinds["state"] = (TensorProto.FLOAT, value.shape)
    inputs = [helper.make_tensor_value_info(n, *kind) for n, kind in kinds.items()]
    body = _body(nodes, ["still", "next", "row"], inputs)
    trips = g.constant(0, INT) if g.flag() else g.input((), INT)
    trips.array[...] = g.integer(1, 3)
    going = g.constant(True, BOOL)
    g.add("Loop", [trips, going, value], outputs=2, captured=[value], body=body)


def _scan(g: Grower) -> None:
    value, (first, _) = _any(g, least=2), _operators(g)
    inputs = [helper.make_tensor_value_info("row", TensorProto.FLOAT, value.shape[1:])]
    body = _body([helper.make_node(first, ["row"], ["made"])], ["made"], inputs)
    g.add("Scan", [value], num_scan_inputs=1, body=body)


def _like(g: Grower) -> None:
    like = g.constant(np.zeros(1), g.pick([INT, BOOL, FLOAT]))
    g.add("CastLike", [g.some(exact=True), like])


def _pad_from_the_run(g: Grower) -> None:
    """How much is added is known when the model runs, and cuts it there."""
    value = _any(g, least=1)
    pads = g.input((2 * value.rank,), INT)
    g.inputs[pads.name][...] = np.abs(pads.array) % 2
    g.add("Pad", [value, pads])


def _microsoft(operator: str, g: Grower, rank: int | None = None, **attributes: Any) -> None:
    g.add(operator, [_any(g, rank, least=1)], domain=MICROSOFT, **attributes)


def _skip_norm(g: Grower) -> None:
    value = _any(g, rank=3)
    operands = [value, g.weight(*value.shape), g.weight(value.shape[-1])]
    g.add("SkipLayerNormalization", operands, domain=MICROSOFT, epsilon=0.5)


def _fused_conv(g: Grower) -> None:
    value = _any(g, rank=4)
    operands = [value, g.weight(8, value.shape[1], 1, 1), g.weight(8)]
    g.add("FusedConv", operands, domain=MICROSOFT, activation="Relu")


def _fused_product(g: Grower) -> None:
    value = _any(g, least=2)
    second = g.weight(*value.shape[:-2], 3, value.shape[-1])
    g.add("FusedMatMul", [value, second], domain=MICROSOFT, alpha=0.5, transB=1)


READERS: dict[str, Generator] = {
    "Det": partial(_plain, "Det"),
    "NonZero": partial(_plain, "NonZero"),
    "Swish": partial(_plain, "Swish"),
    "LRN": partial(_plain, "LRN", size=3),
    "LpPool": partial(_plain, "LpPool", rank=4, kernel_shape=[2, 2]),
    "MaxPool with indices": partial(
        _plain, "MaxPool", rank=4, kernel_shape=[2, 2], pads=[0, 0, 1, 1], outputs=2
    ),
    "RandomNormalLike": partial(_plain, "RandomNormalLike"),
    "Hardmax": partial(_axis, "Hardmax"),
    "LpNormalization": partial(_axis, "LpNormalization"),
    "Unique": _unique, "Compress": _compress, "quantised": _quantised,
    "GridSample": _grid_sample, "RoiAlign": _roi_align, "DeformConv": _deform_conv,
    "ReverseSequence": _reverse, "CenterCropPad": _crop, "Attention": _attention, "DFT": _fourier,
    "NonMaxSuppression": _suppression, "SoftmaxCrossEntropyLoss": _loss, "CastLike": _like,
    "SplitToSequence": _sequence, "If": _if, "Loop": _loop, "Scan": _scan,
    "Pad by values of the run": _pad_from_the_run,
    **{name: partial(_recurrent, name) for name in ("RNN", "GRU", "LSTM")},
    **{name: partial(_microsoft, name) for name in ("Gelu", "QuickGelu", "Inverse")},
    "SkipLayerNormalization": _skip_norm, "FusedConv": _fused_conv,
    "FusedMatMul": _fused_product,
}  # fmt: skip

JUMPS = frozenset(
    (
        *("Det", "Hardmax", "Inverse", "NonMaxSuppression", "NonZero", "Unique", "quantised"),
        *("LRN", "Loop", "RandomNormalLike", "RoiAlign", "GridSample"),
    )
)
"""Of these, a result jumps, or the reference is another."""
