"""One workload and one schedule to object code: what a candidate goes through."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from compiler.codegen.cpu.lower import lower_nest, scratch_layout, stage_extent, stage_symbol
from compiler.codegen.object import emit_assembly, emit_object
from compiler.loops.expr import Role, Tensor
from compiler.loops.nest import LoopNest
from compiler.runtime.kernel import ABI_VERSION, BufferRole, BufferSpec, KernelSpec, StageSpec
from compiler.schedule.kernel import Kernel
from compiler.schedule.schedule import Schedule
from compiler.schedule.select import lower_schedule
from compiler.target import Target
from compiler.timings import Timings, timed
from compiler.workload import Workload

CODEGEN_VERSION = "4"
"""Raised when equal schedules may give other code; kept with every record."""


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A loop nest, what it looks like from outside, and its LLVM IR."""

    nest: LoopNest
    spec: KernelSpec
    ir: str
    digest: str
    """SHA-256 of the IR under a neutral name, and of the target: equal code has one digest."""

    def assembly(self, target: Target) -> str:
        """The code as text, with LLVM's comments, which mark its loops."""
        return emit_assembly(self.ir, target)


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A compiled kernel."""

    object: bytes
    spec: KernelSpec
    nest: LoopNest
    digest: str


def lower_workload(
    workload: Workload,
    schedule: Schedule,
    target: Target,
    threads: int = 1,
    timings: Timings | None = None,
) -> LoweredKernel:
    """Lower a schedule to LLVM IR.

    Symbols are named after the code, so that kernels of one program and candidates of one batch
    link together, and equal code needs to be compiled and linked only once.

    Raises:
        ScheduleError: if the schedule does not fit the workload or the target.
    """
    with timed(timings, "lower"):
        kernel = lower_schedule(workload, schedule, target, threads)
    with timed(timings, "emit LLVM IR"):
        text = lower_nest(kernel.nest, target)
        digest = hashlib.sha256(f"{target.key}\n{text}".encode()).hexdigest()
        nest = replace(kernel.nest, name=f"tw_{digest[:24]}")
        for number in range(len(nest.stages)):
            text = text.replace(
                f"@{stage_symbol(kernel.nest, number)}(", f"@{stage_symbol(nest, number)}("
            )
        spec = kernel_spec(replace(kernel, nest=nest), workload)
    return LoweredKernel(nest, spec, text, digest)


def compile_lowered(
    lowered: LoweredKernel, target: Target, timings: Timings | None = None
) -> BuiltKernel:
    """Compile a lowered kernel to an object file.

    Raises:
        CompilerError: if LLVM refuses the code.
    """
    code = emit_object(lowered.ir, target, timings)
    return BuiltKernel(code, lowered.spec, lowered.nest, lowered.digest)


def build_kernel(
    workload: Workload,
    schedule: Schedule,
    target: Target,
    threads: int = 1,
    timings: Timings | None = None,
) -> BuiltKernel:
    """Compile a schedule to an object file.

    Raises:
        ScheduleError: if the schedule does not fit.
        CompilerError: if LLVM refuses the code.
    """
    return compile_lowered(
        lower_workload(workload, schedule, target, threads, timings), target, timings
    )


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
