"""Compilation of graph plans to artifact folders, which load with NumPy alone."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tilewright.compiler.codegen.backend import backend_of
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder
from tilewright.compiler.runtime.artifact import Artifact, SizedProgram
from tilewright.compiler.runtime.artifact_writer import ArtifactWriter
from tilewright.compiler.runtime.ports import ModelPorts, Sizes
from tilewright.compiler.runtime.segments import SegmentBoundary
from tilewright.compiler.timings import Timings, timed


def save_artifact(
    plans: Mapping[Sizes, GraphPlan],
    builder: ProgramBuilder,
    folder: str | Path,
    ports: ModelPorts | None = None,
    timings: Timings | None = None,
    check: Callable[[Artifact], object] = lambda made: None,
) -> tuple[CompiledProgram, ...]:
    """Compile the plans of one model, each for other sizes, into one artifact folder.

    Packing and writing of weights overlap. While `check` runs, the weights are flushed to disk.

    Args:
        plans: the plan for each combination of sizes of the named dimensions; the key is `()` if
            the model has none.
        builder: builds the plans' programs.
        folder: destination of the artifact.
        ports: the inputs and outputs with their dynamic dimensions; None if no input has a named
            dimension.
        timings: adds up the time of each compilation stage.
        check: called with the artifact before it is moved to its destination. If it raises an
            error, the artifact is not moved.

    Returns:
        The compiled programs, in the order of the plans.

    Raises:
        CompilerError: if a workload does not compile, the folder cannot be written, or `check`
            raises this error.
    """
    return _saved(list(plans.items()), builder, folder, ports, None, timings, check)


def save_segments(
    plans: Sequence[GraphPlan],
    stages: SegmentBoundary[int],
    builder: ProgramBuilder,
    folder: str | Path,
    ports: ModelPorts,
    timings: Timings | None = None,
    check: Callable[[Artifact], object] = lambda made: None,
) -> tuple[CompiledProgram, ...]:
    """Compile the plans of a segmented model into one artifact folder.

    A segmented model computes some sizes from data during a run. It is divided into segments, each
    with its own plan.

    Args:
        plans: the plans of all segments.
        stages: the tree of segments. The attribute `program` of each segment is the index of its
            plan.
        builder: builds the plans' programs.
        folder: destination of the artifact.
        ports: the inputs and outputs with their dynamic dimensions.
        timings: adds up the time of each compilation stage.
        check: called with the artifact before it is moved to its destination. If it raises an
            error, the artifact is not moved.

    Returns:
        The compiled programs, in the order of the plans.

    Raises:
        CompilerError: if a workload does not compile, the folder cannot be written, or `check`
            raises this error.
    """
    return _saved([((), plan) for plan in plans], builder, folder, ports, stages, timings, check)


def _saved(
    plans: Sequence[tuple[Sizes, GraphPlan]],
    builder: ProgramBuilder,
    folder: str | Path,
    ports: ModelPorts | None,
    stages: SegmentBoundary[int] | None,
    timings: Timings | None,
    check: Callable[[Artifact], object],
) -> tuple[CompiledProgram, ...]:
    with ArtifactWriter(folder) as writer:
        builder = builder.into(writer.weights)
        builder.reserve([plan for _, plan in plans])
        compiled = [builder.build(plan) for _, plan in plans]
        target = builder.mode.target
        details = {
            "codegen_version": CODEGEN_VERSION,
            "target_key": target.key,
            "threads": builder.mode.threads,
            "numerics": builder.mode.numerics,
            "schedules": {
                key: {
                    "schedule": schedule.to_json(),
                    "tuned": key in program.tuned,
                    "kernel": program.described[key][0],
                    "operators": program.described[key][1],
                }
                for program in compiled
                for key, schedule in program.schedules.items()
            },
        }
        objects = dict.fromkeys(code for program in compiled for code in program.objects)
        if not objects:  # nothing to compute: a library without code
            objects[backend_of(target).compile("", target)] = None
        with timed(timings, "link"), tempfile.TemporaryDirectory() as work:
            library = Path(work) / "kernels.so"
            backend_of(target).link(list(objects), library)
            code = library.read_bytes()
        programs = [
            SizedProgram(sizes, made.program)
            for (sizes, _), made in zip(plans, compiled, strict=True)
        ]
        with timed(timings, "write"):
            made = writer.finish(programs, code, target.to_json(), details, ports, stages)
        check(made)
        with timed(timings, "write"):
            writer.publish()
    return tuple(compiled)
