"""Writes the result of a job: an artifact folder, or a WebAssembly module with its JavaScript.

JavaScript cannot load artifacts. So the result of a job for a WebAssembly target is the module that
`tilewright compile` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tilewright.compiler.bindings.c_library import write_wasm_module
from tilewright.compiler.bindings.c_library.toolchain import wasm_toolchain
from tilewright.compiler.program.kernels import KernelCache, ScheduleSource
from tilewright.compiler.runtime.artifact import Artifact
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings, timed
from tilewright.service.jobs.device.loadables import LoadableOf, at_sizes, of_artifact
from tilewright.service.jobs.pipeline.tuning import build_artifact, build_for_c
from tilewright.service.jobs.plan.planning import Planned

MODULE_NAME = "model"
"""Name of the files and functions of the module that a job compiles. It is fixed because a job does
not have a name for its model."""


def check_tools(target: Target) -> None:
    """Check that this machine has the tools to write the result for a target.

    Raises:
        ToolchainError: if the target needs a WebAssembly toolchain that is not installed.
    """
    if target.family.modules:
        wasm_toolchain(target)


def deliver(
    planned: Sequence[Planned],
    schedules: ScheduleSource,
    folder: Path,
    weight_limit_bytes: int | None = None,
    *,
    pad: bool = False,
    timings: Timings | None = None,
    kernels: KernelCache | None = None,
    check: Callable[[LoadableOf], object] = lambda made: None,
) -> None:
    """Compile a model and write the result into a new folder, in the format of the target.

    The folder is created only if everything succeeds.

    Args:
        planned: the plans of the model, one per size.
        schedules: the schedules of the kernels.
        folder: the folder to create.
        weight_limit_bytes: the limit of the packed weights; see `tuning.build_artifact`.
        pad: whether an artifact pads inputs; see `tuning.build_artifact`.
        timings: receives the seconds of each step.
        kernels: the cache of compiled kernels.
        check: called with the compiled code before the folder is created; if it raises, no folder
            is created.

    Raises:
        CompilerError: if the model cannot be compiled, linked or written, or if `check` raises it.
    """
    first = planned[0]
    if first.target.family.modules:
        compiled = build_for_c(first, schedules, weight_limit_bytes, timings, kernels)
        check(partial(at_sizes, compiled))
        with timed(timings, "write"):
            write_wasm_module(compiled, folder, MODULE_NAME, MODULE_NAME, first.mode.threads)
        return

    def check_artifact(made: Artifact) -> None:
        check(partial(of_artifact, made))

    build_artifact(
        planned,
        schedules,
        folder,
        weight_limit_bytes,
        pad=pad,
        timings=timings,
        kernels=kernels,
        check=check_artifact,
    )
