"""Compilation of one workload with one schedule: loop nest, LLVM IR, object code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tilewright.compiler.codegen.backend import KernelCode, backend_of
from tilewright.compiler.errors import CompilerError, ScheduleError
from tilewright.compiler.loops.expr import Role, Tensor
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.runtime.kernel import (
    ABI_VERSION,
    BufferRole,
    BufferSpec,
    KernelSpec,
    StageSpec,
)
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule
from tilewright.compiler.sizes import WorkloadDimension, dimensions, dynamic_sizes
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings, timed

CODEGEN_VERSION = "25"
"""Version of code generation, which is stored with every record. It is incremented when equal
schedules may result in different code."""


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A workload lowered with a schedule to text that the target's back end compiles.

    Attributes:
        nest: the loop nest.
        spec: the interface of the kernel.
        text: the source for the back end, such as LLVM IR.
        digest: digest of the `KernelCode`; kernels with equal code have equal digests.
        operators: names of the workload's operators.
    """

    nest: LoopNest
    spec: KernelSpec
    text: str
    digest: str
    operators: tuple[str, ...]

    def assembly(self, target: Target) -> str:
        """Compile the kernel and return its assembly, with comments that mark the loops."""
        return backend_of(target).assembly(self.text, target)


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A compiled kernel: its object code, interface, loop nest, and the digest of its code."""

    object: bytes
    spec: KernelSpec
    nest: LoopNest
    digest: str


def lower_workload(
    workload: Workload, schedule: Schedule, mode: Mode, timings: Timings | None = None
) -> LoweredKernel:
    """Lower a workload with a schedule to text that the target's back end compiles.

    Symbol names contain the digest of the code. Different kernels can therefore be linked together,
    and equal code needs to be compiled and linked only once.

    Raises:
        ScheduleError: if the schedule does not fit the workload or the target.
        CompilerError: if the target cannot compute in a type of the workload.
    """
    with timed(timings, "lower"):
        kernel = lower_schedule(workload, schedule, mode)
    with timed(timings, "emit LLVM IR"):
        with _naming(workload.operators):
            code = backend_of(mode.target).lower(kernel.nest, mode.target)
        nest = replace(kernel.nest, name=code.name)
        spec = kernel_spec(kernel, code, workload)
    return LoweredKernel(nest, spec, code.text, code.digest, workload.operators)


def compile_lowered(
    lowered: LoweredKernel, target: Target, timings: Timings | None = None
) -> BuiltKernel:
    """Compile a lowered kernel to an object file.

    Raises:
        CompilerError: if LLVM rejects the code.
    """
    with _naming(lowered.operators):
        code = backend_of(target).compile(lowered.text, target, timings)
    return BuiltKernel(code, lowered.spec, lowered.nest, lowered.digest)


def build_kernel(
    workload: Workload, schedule: Schedule, mode: Mode, timings: Timings | None = None
) -> BuiltKernel:
    """Compile a workload with a schedule to an object file.

    Raises:
        ScheduleError: if the schedule does not fit the workload or the target.
        CompilerError: if the target cannot compute in a type of the workload, or LLVM rejects the
            code.
    """
    lowered = lower_workload(workload, schedule, mode, timings)
    return compile_lowered(lowered, mode.target, timings)


@contextmanager
def _naming(operators: Sequence[str]) -> Iterator[None]:
    """Context manager that adds the workload's operators to the message of a `CompilerError`.

    Errors of type `ScheduleError` are not changed.
    """
    try:
        yield
    except ScheduleError:
        raise
    except CompilerError as error:
        raise CompilerError(f"the fused workload of {', '.join(operators)}: {error}") from error


def kernel_spec(kernel: Kernel, code: KernelCode, workload: Workload) -> KernelSpec:
    """Return the interface of a kernel: its symbols, buffers and dynamic sizes.

    Input and output buffers have the shapes and layouts of the workload's boundaries. Buffers of
    weights have the shapes and layouts of the packed weights.

    Raises:
        ScheduleError: if a size in the interface depends on a dynamic dimension that is in no loop
            of the kernel.
    """
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
    stages = tuple(StageSpec(stage.symbol, stage.extent) for stage in code.stages)
    sizes = tuple(map(WorkloadDimension.of, code.sizes))
    spec = KernelSpec(ABI_VERSION, code.name, stages, tuple(buffers), code.scratch_bytes, sizes)
    for size in dynamic_sizes((spec.stages, spec.buffers, spec.scratch_bytes)):
        if unread := set(dimensions(size)) - set(spec.sizes):
            raise ScheduleError(f"no loop of the kernel has size {min(map(str, unread))}")
    return spec


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
