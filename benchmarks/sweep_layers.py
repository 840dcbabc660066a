"""Cases of the sweep for operators with weights or windows.

These are matrix products, convolutions, pooling, normalisation, recurrence, attention, losses,
quantised layers, and classifiers of ai.onnx.ml.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.sweep_cases import (
    FLOAT,
    INT8,
    INT32,
    INT64,
    UINT8,
    Given,
    Operand,
    Shape,
    SweepCase,
    text,
    weights,
    whole,
)

PRODUCTS = (
    *((1, 7, 5), (3, 3, 3), (1, 1000, 1000), (1000, 1000, 1), (1000, 3, 1000), (3, 1000, 1000)),
    *((1000, 1000, 3), (1, 64, 10000), (10000, 64, 1), (33, 65, 17), (129, 257, 65), (2, 40000, 3)),
)
"""Sizes (M, K, N) of matrix products."""

TENSORS: tuple[tuple[Shape, int, int], ...] = (
    *(((1, 1, 57, 33), 1, 3), ((1, 3, 65, 65), 8, 3), ((1, 16, 33, 17), 16, 5)),
    *(((3, 7, 13, 11), 5, 3), ((1, 1, 7, 2000), 4, 3), ((1, 64, 7, 7), 64, 1)),
    *(((1, 8, 1000), 8, 3), ((1, 1, 9001), 3, 7), ((1, 3, 9, 17, 17), 4, 3)),
)
"""Convolutions: the shape of the input, the number of filters, and the width of the kernel."""

IMAGES: tuple[Shape, ...] = (
    *((1, 1, 57, 33), (1, 3, 224, 224), (3, 7, 13, 11), (1, 64, 28, 28), (1, 1, 7, 2000)),
    *((1, 2, 9001), (1, 3, 9, 17, 17)),
)


def products() -> Iterator[SweepCase]:
    operands: tuple[Operand, ...]
    for m, k, n in PRODUCTS:
        name = text((m, k, n))
        yield SweepCase("MatMul", f"{name} constant", (Given((m, k)), weights((k, n))))
        yield SweepCase("MatMul", f"{name} of two inputs", (Given((m, k)), Given((k, n))))
        operands = Given((m, k)), weights((n, k)), weights((n,))
        yield SweepCase("Gemm", name, operands, {"transB": 1})
        swapped = Given((k, m)), Given((k, n))
        yield SweepCase("Gemm", f"{name} transposed", swapped, {"transA": 1}, opset=13)
        both = {"transA": 1, "alpha": 0.5}
        yield SweepCase("FusedMatMul", name, swapped, both, domain="com.microsoft")
        bytes_ = Given((m, k), "uint8"), weights((k, n), 30).astype(np.int8)
        yield SweepCase("MatMulInteger", name, bytes_, results=(INT32,))
    for batch, m, k, n in ((3, 7, 5, 9), (12, 64, 32, 64), (200, 3, 3, 3), (64, 1, 64, 65)):
        operands = Given((batch, m, k)), Given((batch, k, n))
        name = text((batch, m, k, n))
        yield SweepCase("MatMul", f"{name} batch", operands)
        yield SweepCase("Einsum", f"{name} bmk,bkn->bmn", operands, {"equation": "bmk,bkn->bmn"})
        other = Given((batch, m, k)), Given((batch, n, k))
        yield SweepCase("Einsum", f"{name} bmk,bnk->mbn", other, {"equation": "bmk,bnk->mbn"})
    for size in (2, 9, 33):
        yield SweepCase("Det", f"10 of {size}", (Given((10, size, size)),))
    for shape in ((1, 64, 1), (7, 100, 1), (3, 33, 1), (1, 4096, 1)):
        yield SweepCase("DFT", text(shape), (Given(shape),), opset=20)


def convolutions() -> Iterator[SweepCase]:
    operands: tuple[Operand, ...]
    for shape, filters, width in TENSORS:
        channels, kernel = shape[1], (width,) * (len(shape) - 2)
        name = f"{text(shape)} {filters} of {width}"
        for label, more in (
            ("", {}),
            (" padded", {"pads": [width // 2] * (2 * len(kernel))}),
            (" strided", {"strides": [2] * len(kernel)}),
            (" dilated", {"dilations": [2] * len(kernel)}),
        ):
            operands = Given(shape), weights((filters, channels, *kernel), 0.2), weights((filters,))
            yield SweepCase("Conv", name + label, operands, more)
            turned = Given(shape), weights((channels, filters, *kernel), 0.2)
            yield SweepCase("ConvTranspose", name + label, turned, more)
        apart = Given(shape), weights((channels, 1, *kernel), 0.2)
        pads = {"group": channels, "pads": [width // 2] * (2 * len(kernel))}
        yield SweepCase("Conv", f"{name} by channel", apart, pads)
    for shape, filters, width in TENSORS[1:4]:
        bytes_ = (
            Given(shape, "uint8"),
            weights((filters, shape[1], width, width), 30).astype("int8"),
        )
        name = f"{text(shape)} {filters} of {width}"
        yield SweepCase("ConvInteger", name, bytes_, results=(INT32,))
        scale, zero = np.array(0.02, np.float32), np.array(3, np.uint8)
        operands = bytes_[0], scale, zero, bytes_[1], scale, np.array(0, np.int8), scale, zero
        yield SweepCase("QLinearConv", name, operands, results=(UINT8,))
    for shape in ((1, 3, 17, 13), (1, 16, 28, 28)):
        offsets = Given((1, 18, shape[2] - 2, shape[3] - 2), "unit")
        operands = Given(shape), weights((4, shape[1], 3, 3), 0.2), offsets
        yield SweepCase("DeformConv", text(shape), operands)
        columns = Given((1, shape[1] * 9, (shape[2] - 2) * (shape[3] - 2)))
        yield SweepCase("Col2Im", text(shape), (columns, whole(*shape[2:]), whole(3, 3)))


def pools() -> Iterator[SweepCase]:
    for shape in IMAGES:
        rank = len(shape) - 2
        for width, label, more in (
            (3, "3", {}),
            (3, "3 padded", {"pads": [1] * (2 * rank)}),
            (3, "3 strided padded", {"pads": [1] * (2 * rank), "strides": [2] * rank}),
            (2, "2 strided", {"strides": [2] * rank}),
            (7, "7 padded", {"pads": [3] * (2 * rank)}),
        ):
            attributes = {"kernel_shape": [width] * rank, **more}
            for operator in ("MaxPool", "AveragePool", "LpPool"):
                yield SweepCase(operator, f"{text(shape)} {label}", (Given(shape),), attributes)
        for operator in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
            yield SweepCase(operator, text(shape), (Given(shape),), opset=18)
        halved = (*shape[:2], *(size // 2 for size in shape[2:]))
        places = np.arange(np.prod(halved)).reshape(halved) * 2
        attributes = {"kernel_shape": [2] * rank, "strides": [2] * rank}
        yield SweepCase("MaxUnpool", text(halved), (Given(halved), places), attributes)


def norms() -> Iterator[SweepCase]:
    for shape in IMAGES:
        channels = shape[1]
        scale, bias = np.abs(weights((channels,))) + 0.5, weights((channels,))
        name, operands = text(shape), (Given(shape), scale, bias)
        yield SweepCase("BatchNormalization", name, (*operands, bias, scale))
        yield SweepCase("InstanceNormalization", name, operands)
        yield SweepCase("MeanVarianceNormalization", name, (Given(shape),), _axes(shape))
        if len(shape) == 4:
            yield SweepCase("LRN", name, (Given(shape),), {"size": 3})
        if channels % 2 == 0:
            yield SweepCase("GroupNormalization", name, operands, {"num_groups": 2})
    for shape in ((7, 5), (40000, 3), (3, 40000), (33, 65, 17), (128, 768)):
        scale, bias = np.abs(weights(shape[-1:])) + 0.5, weights(shape[-1:])
        name, domain = text(shape), "com.microsoft"
        yield SweepCase("LayerNormalization", name, (Given(shape), scale, bias))
        yield SweepCase("RMSNormalization", name, (Given(shape), scale), opset=23)
        yield SweepCase("SimplifiedLayerNormalization", name, (Given(shape), scale), opset=13)
        rows = (1, *shape[-2:])
        both = (Given(rows), Given(rows), scale)
        yield SweepCase("SkipLayerNormalization", name, (*both, bias), domain=domain)
        yield SweepCase("SkipSimplifiedLayerNormalization", name, both, domain=domain)
        for operator in ("BiasGelu", "FastGelu"):
            yield SweepCase(operator, f"{name} with bias", (Given(shape), bias), domain=domain)


def _axes(shape: Shape) -> dict[str, Any]:
    return {"axes": [0, *range(2, len(shape))]}


def recurrence() -> Iterator[SweepCase]:
    for steps, batch, inputs, hidden in ((1, 1, 7, 5), (30, 1, 16, 33), (12, 7, 64, 64)):
        for operator, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
            for way, count in (("forward", 1), ("bidirectional", 2)):
                operands = (
                    Given((steps, batch, inputs)),
                    weights((count, gates * hidden, inputs), 0.2),
                    weights((count, gates * hidden, hidden), 0.2),
                    weights((count, 2 * gates * hidden), 0.1),
                )
                name = f"{text((steps, batch, inputs, hidden))} {way}"
                attributes = {"hidden_size": hidden, "direction": way}
                yield SweepCase(operator, name, operands, attributes)


def attention() -> Iterator[SweepCase]:
    for batch, heads, rows, keys, width in (
        (1, 1, 7, 5, 3),
        (1, 8, 65, 65, 32),
        (3, 4, 1, 300, 64),
    ):
        name = text((batch, heads, rows, keys, width))
        query, key = Given((batch, heads, rows, width)), Given((batch, heads, keys, width))
        yield SweepCase("Attention", name, (query, key, key), opset=23)
        mask = Given((batch, 1, rows, keys))
        yield SweepCase("Attention", f"{name} masked", (query, key, key, mask), opset=23)
        flat = Given((batch, rows, heads * width)), Given((batch, keys, heads * width))
        operands, attributes = (flat[0], flat[1], flat[1]), {"num_heads": heads}
        yield SweepCase("MultiHeadAttention", name, operands, attributes, domain="com.microsoft")
        even = Given((batch, heads, rows, 32))
        angles = Given((rows, 16)), Given((rows, 16)), Given((batch, rows), f"below {rows}")
        yield SweepCase("RotaryEmbedding", name, (even, *angles), opset=23)


def quantised() -> Iterator[SweepCase]:
    operands: tuple[Operand, ...]
    scale, zero = np.array(0.05, np.float32), np.array(7, np.uint8)
    for shape in ((7,), (3, 5, 7, 11), (1, 1, 257, 129), (300001,), (40000, 3), (3, 40000)):
        name = text(shape)
        number, byte = Given(shape), Given(shape, "uint8")
        yield SweepCase("QuantizeLinear", name, (number, scale, zero), {}, (UINT8,))
        yield SweepCase("DequantizeLinear", name, (byte, scale, zero))
        yield SweepCase("DynamicQuantizeLinear", name, (number,), {}, (UINT8, FLOAT, UINT8))
        domain, two = "com.microsoft", (byte, scale, zero)
        for operator in ("QLinearAdd", "QLinearMul"):
            yield SweepCase(operator, name, (*two, *two, scale, zero), {}, (UINT8,), domain)
        for operator in ("QLinearSigmoid", "QLinearLeakyRelu"):
            yield SweepCase(operator, name, (*two, scale, zero), {}, (UINT8,), domain)
        if len(shape) == 2:
            for axis in (0, 1):
                each = np.full(shape[axis], 0.05, np.float32), np.zeros(shape[axis], np.int8)
                label, axes = f"{name} axis {axis}", {"axis": axis}
                yield SweepCase("QuantizeLinear", label, (number, *each), axes, (INT8,))
                operands = Given(shape, "int8"), *each
                yield SweepCase("DequantizeLinear", label, operands, axes)
    for m, k, n in PRODUCTS:
        byte = Given((m, k), "uint8")
        table = weights((k, n), 30).astype(np.int8)
        signed = np.array(0, np.int8)
        operands = byte, scale, zero, table, scale, signed, np.array(9, np.float32), zero
        yield SweepCase("QLinearMatMul", text((m, k, n)), operands, results=(UINT8,))
    for m, k, n in ((1, 64, 65), (7, 256, 33), (1, 1024, 1024), (129, 128, 64)):
        random = np.random.default_rng(0)
        packed = random.integers(0, 256, (n, k // 32, 16), np.uint8)
        scales = np.full((n * k // 32,), 0.1, np.float32)
        attributes = {"K": k, "N": n, "bits": 4, "block_size": 32}
        operands = Given((m, k)), packed, scales
        name = text((m, k, n))
        yield SweepCase("MatMulNBits", name, operands, attributes, domain="com.microsoft")


def classifiers() -> Iterator[SweepCase]:
    domain = "ai.onnx.ml"
    for rows in (1, 4, 16, 1000):
        for features, trees, depth in ((10, 1, 3), (30, 100, 6), (30, 300, 9)):
            name = f"{rows} of {features}, {trees} trees of {depth}"
            operands = (Given((rows, features)),)
            for label, uneven in (("", False), (", uneven", True)):
                forest = partial(tree_ensemble, features, trees, depth, "target", uneven=uneven)
                yield SweepCase(
                    "TreeEnsembleRegressor", name + label, operands, forest, domain=domain
                )
            votes = partial(tree_ensemble, features, trees, depth, "class")
            both = (INT64, FLOAT)
            yield SweepCase("TreeEnsembleClassifier", name, operands, votes, both, domain)
        for features, classes in ((7, 3), (300, 10)):
            name, label = f"{rows} of {features}", f"{rows} of {features} to {classes}"
            operands = (Given((rows, features)),)
            line = {
                "coefficients": weights((classes * features,)).tolist(),
                "intercepts": weights((classes,)).tolist(),
            }
            targets = {**line, "targets": classes}
            yield SweepCase("LinearRegressor", label, operands, targets, domain=domain)
            labels = {**line, "classlabels_ints": list(range(classes)), "post_transform": "SOFTMAX"}
            yield SweepCase("LinearClassifier", label, operands, labels, (INT64, FLOAT), domain)
            support: dict[str, Any] = {
                "kernel_type": "RBF",
                "kernel_params": [0.1, 0.0, 3.0],
                "coefficients": weights((50,)).tolist(),
                "support_vectors": weights((50 * features,)).tolist(),
                "rho": [0.3],
                "n_supports": 50,
            }
            yield SweepCase("SVMRegressor", name, operands, support, domain=domain)
            each = weights((features,)).tolist()
            scaling = {"offset": each, "scale": each}
            label_ids = np.arange(features) % 3
            yield SweepCase("ArrayFeatureExtractor", name, (*operands, label_ids), domain=domain)
            ids = Given((rows, features), "below 9")
            mapping = {"keys_int64s": list(range(9)), "values_floats": list(map(float, range(9)))}
            yield SweepCase("LabelEncoder", name, (ids,), mapping, domain=domain)
            hot = {"cats_int64s": list(range(9)), "zeros": 1}
            yield SweepCase("OneHotEncoder", name, (ids,), hot, domain=domain)
            two = {
                **support,
                "coefficients": weights((50,)).tolist(),
                "vectors_per_class": [25, 25],
                "classlabels_ints": [0, 1],
            }
            del two["n_supports"]
            yield SweepCase("SVMClassifier", name, operands, two, (INT64, FLOAT), domain)
            yield SweepCase("Scaler", name, operands, scaling, domain=domain)
            yield SweepCase("Normalizer", name, operands, {"norm": "L2"}, domain=domain)
            yield SweepCase("Binarizer", name, operands, {"threshold": 0.1}, domain=domain)
            missing = {"imputed_value_floats": each, "replaced_value_float": float("nan")}
            yield SweepCase("Imputer", name, operands, missing, domain=domain)


MICROSOFT = "com.microsoft"


def projected() -> Iterator[SweepCase]:
    """Cases of com.microsoft's attention operators with projections, cache and embedding."""
    operands: tuple[Operand, ...]
    for batch, rows, heads, width in ((1, 7, 1, 8), (1, 65, 8, 32), (3, 128, 4, 64)):
        size = heads * width
        name, attributes = text((batch, rows, heads, width)), {"num_heads": heads}
        shape = (batch, rows, size)
        table, bias = weights((size, 3 * size), size**-0.5), weights((3 * size,), 0.1)
        operands = Given(shape), table, bias
        yield SweepCase("Attention", f"{name} projected", operands, attributes, domain=MICROSOFT)
        bytes_ = Given(shape, "uint8"), (table * 300).astype(np.int8), bias
        scales = np.array(0.01, np.float32), np.array(0.004, np.float32)
        zero = np.array(128, np.uint8), np.array(0, np.int8)
        yield SweepCase(
            "QAttention", name, (*bytes_, *scales, None, *zero), attributes, domain=MICROSOFT
        )
        lengths = np.full((batch,), rows - 1, np.int32), np.array(rows, np.int32)
        empty = np.zeros((batch, heads, 0, width), np.float32)
        grouped = (*(Given(shape),) * 3, empty, empty, *lengths)
        more = {"num_heads": heads, "kv_num_heads": heads}
        yield SweepCase("GroupQueryAttention", name, grouped, more, (FLOAT,) * 3, MICROSOFT)
        embedded = (
            *(Given((batch, rows), "words"), None, weights((200, size)), weights((rows, size))),
            *(None, np.ones(size, np.float32), np.zeros(size, np.float32)),
        )
        yield SweepCase("EmbedLayerNormalization", name, embedded, {}, (FLOAT, INT32), MICROSOFT)


