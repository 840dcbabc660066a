"""Compare the measuring code (harness) of two checkouts, with measurements interleaved A B B A.

`python -m benchmarks.harnesses --other CHECKOUT` measures with the harness of another checkout (A)
and with this one's (B). Each has its own process, which runs `benchmarks/harness_side.py` of its
checkout. The kernels are workloads of several models, half of them with default and half with
random schedules. The tuner's statistics (`tuner.measure.statistics.Comparison`) decide whether the
harnesses differ. The verdict is a tie, unless the confidence interval of the median ratio excludes
1 and the median is beyond the tie margin. As a control, the two readings of the same harness in a
round are compared with each other. Results go to benchmarks/results/harnesses.md.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median

from benchmarks import models
from benchmarks.report import Origin, markdown_table
from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.targets.host import host_target
from tilewright.tuner.measure.batch import BuiltCandidate, link_to_bytes, make_request
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.oracle import make_reference
from tilewright.tuner.measure.statistics import TIE_MARGIN, Comparison
from tilewright.tuner.protocol.batches import MeasureRequest, RepeatSettings
from tilewright.tuner.protocol.measurement import Phase, Status
from tilewright.tuner.tasks import Task, make_task

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "harnesses.md"

KERNEL_MODELS = ("mobilenetv2", "mlp", "lstm-2x256-64", "yolo-nano", "gpt2-decode-64", "c3d-small")
PROGRAMS = (
    "mlp",
    "lstm-2x256-64",
    "mobilenetv2",
    "yolo-nano",
    "efficientnet-lite0",
    "mobilenetv2-qdq",
)
ANY_ERROR = 1e300

LEAST_SECONDS, MOST_SECONDS = 2e-6, 2e-2
"""Range of times of a measured kernel, in seconds. The clock is too coarse for faster kernels."""


class SideProcess:
    """Child process that measures with one checkout's harness.

    As a context manager, it ends the process.
    """

    def __init__(self, checkout: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(checkout / "benchmarks" / "harness_side.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(checkout)},
        )

    def __enter__(self) -> SideProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def measure(self, work: str, *arguments: object) -> float | None:
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump((work, arguments), self._process.stdin)
        self._process.stdin.flush()
        (seconds,) = pickle.load(self._process.stdout)
        found: float | None = seconds
        return found


Measure = Callable[[SideProcess], float | None]


@dataclass(frozen=True, slots=True)
class Paired:
    """Readings of one kernel or program by both harnesses.

    Attributes:
        name: the kernel or program.
        seconds: all readings in seconds, for side A and side B.
        ratios: B over A, for each adjacent pair of readings.
        control: the later over the earlier reading of the same side, alternately A's and B's.
    """

    name: str
    seconds: tuple[Sequence[float], Sequence[float]]
    ratios: Sequence[float]
    control: Sequence[float]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def outcome(self) -> str:
        return Comparison("", tuple(self.ratios)).outcome.value


def pairs(name: str, measure: Measure, sides: Sequence[SideProcess], rounds: int) -> Paired | None:
    """Measure a kernel or program with two harnesses (measuring code of two checkouts) in turns.

    Each of the `rounds` rounds has the order A B B A, where A and B are the two `sides`. `measure`
    returns the time that one harness measures. The result is None if any measurement fails.
    """
    first, second = sides
    seconds: tuple[list[float], list[float]] = ([], [])
    ratios: list[float] = []
    control: list[float] = []
    for _ in range(rounds):
        found = [measure(side) for side in (first, second, second, first)]
        a, b, c, d = (each or 0.0 for each in found)
        if not all(found):
            return None
        seconds[0].extend((a, d))
        seconds[1].extend((b, c))
        ratios += [b / a, c / d]
        control += [d / a, c / b]
    return Paired(name, seconds, ratios, control)


def measured_kernel(
    request: MeasureRequest, blobs: Mapping[str, bytes], serial: Iterator[int], side: SideProcess
) -> float | None:
    """Measure a kernel once with the harness of one checkout.

    Returns the seconds per run, or None if the kernel fails. The request gets a new id from
    `serial`, because runners cache results by id. The inputs get new seeds. Equal inputs would
    reuse the same memory, whose placement would then affect all readings of a harness. Outputs are
    not compared here, because the kernel was verified before.
    """
    number = next(serial)
    cases = tuple(
        replace(case, inputs=tuple(replace(each, seed=each.seed + number) for each in case.inputs))
        for case in request.cases
    )
    name = f"{request.request_id}-{number}"
    fresh = replace(request, request_id=name, cases=cases, tolerance=ANY_ERROR)
    return side.measure("kernel", fresh.to_json(), blobs)


def measured_program(name: str, side: SideProcess) -> float | None:
    return side.measure("program", name, 1)


def kernels(names: Sequence[str], count: int, seed: int) -> list[Task]:
    """At most `count` randomly chosen tasks (fused subgraphs to tune) of each model."""
    rng = random.Random(seed)
    found: list[Task] = []
    mode = Mode(host_target())
    for name in names:
        plan = driver.make_plan(driver.optimise(driver.load_graph(models.build(name)), mode), mode)
        tasks = [make_task(workload, mode) for workload, _ in plan.tasks()]
        rng.shuffle(tasks)
        found += [replace(task, name=f"{name}: {task.name}") for task in tasks[:count]]
    return found


def requests(
    tasks: Sequence[Task], builder: ProcessBuilder, seed: int
) -> list[tuple[str, MeasureRequest, dict[str, bytes]]]:
    """Build the default and a random schedule of each task, and prepare measurement requests.

    Each request is for one kernel. Returns the kernel's name, the request, and the files (blobs)
    that the request refers to. Schedules that fail to build are omitted.
    """
    rng = random.Random(seed)
    repeat = RepeatSettings(samples=10, round_seconds=0.0)
    found: list[tuple[str, MeasureRequest, dict[str, bytes]]] = []
    for task in tasks:
        reference = make_reference(task.workload)
        chosen = {"default": task.space.default(), "random": rng.choice(task.space.points)}
        for kind, schedule in chosen.items():
            (built,) = builder.submit(task, [schedule]).results()
            if built.status is not Status.OK:
                continue
            request, blobs = make_request(
                task.key,
                [BuiltCandidate(f"{len(found)}", built)],
                [reference],
                repeat,
                link=link_to_bytes,
                phase=Phase.SCREEN,
                job_id="harnesses",
                codegen_version=CODEGEN_VERSION,
            )
            found.append((f"{task.name} ({kind})", request, blobs))
    return found


def summary(found: Sequence[Paired], what: str) -> str:
    """A sentence for the report about the ratios and verdicts.

    `what` is "kernels" or "programs".
    """
    ratios = [each.ratio for each in found]
    control = [median(each.control) for each in found]

    def within(values: Sequence[float]) -> int:
        return sum(abs(value - 1) <= TIE_MARGIN for value in values)

    ties = sum(each.outcome == "tie" for each in found)
    others = {name: sum(each.outcome == name for each in found) for name in ("faster", "slower")}
    return (
        f"{len(found)} {what}: the median of the ratios B/A is {median(ratios):.4f}, their "
        f"geometric mean {geometric_mean(ratios):.4f}. {within(ratios)} medians lie within the tie "
        f"margin of {TIE_MARGIN:.1%} ({within(control)} of the control, each harness against "
        f"itself). By the verdict of finalists {ties} are ties, B is faster on "
        f"{others['faster']} and slower on {others['slower']}."
    )


def table(found: Sequence[Paired]) -> str:
    rows = [
        [
            each.name,
            f"{median(each.seconds[0]) * 1e6:.2f}",
            f"{median(each.seconds[1]) * 1e6:.2f}",
            f"{each.ratio:.4f}",
            f"{median(each.control):.4f}",
            each.outcome,
        ]
        for each in found
    ]
    return markdown_table(["", "A, µs", "B, µs", "B/A", "control", "verdict"], rows, text=1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harnesses")
    parser.add_argument("--other", type=Path, required=True, help="checkout whose harness is A")
    parser.add_argument("--kernels", type=int, default=5, help="workloads of each model")
    parser.add_argument("--rounds", type=int, default=5, help="of A B B A, for each kernel")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", nargs="*", default=KERNEL_MODELS)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    origin = Origin.of(options)
    found: dict[str, list[Paired]] = {"kernels": [], "programs": []}
    with ExitStack() as stack:
        builder = ProcessBuilder()
        stack.callback(builder.close)
        asked = requests(kernels(options.models, options.kernels, options.seed), builder, 1)
        sides = [stack.enter_context(SideProcess(checkout)) for checkout in (options.other, ROOT)]
        for name, request, blobs in asked:
            kernel = partial(measured_kernel, request, blobs, iter(range(1 << 30)))
            once = kernel(sides[1])
            if once is None or not LEAST_SECONDS <= once <= MOST_SECONDS:
                print(f"{name}: left out ({once})", flush=True)
                continue
            if (each := pairs(name, kernel, sides, options.rounds)) is not None:
                found["kernels"].append(each)
                print(f"{name}: {each.ratio:.4f} {each.outcome}", flush=True)
        for name in PROGRAMS:
            program = partial(measured_program, name)
            for side in sides:
                program(side)  # compiles it
            if (each := pairs(name, program, sides, 2 * options.rounds)) is not None:
                found["programs"].append(each)
                print(f"{name}: {each.ratio:.4f} {each.outcome}", flush=True)
    lines = ["# Two harnesses on one machine", "", __doc__.split("\n\n")[1], "", origin.sentence()]
    for what, every in found.items():
        if every:
            lines += ["", f"## {what.capitalize()}", "", summary(every, what), "", table(every)]
    options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
