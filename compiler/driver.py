"""The whole compiler as one readable column.

ONNX -> load_graph -> optimise -> make_plan -> build_program -> Executable | artifact folder
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.build import CODEGEN_VERSION, build_kernel, lower_workload
from compiler.codegen.link import link_shared
from compiler.codegen.object import load_objects
from compiler.dtypes import DType
from compiler.errors import CompilerError, InvalidArgumentError, enough_memory_for
from compiler.frontend.onnx_import import import_model
from compiler.graph.ir import Graph
from compiler.partition import plan_graph
from compiler.passes.pipeline import Observer
from compiler.passes.pipeline import optimise as run_passes
from compiler.plan import GraphPlan
from compiler.program_builder import CompiledProgram, ScheduleSource, build_program
from compiler.runtime import artifact
from compiler.runtime.executable import Executable
from compiler.runtime.native import check_threads
from compiler.target import Target, host_target, resolve_target
from compiler.timings import Timings, timed

if TYPE_CHECKING:
    from typing import TypeAlias

    import onnx

    Model: TypeAlias = str | Path | bytes | onnx.ModelProto

NUMERICS = ("fast", "strict")


def load_graph(
    model: Model, dims: Mapping[str, int] | None = None, timings: Timings | None = None
) -> Graph:
    """Import an ONNX model; `dims` fixes its named dimensions.

    Raises:
        InvalidModelError: if it is no valid model.
        UnsupportedOperatorError: if it uses an operator that is not implemented.
    """
    with timed(timings, "import"):
        return import_model(model, dims or {})


def optimise(
    graph: Graph,
    numerics: str = "fast",
    observer: Observer | None = None,
    timings: Timings | None = None,
) -> Graph:
    """Run the graph passes; `observer` sees the graph after each of them.

    Raises:
        CompilerError: if `numerics` is neither "fast" nor "strict".
    """
    check_numerics(numerics)
    return run_passes(graph, observer, timings)


def make_plan(
    graph: Graph, target: Target, numerics: str = "fast", timings: Timings | None = None
) -> GraphPlan:
    """Cut an optimised graph into workloads, with layouts and halos between them."""
    check_numerics(numerics)
    with timed(timings, "partition"):
        return plan_graph(graph, target.lanes(DType.FLOAT32))


def compile_plan(
    plan: GraphPlan,
    schedules: ScheduleSource | None,
    target: Target,
    threads: int = 1,
    numerics: str = "fast",
    weight_limit_bytes: int | None = None,
    timings: Timings | None = None,
) -> Executable:
    """Compile a plan for this process, with the best schedules that are known.

    Raises:
        CompilerError: if the target does not run on this machine, or a workload does not compile.
    """
    if not target.runs_on(host_target()):
        raise CompilerError(f"target '{target.name}' does not run on this machine")
    compiled = build_program(
        plan, schedules, target, threads, numerics, weight_limit_bytes, timings
    )
    return load_program(compiled, threads, timings)


def load_program(
    compiled: CompiledProgram, threads: int = 1, timings: Timings | None = None
) -> Executable:
    """Load a compiled program's code into this process."""
    with timed(timings, "load"):
        library = load_objects(compiled.objects)
        return Executable(compiled.program, compiled.weights, library.address, threads, library)


def save_artifact(
    plan: GraphPlan,
    schedules: ScheduleSource | None,
    target: Target,
    threads: int,
    numerics: str,
    folder: str | Path,
    sizes: Mapping[str, int] | None = None,
    weight_limit_bytes: int | None = None,
    timings: Timings | None = None,
) -> CompiledProgram:
    """Compile a plan into an artifact folder that loads with NumPy alone.

    Raises:
        CompilerError: if a workload does not compile, or the folder cannot be written.
    """
    compiled = build_program(
        plan, schedules, target, threads, numerics, weight_limit_bytes, timings
    )
    metadata = {
        "codegen_version": CODEGEN_VERSION,
        "target_key": target.key,
        "threads": threads,
        "numerics": numerics,
        "schedules": {
            key: {"schedule": schedule.to_json(), "tuned": key in compiled.tuned}
            for key, schedule in compiled.schedules.items()
        },
    }
    program = artifact.SizedProgram(tuple(sorted((sizes or {}).items())), compiled.program)
    with timed(timings, "link"), tempfile.TemporaryDirectory() as work:
        library = Path(work) / "kernels.so"
        link_shared(compiled.objects, library)
        code = library.read_bytes()
    with timed(timings, "write"):
        artifact.save_artifact(
            folder, [program], code, compiled.weights, target.to_json(), metadata
        )
    return compiled


def compile_model(
    model: Model,
    target: str = "host",
    threads: int = 1,
    dims: Mapping[str, int] | None = None,
    schedules: ScheduleSource | None = None,
    numerics: str = "fast",
    weight_limit_bytes: int | None = None,
    timings: Timings | None = None,
) -> Executable:
    """Compile an ONNX model for this machine.

    Args:
        model: a path, the bytes of a model, or a ModelProto.
        target: `host`, or the name of a described target that this machine can run.
        threads: threads that a run uses, the calling one included.
        dims: sizes of named dimensions.
        schedules: where tuned schedules are looked up; None compiles with the defaults.
        numerics: "strict" turns off algorithms that change rounding (Winograd).
        weight_limit_bytes: most memory that packed weights may take; algorithms that expand them
            (Winograd) give way first.
        timings: counts the time of every stage.

    Raises:
        CompilerError: naming what is wrong with the model or the arguments.
    """
    check_numerics(numerics)
    check_threads(threads)
    chosen = resolve_target(target)
    with enough_memory_for("to compile the model"):
        graph = optimise(load_graph(model, dims, timings), numerics, timings=timings)
        plan = make_plan(graph, chosen, numerics, timings)
        return compile_plan(plan, schedules, chosen, threads, numerics, weight_limit_bytes, timings)


def check_numerics(numerics: str) -> None:
    """Raises InvalidArgumentError unless it is one of NUMERICS."""
    if numerics not in NUMERICS:
        raise InvalidArgumentError(f"numerics is '{numerics}', known are {', '.join(NUMERICS)}")


__all__ = [
    "ScheduleSource",
    "build_kernel",
    "build_program",
    "check_numerics",
    "compile_model",
    "compile_plan",
    "load_graph",
    "load_program",
    "lower_workload",
    "make_plan",
    "optimise",
    "save_artifact",
]