def contributed() -> Iterator[SweepCase]:
    """Cases of com.microsoft's matrix products and image operators."""
    operands: tuple[Operand, ...]
    for m, k, n in PRODUCTS:
        name = text((m, k, n))
        bytes_, table = Given((m, k), "uint8"), weights((k, n), 30).astype(np.int8)
        scale, zero = np.array(0.02, np.float32), np.array(3, np.uint8)
        each = np.full((n,), 0.02, np.float32)
        operands = bytes_, table, scale, each, zero
        yield SweepCase("MatMulIntegerToFloat", name, operands, domain=MICROSOFT)
        operands = Given((m, k)), table, each
        yield SweepCase("DynamicQuantizeMatMul", name, operands, domain=MICROSOFT)
        relu = {"activation": "Relu"}
        operands = Given((m, k)), weights((k, n)), weights((n,))
        yield SweepCase("FusedGemm", name, operands, relu, domain=MICROSOFT)
        operands = bytes_, scale, zero, table, scale, np.array(0, np.int8), None
        result = np.array(9, np.float32), zero
        yield SweepCase("QGemm", name, (*operands, *result), {}, (UINT8,), MICROSOFT)
        yield SweepCase("CDist", name, (Given((m, k)), Given((n, k))), domain=MICROSOFT)
    for size in (3, 33):
        yield SweepCase("Inverse", str(size), (Given((10, size, size)),), domain=MICROSOFT)
    yield from _quantised_images()


