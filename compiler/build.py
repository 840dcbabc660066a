"""One workload and one schedule to object code: what a candidate goes through."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field, replace

from compiler.codegen.lower import lower_nest, scratch_layout, stage_extent, stage_symbol
from compiler.codegen.object import emit_assembly, emit_object
from compiler.codegen.statistics import KernelStatistics, statistics
from compiler.loops.expr import Role, Tensor
from compiler.loops.nest import LoopNest
from compiler.runtime.kernel import ABI_VERSION, BufferSpec, KernelSpec, StageSpec
from compiler.runtime.kernel import Role as BufferRole
from compiler.schedule.kernel import Kernel
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import lower_schedule
from compiler.target import Target
from compiler.workload import Workload

CODEGEN_VERSION = "1"
"""Raised when equal schedules may give other code; kept with every record."""


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A loop nest, what it looks like from outside, and its LLVM IR."""

    nest: LoopNest
    spec: KernelSpec
    ir: str
    digest: str
    """SHA-256 of the IR under a neutral name, and of the target: equal code has one digest."""
    seconds: dict[str, float] = field(compare=False)


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A compiled kernel.

    `statistics` is None unless it was asked for: it costs a second code generation.
    """

    object: bytes
    spec: KernelSpec
    nest: LoopNest
    digest: str
    statistics: KernelStatistics | None
    seconds: dict[str, float] = field(compare=False)
    """Wall-clock seconds by step: lower, emit, codegen."""


def lower_workload(
    workload: Workload, schedule: Schedule, target: Target, threads: int = 1
) -> LoweredKernel:
    """Lower a schedule to LLVM IR.

    Symbols are named after the workload and the schedule, so that kernels of one program and
    candidates of one batch link together.

    Raises:
        ScheduleError: if the schedule does not fit the workload or the target.
    """
    start = time.perf_counter()
    kernel = lower_schedule(workload, schedule, target, threads)
    lowered = time.perf_counter()
    text = lower_nest(kernel.nest, target)
    scheduler = "misched" if kernel.nest.machine_scheduler else ""
    digest = hashlib.sha256(f"{target.key}{scheduler}\n{text}".encode()).hexdigest()
    name = f"tw_{workload.key[:12]}_{schedule.digest[:12]}"
    nest = replace(kernel.nest, name=name)
    for number in range(len(nest.stages)):
        text = text.replace(
            f"@{stage_symbol(kernel.nest, number)}(", f"@{stage_symbol(nest, number)}("
        )
    seconds = {"lower": lowered - start, "emit": time.perf_counter() - lowered}
    return LoweredKernel(
        nest, kernel_spec(replace(kernel, nest=nest), workload), text, digest, seconds
    )


def build_kernel(
    workload: Workload,
    schedule: Schedule,
    target: Target,
    threads: int = 1,
    *,
    with_statistics: bool = False,
) -> BuiltKernel:
    """Compile a schedule to an object file.

    Raises:
        ScheduleError: if the schedule does not fit.
        CompilerError: if LLVM refuses the code.
    """
    lowered = lower_workload(workload, schedule, target, threads)
    start = time.perf_counter()
    scheduler = lowered.nest.machine_scheduler
    code = emit_object(lowered.ir, target, scheduler)
    seconds = {**lowered.seconds, "codegen": time.perf_counter() - start}
    counts = None
    if with_statistics:
        counts = statistics(emit_assembly(lowered.ir, target, scheduler), target)
    return BuiltKernel(code, lowered.spec, lowered.nest, lowered.digest, counts, seconds)


def kernel_spec(kernel: Kernel, workload: Workload) -> KernelSpec:
    """The kernel from outside: boundaries as the workload has them, weights as it packs them."""
    sources, transforms = dict(kernel.sources), dict(kernel.transforms)
    buffers = []
    for tensor in kernel.nest.buffers:
        source = sources.get(tensor.name, -1)
        match tensor.role:
            case Role.INPUT:
                boundary = workload.inputs[source]
            case Role.OUTPUT:
                boundary = workload.output
            case _:
                transform = transforms.get(tensor.name)
                buffers.append(
                    replace(
                        _buffer(tensor, source),
                        einsum=transform.subscripts if transform else "",
                        matrices=transform.matrices if transform else (),
                        parts=transform.parts if transform else (),
                    )
                )
                continue
        whole = replace(
            tensor, shape=boundary.type.shape, layout=boundary.layout, halo=boundary.halo
        )
        buffers.append(_buffer(whole, source))
    stages = tuple(
        StageSpec(stage_symbol(kernel.nest, number), stage_extent(stage))
        for number, stage in enumerate(kernel.nest.stages)
    )
    _, scratch_bytes = scratch_layout(kernel.nest)
    return KernelSpec(ABI_VERSION, kernel.nest.name, stages, tuple(buffers), scratch_bytes)


def _buffer(tensor: Tensor, source: int) -> BufferSpec:
    return BufferSpec(
        tensor.name,
        BufferRole(tensor.role.value),
        tensor.dtype,
        tensor.shape,
        str(tensor.layout),
        tensor.halo,
        tensor.bytes,
        source,
    )
