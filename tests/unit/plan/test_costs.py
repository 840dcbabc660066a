"""Counting: MACs, operations, traffic, and the summary of a model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graphs import Maker
from tilewright.compiler.dtypes import DType
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.ir import AttrValue
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.passes.pipeline import optimise
from tilewright.compiler.plan.costs import (
    bytes_read,
    bytes_written,
    cost,
    flops,
    macs,
    padding_macs,
    plan_summary,
)
from tilewright.compiler.plan.partition import plan_graph
from tilewright.compiler.plan.workload import make_workload

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def vgg16_features(height: int, width: int) -> onnx.ModelProto:
    """The convolutions and pools of VGG-16; 0 stands for a pool."""
    nodes, weights, value, channels = [], [], "input", 3
    for layer, filters in enumerate(VGG16):
        output = f"v{layer}"
        if filters == 0:
            pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
            nodes.append(helper.make_node("MaxPool", [value], [output], **pool))
        else:
            array = np.full((filters, channels, 3, 3), layer, np.float32)
            weights.append(onnx.numpy_helper.from_array(array, f"w{layer}"))
            bias = onnx.numpy_helper.from_array(np.full(filters, layer, np.float32), f"b{layer}")
            weights.append(bias)
            operands = [value, f"w{layer}", f"b{layer}"]
            nodes.append(helper.make_node("Conv", operands, [f"c{layer}"], pads=[1, 1, 1, 1]))
            nodes.append(helper.make_node("Relu", [f"c{layer}"], [output]))
            channels = filters
        value = output
    shape = [1, 3, height, width]
    source = helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)
    result = helper.make_tensor_value_info(value, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "vgg16_features", [source], [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def test_vgg16_features() -> None:
    graph = import_model(vgg16_features(126, 224))
    summary = plan_summary(plan_graph(optimise(graph), 16))
    assert round(summary.macs / 1e6, 1) == 8380.6
    assert summary.parameters == 14_714_688
    assert dict(summary.operators)["conv"] == 13
    assert sum(task.count for task in summary.tasks) == summary.kernels
    assert abs(sum(task.share for task in summary.tasks) - 1) < 1e-9
    assert summary.tasks[0].share == max(task.share for task in summary.tasks)
    assert sum(task.macs * task.count for task in summary.tasks) == summary.macs


def test_what_is_in_a_loop_counts_as_often_as_it_runs() -> None:
    body = Maker()
    body.input("step", dtype=DType.INT64)
    next_ = body("matmul", body.input("s", 4, 4), body.weight("w", 4, 4))
    g = Maker()
    n, go = g.constant("n", np.array(9)), g.constant("go", np.array(True))
    form: dict[str, AttrValue] = {"decides": False, "most": 9, "rows": (), "states": 1}
    block = g("loop", n, go, g.input("x", 4, 4), body=body.graph(next_), **form)
    graph = g.graph(g("field", block, dtype="float32", offset=128, shape=(4, 4)))
    summary = plan_summary(plan_graph(graph, 16))
    assert (summary.macs, summary.controls, summary.parameters) == (9 * 64, 1, 16 + 2)
    assert (summary.kernels, summary.views) == (2, 1)
    assert dict(summary.operators) == {"loop": 1, "matmul": 1, "field": 1, "identity": 1}
    assert {task.count for task in summary.tasks} == {9, 1}


def test_a_convolution() -> None:
    g = Maker()
    x = g.input("x", 1, 8, 6, 6)
    y = g("conv", x, g.weight("w", 16, 4, 3, 3), **(CONV | {"group": 2}))
    graph = g.graph(g("relu", y))
    workload = make_workload(graph, [node.name for node in graph.nodes])
    assert macs(workload) == 16 * 36 * 4 * 9
    assert flops(workload) == 2 * macs(workload) + 16 * 36
    assert bytes_read(workload) == 4 * (8 * 36 + 16 * 4 * 9)
    assert bytes_written(workload) == 4 * 16 * 36
    assert cost(workload) >= flops(workload)


@pytest.mark.parametrize(
    ("image", "kernel", "strides", "pads", "dilations", "group"),
    [
        ((2, 7, 7), (3, 3, 3), (1, 1, 1), (1, 1, 1, 1, 1, 1), (1, 1, 1), 1),
        ((7, 9), (5, 3), (2, 3), (2, 0, 1, 3), (1, 1), 2),
        ((6, 5), (3, 3), (1, 2), (4, 4, 4, 4), (4, 3), 1),
        ((8,), (3,), (1,), (0, 0), (1,), 4),
    ],
)
def test_products_with_padding_are_counted(
    image: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    group: int,
) -> None:
    """Against a convolution of ones: its sum is the number of products with elements."""
    g = Maker()
    x, w = g.input("x", 2, 4, *image), g.weight("w", 8, 4 // group, *kernel)
    form = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    graph = g.graph(g("conv", x, w, **form))
    workload = make_workload(graph, [node.name for node in graph.nodes])
    ones = {
        name: np.ones(workload.graph.types[name].shape, np.float32)
        for name in workload.graph.inputs
    }
    (found,) = run_graph(workload.graph, ones)
    assert macs(workload) - padding_macs(workload) == found.sum()


def test_a_batched_matmul_and_a_gather() -> None:
    g = Maker()
    a, b = g.input("a", 2, 3, 5, 7), g.input("b", 3, 7, 4)
    table = g.weight("table", 1000, 8)
    rows = g("gather", table, g.constant("rows", np.array([3, 9, 2], np.int64)), axis=0)
    product = g("matmul", a, b)
    graph = g.graph(product, rows)
    assert macs(make_workload(graph, [product])) == 2 * 3 * 5 * 4 * 7
    gather = make_workload(graph, [rows])
    assert macs(gather) == 0
    assert bytes_read(gather) == 3 * 8 * 4 + 3 * 8  # the rows that are read, and the indices