def _quantised_images() -> Iterator[SweepCase]:
    operands: tuple[Operand, ...]
    for shape in IMAGES[:4]:
        name, scale, zero = text(shape), np.array(0.02, np.float32), np.array(3, np.uint8)
        kernel = weights((5, shape[1], 3, 3), 0.2), weights((5,))
        relu: dict[str, Any] = {"activation": "Relu", "pads": [1, 1, 1, 1]}
        yield SweepCase("FusedConv", name, (Given(shape), *kernel), relu, domain=MICROSOFT)
        operands = Given(shape, "uint8"), scale, zero, scale, zero
        window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        yield SweepCase("QLinearAveragePool", name, operands, window, (UINT8,), MICROSOFT)
        yield SweepCase("QLinearGlobalAveragePool", name, operands, {}, (UINT8,), MICROSOFT)
        softmax = {"axis": -1, "opset": 13}
        byte = np.array(1 / 256, np.float32), np.array(0, np.uint8)
        yield SweepCase(
            "QLinearSoftmax",
            name,
            (Given(shape, "uint8"), scale, zero, *byte),
            softmax,
            (UINT8,),
            MICROSOFT,
        )
        joined = scale, zero, operands[0], scale, zero, operands[0], byte[0], zero
        yield SweepCase("QLinearConcat", name, joined, {"axis": 1}, (UINT8,), MICROSOFT)
        chosen = Given(shape, "bool"), *operands[:3], operands[0], byte[0], zero, scale, zero
        yield SweepCase("QLinearWhere", name, chosen, {}, (UINT8,), MICROSOFT)


