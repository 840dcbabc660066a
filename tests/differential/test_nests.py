"""Every template's loop nests are well-formed, read back from text, and mean their workloads.

No code is generated: `run_nest` evaluates a nest, at 128, 256 and 512 bits on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.graphs import Maker, random_inputs
from tests.nests.evaluate import pack_tensor, run_nest, unpack_tensor
from tests.nests.parse import parse_nest
from tests.nests.verify import verify_nest
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.loops.expr import Tensor
from tilewright.compiler.loops.layout import Layout, blocked
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Boundary, ExtractedWorkload, extract_workload
from tilewright.compiler.program.build import LoweredKernel, lower_workload
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec
from tilewright.compiler.runtime.packing import make_weight
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

Array = np.ndarray[Any, Any]
TARGETS = ("x86-64-v4", "x86-64-v3", "aarch64")


def matmul(make: Maker) -> str:
    x = make.input("x", 10, 12)
    product = make("matmul", x, make.weight("w", 12, 20))
    return make("relu", make("add", product, make.weight("b", 20)))


def convolution(kernel: int, stride: int, channels: int, group: int = 1) -> Callable[[Maker], str]:
    def build(make: Maker) -> str:
        x = make.input("x", 1, channels, 9, 9)
        weight = make.weight("w", 16, channels // group, kernel, kernel)
        pad = kernel // 2
        result = make(
            "conv",
            x,
            weight,
            make.weight("b", 16),
            strides=(stride, stride),
            pads=(pad,) * 4,
            dilations=(1, 1),
            group=group,
        )
        return make("relu", result)

    return build


def max_pool(make: Maker) -> str:
    x = make.input("x", 1, 16, 7, 7)
    window = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    return make("max_pool", x, **window)


def unary(op: str, **attrs: Any) -> Callable[[Maker], str]:
    return lambda make: make(op, make.input("x", 6, 5, 37), **attrs)


CASES: dict[str, Callable[[Maker], str]] = {
    "matmul": matmul,
    "convolution": convolution(3, 1, 16),
    "strided": convolution(3, 2, 16),
    "pointwise": convolution(1, 1, 16),
    "depthwise": convolution(3, 1, 16, group=16),
    "stem": convolution(3, 2, 3),
    "max_pool": max_pool,
    "softmax": unary("softmax", axis=2),
    "arg_max": unary("arg_max", axis=2),
    "arg_min of columns": unary("arg_min", axis=1, last=1),
    "softmax of short rows": lambda make: make("softmax", make.input("x", 37, 3), axis=1),
    "gelu": unary("gelu"),
    "transpose": unary("transpose", perm=(2, 0, 1)),
    "mean": unary("reduce_mean", axes=(2,), keepdims=1),
}


@cache
def workload(case: str, lanes: int) -> tuple[Graph, ExtractedWorkload]:
    """Images lie in blocks of the target's lanes where their channels divide, with a halo."""
    make = Maker()
    graph = make.graph(CASES[case](make))
    layouts = {}
    for value in (*graph.inputs, *graph.outputs):
        shape = graph.types[value].shape
        if len(shape) == 4 and shape[1] % lanes == 0:
            padded = value in graph.inputs and graph.nodes[0].op == "conv"
            halo = ((0, 0), (0, 0), (1, 1), (1, 1)) if padded else ()
            layouts[value] = Boundary(graph.types[value], blocked(4, 1, lanes), halo)
    return graph, extract_workload(graph, [node.name for node in graph.nodes], layouts)


def schedules(cut: ExtractedWorkload, target: Target) -> list[Schedule]:
    """The default, and some of every algorithm."""
    space, rng = schedule_space(cut.workload, Mode(target)), random.Random(5)
    some = [s for sub in space.subspaces for s in rng.sample(sub.points, min(3, len(sub.points)))]
    return [space.default(), *some]


def whole(spec: BufferSpec) -> Tensor:
    return Tensor(spec.name, spec.shape, spec.dtype, Layout.parse(spec.layout), spec.halo)


def meaning(kernel: LoweredKernel, values: dict[str, Array], cut: ExtractedWorkload) -> Array:
    """The logical output that the nest computes."""
    buffers = []
    for spec, tensor in zip(kernel.spec.buffers, kernel.nest.buffers, strict=True):
        match spec.role:
            case BufferRole.WEIGHT:
                packed = make_weight(spec, values[cut.inputs[spec.source]])
                buffers.append(packed.view(tensor.dtype.numpy))
            case BufferRole.INPUT:
                buffers.append(pack_tensor(whole(spec), values[cut.inputs[spec.source]]))
            case _:
                count = tensor.bytes // tensor.dtype.bytes
                unset = np.nan if tensor.dtype.is_float else -1
                buffers.append(np.full(count, unset, tensor.dtype.numpy))
    run_nest(kernel.nest, buffers)
    return unpack_tensor(whole(kernel.spec.buffers[-1]), buffers[-1])


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_schedules_mean_their_workload(case: str, name: str) -> None:
    target = resolve_target(name)
    graph, cut = workload(case, target.vector_bits // 32)
    inputs = random_inputs(graph)
    (expected,) = run_graph(graph, inputs, float64=True)
    for schedule in schedules(cut, target):
        kernel = lower_workload(cut.workload, schedule, Mode(target))
        verify_nest(kernel.nest)
        assert parse_nest(print_nest(kernel.nest)) == kernel.nest
        got = meaning(kernel, {**graph.constants, **inputs}, cut)
        tolerance = 3e-5 * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance, err_msg=str(schedule))
