"""Nests with open extents, run at many sizes and compared with the workload's meaning there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.graphs import Maker, random_inputs
from tests.kernels import as_workload
from tests.nests.evaluate import pack_tensor, run_nest, unpack_tensor
from tests.nests.verify import verify_nest
from tilewright.compiler.codegen.backend import KernelCode
from tilewright.compiler.loops.expr import Tensor
from tilewright.compiler.loops.layout import Layout
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Halo, Workload
from tilewright.compiler.program.build import kernel_spec
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec
from tilewright.compiler.runtime.packing import make_weight
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.sizes import Dimension, dynamic_size
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

Array = np.ndarray[Any, Any]
Build = Callable[..., str]
"""Adds nodes to a Maker, for the sizes that it is given; inputs named `w...` are weights."""

TARGET = resolve_target("x86-64-v3")
SIZES = (1, 2, 7, 8, 9, 16, 23, 40)
N = Dimension("n", 1, 40)
M = Dimension("m", 1, 20)
ONE = [{"n": n} for n in SIZES]
TWO = [{"n": n, "m": m} for n, m in zip(SIZES, (5, 1, 17, 8, 1, 20, 2, 9), strict=True)]


def dynamic_workload(
    build: Build,
    *dimensions: Dimension,
    places: Mapping[str, tuple[Layout, Halo]] | None = None,
) -> Workload:
    """The workload that a function builds over open sizes."""
    make = Maker()
    output = build(make, *map(dynamic_size, dimensions))
    graph = make.graph(output)
    weights = [name for name in graph.inputs if name.startswith("w")]
    return as_workload(graph, weights, places)


def schedules(workload: Workload, target: Target = TARGET, count: int = 3) -> list[Schedule]:
    """The default, and some of every algorithm."""
    space = schedule_space(workload, Mode(target))
    some = [s for sub in space.subspaces for s in sub.points[:: -(-len(sub.points) // count)]]
    return list(dict.fromkeys((space.default(), *some)))


def assert_right(
    workload: Workload,
    schedule: Schedule,
    values: Sequence[Mapping[str, int]],
    target: Target = TARGET,
    tolerance: float = 3e-5,
) -> LoopNest:
    """One nest is right at all sizes; returns it."""
    kernel = lower_schedule(workload, schedule, Mode(target))
    verify_nest(kernel.nest)
    for sizes in values:
        _assert_right(kernel, workload.at(sizes), sizes, tolerance, str(schedule))
    return kernel.nest


def _assert_right(
    kernel: Kernel, workload: Workload, sizes: Mapping[str, int], tolerance: float, schedule: str
) -> None:
    nest = kernel.nest.at(sizes)
    verify_nest(nest)
    code = KernelCode(nest.name, "", "", (), 0)
    spec = kernel_spec(replace(kernel, nest=nest), code, workload)
    arrays = random_inputs(workload.graph, sum(sizes.values()))
    (expected,) = run_graph(workload.graph, arrays, float64=True)
    names = workload.graph.inputs
    buffers = []
    for buffer, tensor in zip(spec.buffers, nest.buffers, strict=True):
        match buffer.role:
            case BufferRole.WEIGHT:
                packed = make_weight(buffer, arrays[names[buffer.source]])
                buffers.append(packed.view(tensor.dtype.numpy))
            case BufferRole.INPUT:
                buffers.append(pack_tensor(_whole(buffer), arrays[names[buffer.source]]))
            case _:
                buffers.append(np.full(tensor.bytes, 0xFF, np.uint8).view(tensor.dtype.numpy))
    run_nest(nest, buffers)
    output = _whole(spec.buffers[-1])
    around = output.halo or ((0, 0),) * len(output.shape)
    padded = tuple(n + sum(pair) for n, pair in zip(output.shape, around, strict=True))
    got = unpack_tensor(replace(output, shape=padded, halo=()), buffers[-1])
    np.testing.assert_allclose(
        got,
        np.pad(expected, around),
        rtol=0,
        atol=tolerance * max(1.0, np.abs(expected).max()),
        err_msg=f"{schedule} at {dict(sizes)}",
    )


def _whole(spec: BufferSpec) -> Tensor:
    return Tensor(spec.name, spec.shape, spec.dtype, Layout.parse(spec.layout), spec.halo)
