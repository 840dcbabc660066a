"""Numerical errors of untuned code: `python -m benchmarks.accuracy --models resnet50`.

The report has two tables. For each model and each of the numerics `fast` and `strict`, the first
table shows the largest error of any output against the graph evaluated in float64, next to ONNX
Runtime's error. The second table runs every distinct kernel of the models on random inputs, and
shows the largest error of each algorithm. All errors are relative to the largest expected value.
Nothing is timed, so other load on the machine does not matter.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import models
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, write_data
from tilewright.compiler import driver
from tilewright.compiler.api import compile_model
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.runtime.verify import compare
from tilewright.compiler.schedule.select import untuned_schedules
from tilewright.compiler.targets.host import host_target
from tilewright.compiler.targets.target import Target
from tilewright.tuner.measure.oracle import input_specs

Arrays = Mapping[str, np.ndarray]
MODES = ("fast", "strict")  # untuned, "loose" is "fast"


@dataclass(frozen=True, slots=True)
class ModelError:
    """Largest relative errors of one model's outputs against float64.

    `error` is Tilewright's error and `onnxruntime` is ONNX Runtime's. `ratio` is `error` divided by
    `onnxruntime`.
    """

    model: str
    numerics: str
    error: float
    onnxruntime: float

    @property
    def ratio(self) -> float:
        return self.error / self.onnxruntime if self.onnxruntime else float(self.error > 0)


@dataclass(frozen=True, slots=True)
class KernelError:
    """Result for one algorithm: the number of its kernels, the largest relative error among them,
    and the kernel with that error (`worst`).
    """

    algorithm: str
    kernels: int
    error: float
    worst: str


def model_errors(name: str) -> list[ModelError]:
    """Compare the outputs of a compiled model with a float64 evaluation, once per mode of numerics.

    `name` is a key of `benchmarks.models.MODELS`. The inputs are the seeded random ones of the
    model.
    """
    model = models.build(name)
    feeds = models.feeds(name, model)
    exact = run_graph(driver.load_graph(model), feeds, float64=True)
    theirs = _largest(_onnxruntime(model, feeds), exact)
    found = []
    for numerics in MODES:
        executable = compile_model(model, numerics=numerics)
        ours = _largest(executable.run(feeds), exact)
        found.append(ModelError(name, numerics, ours, theirs))
    return found


def kernel_errors(graphs: Iterable[Graph], target: Target) -> list[KernelError]:
    """Run every distinct floating-point workload of the graphs with its untuned schedule, and
    return the largest error per algorithm.
    """
    workloads: dict[str, Workload] = {}
    for graph in graphs:
        for workload, _ in driver.make_plan(graph, Mode(target)).tasks():
            if workload.output.type.dtype.is_float:
                workloads.setdefault(workload.key, workload)
    worst: dict[str, tuple[float, Workload]] = {}
    counts: dict[str, int] = {}
    for workload in workloads.values():
        algorithm = _algorithm(workload, target)
        error = kernel_error(workload)
        counts[algorithm] = counts.get(algorithm, 0) + 1
        if algorithm not in worst or error > worst[algorithm][0]:
            worst[algorithm] = error, workload
    return [
        KernelError(name, counts[name], error, _describe(workload))
        for name, (error, workload) in sorted(worst.items())
    ]


def kernel_error(workload: Workload) -> float:
    """Largest relative error of one workload against a float64 evaluation of its graph.

    The workload is compiled as a model of its own and run on random inputs.
    """
    specs = input_specs(workload)
    drawn = {n: s.draw() for n, s in zip(workload.graph.inputs, specs, strict=True)}
    exact = run_graph(workload.graph, drawn, float64=True)
    weights = {
        name
        for name, boundary in zip(workload.graph.inputs, workload.inputs, strict=True)
        if boundary.constant
    }
    graph = workload.graph.replace(
        inputs=[name for name in workload.graph.inputs if name not in weights],
        constants={**workload.graph.constants, **{name: drawn[name] for name in weights}},
    )
    target = host_target()
    executable = driver.compile_plan(driver.make_plan(graph, Mode(target)), None, Mode(target))
    return _largest(executable.run({n: drawn[n] for n in graph.inputs}), exact)


def _algorithm(workload: Workload, target: Target) -> str:
    schedule = next(iter(untuned_schedules(workload, Mode(target))))
    outputs = dict(schedule.choices).get("outputs")
    return schedule.algorithm if outputs is None else f"{schedule.algorithm} F({outputs})"


def _describe(workload: Workload) -> str:
    shapes = " ".join("x".join(map(str, b.type.shape)) for b in workload.inputs[:2])
    return f"{' + '.join(workload.operators)}, {shapes}"


def _largest(outputs: Iterable[np.ndarray], exact: Iterable[np.ndarray]) -> float:
    return max(compare(ours, wanted) for ours, wanted in zip(outputs, exact, strict=True))


def _onnxruntime(model: Any, feeds: Arrays) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs: list[np.ndarray] = session.run(None, dict(feeds))
    return outputs


def markdown(origin: str, rows: list[ModelError], kernels: list[KernelError]) -> str:
    """The benchmark's report in Markdown: `origin`, then the tables of models and of kernels.

    `origin` is a sentence with the date, the machine and the versions.
    """
    lines = ["# Errors against float64", "", origin, ""]
    lines += [
        "| model | numerics | error | ONNX Runtime's | ratio |",
        "| --- | --- | --: | --: | --: |",
    ]
    for row in rows:
        lines.append(
            f"| {row.model} | {row.numerics} | {row.error:.1e} | {row.onnxruntime:.1e} "
            f"| {row.ratio:.2f} |"
        )
    lines += ["", "| algorithm | kernels | largest error | of |", "| --- | --: | --: | --- |"]
    for kernel in kernels:
        lines.append(
            f"| {kernel.algorithm} | {kernel.kernels} | {kernel.error:.1e} | {kernel.worst} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(models.MODELS), default=["resnet50"])
    parser.add_argument("--name", default="accuracy", help="of the files in benchmarks/results/")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER)
    arguments = parser.parse_args()
    rows: list[ModelError] = []
    graphs: list[Graph] = []
    target = host_target()
    for name in arguments.models:
        found = model_errors(name)
        rows += found
        graphs.append(driver.optimise(driver.load_graph(models.build(name)), Mode(target)))
        for row in found:
            print(f"{name} {row.numerics}: {row.error:.1e}, {row.ratio:.2f} of ONNX Runtime's")
    kernels = kernel_errors(graphs, target)
    origin = Origin.of(arguments)
    peer = f"onnxruntime {version('onnxruntime')}"
    text = markdown(f"{origin.sentence()} {peer}.", rows, kernels)
    print(text)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / f"{arguments.name}.md").write_text(text)
    document = {
        "origin": asdict(origin) | {"onnxruntime": peer},
        "models": [asdict(row) | {"ratio": row.ratio} for row in rows],
        "kernels": [asdict(kernel) for kernel in kernels],
    }
    stored = arguments.results / f"{arguments.name}.json.gz"
    write_data(stored, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
