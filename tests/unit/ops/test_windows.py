"""References of pools and convolutions: right for any window, in memory that follows the data."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, ClassVar

import numpy as np
import pytest
from onnx import TensorProto, helper

from tilewright.compiler import ops
from tilewright.compiler.driver import load_graph
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.ops.convolution import _tap_by_tap
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.ops.shapes import Shape, Window, pad

ROOM = 1 << 18
"""Bytes that a reference may need in addition to its arrays."""


def drawn(seed: int, negative: int = 0) -> Iterator[tuple[Shape, Shape, Attrs, Window]]:
    """(extents, kernel, attributes, window) of windows that fit, in one to three dimensions."""
    rng = np.random.default_rng(seed)
    found = 0
    while found < 100:
        rank = int(rng.integers(1, 4))

        def numbers(low: int, high: int, count: int = rank) -> Shape:
            return tuple(map(int, rng.integers(low, high, count)))

        kernel, spatial = numbers(1, 10), numbers(1, 9)
        attrs: Attrs = (
            ("strides", numbers(1, 4)),
            ("dilations", numbers(1, 4)),
            ("pads", numbers(-negative, 10, 2 * rank)),
        )
        window = Window.of(attrs, kernel)
        try:
            window.output(spatial)
        except InvalidModelError:
            continue
        found += 1
        yield spatial, kernel, attrs, window


def taps(x: np.ndarray, window: Window, fill: float) -> list[np.ndarray]:
    """For each tap, the element that it reads for every output."""
    padded, outputs = pad(x, window.pads(), fill), window.output(x.shape[2:])
    return [padded[window.read(tap, outputs)] for tap in product(*map(range, window.kernel))]


def run(op: str, arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    return np.asarray(ops.get(op).reference(arrays, attrs))


def test_pools_are_right_for_any_window() -> None:
    rng = np.random.default_rng(2)
    for spatial, kernel, attrs, window in drawn(3):
        x = rng.standard_normal((2, 3, *spatial))
        attrs = (*attrs, ("kernel", kernel))
        assert np.array_equal(run("max_pool", [x], attrs), np.max(taps(x, window, -np.inf), 0))
        total = np.sum(taps(x, window, 0.0), 0)
        inside = np.maximum(np.sum(taps(np.ones_like(x), window, 0.0), 0), 1)
        factor = rng.standard_normal(total.shape[1:])
        whole = (*attrs, ("count_include_pad", 1))
        for found, expected in (
            (run("average_pool", [x], whole), total / prod(kernel)),
            (run("average_pool", [x, factor], attrs), total * factor),
            (run("average_pool", [x], attrs), total / inside),
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_convolutions_are_right_for_any_window() -> None:
    """Convolutions of few channels unfold their windows, if these are not larger than the data."""
    rng = np.random.default_rng(2)
    for group, channels in ((1, 1), (1, 3), (2, 1), (2, 17)):
        for spatial, kernel, attrs, window in drawn(channels, negative=1):
            x = rng.standard_normal((2, group * channels, *spatial))
            w = rng.standard_normal((group * 3, channels, *kernel))
            bias = rng.standard_normal(group * 3)
            places = np.array(taps(x, window, 0.0))
            split = places.reshape(len(places), 2, group, channels, -1)
            factors = w.reshape(group, 3, channels, -1)
            sums = np.einsum("tngcp,gfct->ngfp", split, factors)
            expected = sums.reshape(2, group * 3, *places.shape[3:])
            expected += bias.reshape(-1, *(1,) * len(spatial))
            found = run("conv", [x, w, bias], (*attrs, ("group", group)))
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("key", ["strides", "dilations", "pads"])
def test_a_window_of_another_rank_than_its_kernel_is_an_invalid_model(key: str) -> None:
    for numbers in ((1,), (1,) * 3):
        with pytest.raises(InvalidModelError, match="do not fit a kernel of 2 dimensions"):
            Window.of(((key, numbers),), (3, 3))


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "LpPool"])
def test_a_window_of_1280_in_an_image_of_7(op: str) -> None:
    """EfficientNet's last pool, as transformers exports it: the window has the channels' extent."""
    shape = (1, 320, 7, 7)
    attrs = {"kernel_shape": [1280, 1280], "strides": [1280, 1280], "ceil_mode": 1}
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attrs)],
        "pool",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (*shape[:2], 1, 1))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    x = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    expected = {
        "AveragePool": x.mean((2, 3), np.float64),
        "MaxPool": x.max((2, 3)),
        "LpPool": np.sqrt(np.square(x, dtype=np.float64).sum((2, 3))),
    }
    tracemalloc.start()
    (found,) = run_graph(load_graph(model), {"x": x})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(found[..., 0, 0], expected[op], rtol=1e-5, atol=1e-6)
    assert peak <= 4 * (x.nbytes + found.nbytes) + 4 * ROOM


def shares(spatial: Shape, kernel: Shape, pads: Shape) -> np.ndarray:
    """Factors in place of counts, as LpPool has them."""
    return np.ones((1, 1, *Window.of((("pads", pads),), kernel).output(spatial)), np.float32)


WINDOWS: dict[str, tuple[Shape, Shape, Shape]] = {
    "a global pool of 1280": ((1, 320, 7, 7), (1280, 1280), (636, 636, 637, 637)),
    "a huge window at every place": ((1, 8, 40, 40), (501, 501), (250,) * 4),
    "three dimensions": ((1, 2, 40, 40, 40), (41, 41, 41), (20,) * 6),
    "one long dimension": ((1, 2, 6000), (5999,), (2999,) * 2),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("op", ["max_pool", "average_pool", "counted", "average_of_all", "conv"])
def test_memory_follows_the_data_and_not_the_window(name: str, op: str) -> None:
    shape, kernel, pads = WINDOWS[name]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    attrs: Attrs = (("kernel", kernel), ("pads", pads))
    arrays = [x]
    if op == "counted":
        op, arrays = "average_pool", [x, shares(shape[2:], kernel, pads)]
    elif op == "average_of_all":
        op, attrs = "average_pool", (*attrs, ("count_include_pad", 1))
    elif op == "conv":
        arrays = [x[:, :2], np.ones((2, 2, *(min(k, 15) for k in kernel)), np.float32)]
        attrs = (("pads", tuple(min(p, 7) for p in pads)),)
    tracemalloc.start()
    result = run(op, arrays, attrs)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 4 * (sum(array.nbytes for array in arrays) + result.nbytes) + ROOM


class _Watched(np.ndarray):
    """Images that remember how the factors of their products lie."""

    factors: ClassVar[list[bool]] = []

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        plain = [np.asarray(each) for each in inputs]
        if ufunc is np.matmul:
            self.factors.append(plain[0].flags.c_contiguous)
        return getattr(ufunc, method)(*plain, **more)


def test_a_convolution_of_many_small_images_reads_its_weights_once() -> None:
    """Products of weights that do not lie together copy them for each image: they took 30 times as
    long for 32 images as for one."""
    x = np.ones((4, 8, 3, 3)).view(_Watched)
    _Watched.factors.clear()
    w, window = np.ones((8, 8, 3, 3)), Window.of((("pads", (1, 1, 1, 1)),), (3, 3))
    _tap_by_tap(x, w, window, 1, np.zeros((4, 8, 3, 3)))
    assert len(_Watched.factors) == 9 and all(_Watched.factors)