def losses() -> Iterator[SweepCase]:
    """Cases of losses, signal processing (STFT) and text (TfIdfVectorizer)."""
    operands: tuple[Operand, ...]
    for rows, classes in ((7, 5), (40000, 3), (3, 40000)):
        name, labels = text((rows, classes)), Given((rows,), f"below {classes}")
        scores = Given((rows, classes))
        yield SweepCase("SoftmaxCrossEntropyLoss", name, (scores, labels))
        yield SweepCase("NegativeLogLikelihoodLoss", name, (scores, labels))
    for length, frame in ((1000, 100), (9001, 256)):
        window = np.hanning(frame).astype(np.float32)
        operands = Given((1, length, 1)), np.array(frame // 2), window, np.array(frame)
        yield SweepCase("STFT", f"{length} by {frame}", operands)
    for rows, words in ((1, 100), (64, 33)):
        attributes = {
            "mode": "TF",
            "min_gram_length": 1,
            "max_gram_length": 2,
            "max_skip_count": 0,
            "pool_int64s": [*range(50), 2, 3, 5, 7],
            "ngram_counts": [0, 50],
            "ngram_indexes": list(range(52)),
        }
        operands = (Given((rows, words), "below 60"),)
        yield SweepCase("TfIdfVectorizer", text((rows, words)), operands, attributes)


def tree_ensemble(
    features: int, trees: int, depth: int, kind: str, *, uneven: bool = False
) -> dict[str, Any]:
    """Attributes of a TreeEnsemble operator with random trees over normally distributed features.

    `kind` is "target" for one regression target, or "class" for three classes. The trees are full;
    if `uneven`, each inner node has a leaf and an inner child.
    """
    random = np.random.default_rng(0)
    inner = depth if uneven else 2**depth - 1
    nodes = 2 * inner + 1
    numbers = np.arange(nodes)
    yes, no = (numbers + depth, numbers + 1) if uneven else (2 * numbers + 1, 2 * numbers + 2)
    if uneven:
        no[depth - 1] = nodes - 1
    leaves = numbers[inner:]
    branch = numbers < inner

    def tiled(values: NDArray[Any], count: int = trees) -> list[Any]:
        return list(np.tile(values, count).tolist())

    ids = np.repeat(np.arange(trees), nodes)
    found: dict[str, Any] = {
        "nodes_treeids": ids.tolist(),
        "nodes_nodeids": tiled(numbers),
        "nodes_featureids": random.integers(0, features, trees * nodes).tolist(),
        "nodes_values": random.standard_normal(trees * nodes).astype(np.float32).tolist(),
        "nodes_modes": tiled(np.where(branch, "BRANCH_LEQ", "LEAF")),
        "nodes_truenodeids": tiled(np.where(branch, yes, 0)),
        "nodes_falsenodeids": tiled(np.where(branch, no, 0)),
        "nodes_hitrates": [1.0] * (trees * nodes),
        "nodes_missing_value_tracks_true": [0] * (trees * nodes),
    }
    votes = 1 if kind == "target" else 3
    count = votes * trees * len(leaves)
    found |= {
        f"{kind}_treeids": np.repeat(np.arange(trees), votes * len(leaves)).tolist(),
        f"{kind}_nodeids": tiled(np.repeat(leaves, votes)),
        f"{kind}_weights": random.random(count).astype("float32").tolist(),
        f"{kind}_ids": tiled(np.arange(votes), trees * len(leaves)),
    }
    return found | ({"n_targets": 1} if votes == 1 else {"classlabels_int64s": [0, 1, 2]})


def cases() -> list[SweepCase]:
    """All cases of this module."""
    families = (
        *(products, convolutions, pools, norms, recurrence, attention, quantised, classifiers),
        *(projected, contributed, losses),
    )
    return [case for family in families for case in family()]
