"""Plans to artifact folders, which NumPy alone can load."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from compiler.build import CODEGEN_VERSION
from compiler.codegen.backend import backend_of
from compiler.plan import GraphPlan
from compiler.program_builder import CompiledProgram, ProgramBuilder
from compiler.runtime.artifact import Artifact, SizedProgram
from compiler.runtime.artifact_writer import ArtifactWriter
from compiler.runtime.ports import OpenPorts, Sizes
from compiler.timings import Timings, timed


def save_artifact(
    plans: Mapping[Sizes, GraphPlan],
    builder: ProgramBuilder,
    folder: str | Path,
    ports: OpenPorts | None = None,
    timings: Timings | None = None,
    check: Callable[[Artifact], object] = lambda made: None,
) -> tuple[CompiledProgram, ...]:
    """Compile a plan for each combination of sizes into one artifact, which NumPy alone can load.

    Weights are written while the next are packed, and flushed to the disk during `check`.

    Args:
        plans: by sizes; `()` where no dimension is named.
        builder: what the plans are built with.
        folder: where the artifact goes.
        ports: the open dimensions of inputs and outputs.
        timings: counts the time of every stage.
        check: called with the artifact before it is put at its place; if `check` raises, it is not
            put there.

    Raises:
        CompilerError: if a workload does not compile, the folder cannot be written, or from
            `check`.
    """
    with ArtifactWriter(folder) as writer:
        builder = builder.into(writer.weights)
        builder.reserve(list(plans.values()))
        compiled = {sizes: builder.build(plan) for sizes, plan in plans.items()}
        details = {
            "codegen_version": CODEGEN_VERSION,
            "target_key": builder.target.key,
            "threads": builder.threads,
            "numerics": builder.numerics,
            "schedules": {
                key: {"schedule": schedule.to_json(), "tuned": key in program.tuned}
                for program in compiled.values()
                for key, schedule in program.schedules.items()
            },
        }
        objects = dict.fromkeys(code for program in compiled.values() for code in program.objects)
        if not objects:  # nothing is left to compute: a library without code
            objects[backend_of(builder.target).compile("", builder.target)] = None
        with timed(timings, "link"), tempfile.TemporaryDirectory() as work:
            library = Path(work) / "kernels.so"
            backend_of(builder.target).link(list(objects), library)
            code = library.read_bytes()
        programs = [SizedProgram(sizes, c.program) for sizes, c in compiled.items()]
        with timed(timings, "write"):
            made = writer.finish(programs, code, builder.target.to_json(), details, ports)
        check(made)
        with timed(timings, "write"):
            writer.publish()
    return tuple(compiled.values())
