"""Compare digests of everything that the compiler generates for a set of models: `make digests`.

Each model of `benchmarks.digest_models` is compiled for the described targets, up to the LLVM IR.
`benchmarks/data/digests.txt` has a line per model and target, with five digests:

- plan: the optimised graph with canonical names of values, its division into kernels, the layouts,
  and the padding of tensors. Models that are divided at sizes known only at run time have several
  parts; their order is included.
- kernels: the LLVM IR of every kernel, and the schedule of every workload (fused subgraph).
- program: the program's JSON (instructions, buffers and memory) with canonical kernel names.
- values: the values of the imported graph that the program's buffers contain
  (`service.jobs.evidence.correspondence`).
- space: the parameters and schedules of each schedule space, and the LLVM IR of 16 random schedules
  per workload. This digest is computed for one target per workload, which the workload's key
  selects.

Each pair of model and target is compiled in one mode (threads, numerics, precision, caches in
place). A hash of both names selects the mode from MODES. Digests do not depend on Python's hash
seed or on the CPU. Models are built without calibration (`digest_models`). Folded constants have
the same bits on CPUs with other vector instructions, as a comparison with the baseline code of
NumPy and OpenBLAS showed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import re
import sys
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any, cast, get_args
from unittest.mock import patch

import llvmlite
import numpy as np

from benchmarks.digest_models import DIGESTED
from tilewright.compiler import driver, memo
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError, ScheduleError
from tilewright.compiler.frontend.model_file import ReadModel, read_model, with_tensors
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.text import INLINE_ELEMENTS
from tilewright.compiler.graph.text import digest as array_digest
from tilewright.compiler.mode import Mode
from tilewright.compiler.passes.dead_code import dead_code
from tilewright.compiler.passes.pipeline import PASSES
from tilewright.compiler.plan.intervals import pieces
from tilewright.compiler.plan.plan import BranchStep, GraphPlan, LoopStep, Step, bodies_of
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program import kernels
from tilewright.compiler.program.build import BuiltKernel, LoweredKernel, lower_workload
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder
from tilewright.compiler.runtime.kernel import BufferSpec, aligned_bytes
from tilewright.compiler.runtime.packing import Array, Bytes
from tilewright.compiler.runtime.program import Instruction
from tilewright.compiler.runtime.program_json import program_to_json
from tilewright.compiler.runtime.segment_tree import segments_to_json
from tilewright.compiler.runtime.segments import SegmentBoundary
from tilewright.compiler.runtime.weights import PackedWeights
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.schedule.templates import templates
from tilewright.compiler.sizes.ranges import SizeRange
from tilewright.compiler.targets.target import Target, known_targets
from tilewright.compiler.timings import Timings
from tilewright.service.jobs.evidence.correspondence import Shown, correspondence
from tilewright.service.jobs.evidence.observation import written
from tilewright.service.jobs.plan.planning import ModelRequest, Planned
from tilewright.service.jobs.plan.segment_planning import plan_programs

FILE = Path(__file__).parent / "data" / "digests.txt"

PARTS = ("plan", "kernels", "program", "values", "space")

SAMPLES = 16
"""Number of random schedules per workload that are lowered."""


MODES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "threads": {"threads": 4},
    "strict": {"numerics": "strict", "in_place": False},
    "loose": {"threads": 4, "numerics": "loose"},
    "bfloat16": {"precision": DType.BFLOAT16},
    "float16": {"threads": 4, "precision": DType.FLOAT16, "in_place": False},
}
"""The fields of each mode that differ from the default mode, by a name for the mode."""

SAMPLED = "loose"
"""In this mode, each piece of a divided range has its own schedule, as after tuning."""

Digests = Mapping[str, str]
"""A short digest for each name in PARTS."""


@dataclass(slots=True)
class Found:
    """The texts to digest for one model and target, by part, such as "plan".

    `occurred` names the compiler features that were used for the model, such as passes and
    algorithms.
    """

    texts: dict[str, list[str]] = field(default_factory=lambda: {part: [] for part in PARTS})
    occurred: set[str] = field(default_factory=set)

    def digests(self) -> Digests:
        return {part: _short(*lines) for part, lines in self.texts.items()}


def _short(*texts: str) -> str:
    """The first eight hexadecimal digits of the SHA-256 of the texts; "-" if none are given."""
    if not texts:
        return "-"
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]


def _json(data: object) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def mode_of(model: str, target: str) -> str:
    """The name of the compiler options (a mode) for a model and a target.

    A mode fixes the number of threads, the numerics and the precision. A hash of both names selects
    one of MODES.
    """
    return list(MODES)[int(_short(model, target), 16) % len(MODES)]


def digest_model(model: str, target: Target) -> Found:
    """Compile a model for a target, and collect the texts to digest, such as the plan.

    If the compiler rejects the model, the text of the plan is the type of the error.
    """
    found = Found()
    for name in DIGESTED[model].builds:
        if target.name in _targets(model, name):
            _digest_given(model, name, target, found)
    return found


def _digest_given(model: str, name: str, target: Target, found: Found) -> None:
    mode, given = Mode(target, **MODES[mode_of(model, target.name)]), _read(model, name)
    request = ModelRequest(cast(bytes, given), mode)  # a model that is read is passed on as it is
    with _without_llvm(), _imported_once(given), _passes_seen(found):
        try:
            programs = plan_programs(request, DIGESTED[model].dims)
            for planned in programs:
                _digest_program(model, planned, found)
            if programs[0].stages is not None:
                found.texts["plan"].append(_json(_cuts(programs[0].stages)))
                found.occurred.add("stages")
        except CompilerError as error:
            found.texts["plan"].append(f"refused: {type(error).__name__}")


def _digest_program(model: str, planned: Planned, found: Found) -> None:
    plan, texts = planned.served_plan, found.texts
    renamed, names = canonical(plan)
    texts["plan"] += [_json(renamed.to_json(digests=False)), *_constants(renamed)]
    found.occurred |= {f"step {type(step).__name__}" for step, _ in plan.walk()}
    if plan.growing:
        found.occurred.add("pass growing_caches")
    sampled = mode_of(model, planned.mode.target.name) == SAMPLED
    known = SampledSchedules(planned) if sampled else None
    builder = ProgramBuilder(known, planned.mode, any_rows=planned.open is not None)
    compiled = builder.into(PlacedWeights()).build(plan)
    program = compiled.program
    found.occurred |= {f"instruction {type(each).__name__}" for each in program.walk()}
    found.occurred |= {f"algorithm {each.algorithm}" for each in compiled.schedules.values()}
    texts["kernels"] += [kernel.name for kernel in program.kernels]
    texts["kernels"].append(_json({k: s.to_json() for k, s in compiled.schedules.items()}))
    texts["program"].append(_unnamed(_json(program_to_json(program))))
    texts["values"].append(_values(planned, compiled, names))
    for workload, _ in planned.workloads:
        if _home(workload, model) == planned.mode.target.name:
            texts["space"].append(_space(workload, planned, found))


def _cuts(cut: SegmentBoundary[int]) -> dict[str, Any]:
    """Return the tree of a model's parts as JSON, without explanations.

    A model is divided into parts (programs) where a size is known only at run time. The omitted
    explanations give the reason for each division.

    Args:
        cut: the first division, with the parts that follow it.
    """

    def bare(data: dict[str, Any]) -> dict[str, Any]:
        stages = [
            {**stage, "behind": stage["behind"] and bare(stage["behind"])}
            for stage in data["stages"]
        ]
        return {**data, "reason": "", "stages": stages}

    return bare(segments_to_json(cut))


@contextmanager
def _without_llvm() -> Iterator[None]:
    """Context in which LLVM does not compile kernels, because only its input is digested."""

    def uncompiled(
        lowered: LoweredKernel, target: Target, timings: Timings | None = None
    ) -> BuiltKernel:
        return BuiltKernel(b"", lowered.spec, lowered.nest, lowered.digest)

    with patch.object(kernels, "compile_lowered", uncompiled):
        yield


@contextmanager
def _passes_seen(found: Found) -> Iterator[None]:
    """Context that records the passes which change a graph while it is optimised.

    Passes over the bodies of control-flow nodes are not recorded.
    """
    optimise = driver.optimise

    def seen(graph: Graph, mode: Mode, observer: object = None, *more: Any, **named: Any) -> Graph:
        last = graph

        def observe(name: str, after: Graph) -> None:
            nonlocal last
            if after is not last:
                found.occurred.add(f"pass {name}")
            last = after

        return optimise(graph, mode, observe, *more, **named)

    with patch.object(driver, "optimise", seen):
        yield


class SampledSchedules:
    """A source of random schedules, for the workloads of intervals of a dynamic dimension.

    The compiler divides the range of a dynamic dimension into intervals. Each interval gets its own
    schedule, as after tuning. The seed is the key of the interval's workload.
    """

    def __init__(self, planned: Planned) -> None:
        cut = (pieces(step.workload) for step in planned.served_plan.kernels)
        self._pieces = {p.workload.key: p.workload for each in cut if len(each) > 1 for p in each}
        self._mode = planned.mode

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        """The first of SAMPLES random schedules that can be lowered to a loop nest.

        The result is None if no schedule can be lowered, or if the workload does not belong to an
        interval of a divided range.
        """
        workload = self._pieces.get(workload_key)
        if workload is None:
            return None
        for schedule in _samples(workload, self._mode):
            if _code(workload, schedule, self._mode) != REFUSED:
                return schedule
        return None


class PlacedWeights(PackedWeights):
    """Computes where packed weights lie in the memory block of all weights, without packing them.

    Equal weights share an offset.
    """

    def __init__(self) -> None:
        super().__init__()
        self._placed: dict[tuple[str, BufferSpec], int] = {}

    @property
    def room(self) -> int:
        return 1 << 62

    def built(self) -> Bytes:
        return np.empty(0, np.uint8)

    def add(self, spec: BufferSpec, source: Array) -> int:
        key = _array_digest(source), replace(spec, name="", source=-1)
        if key not in self._placed:
            self._placed[key] = self._end
            self._end += aligned_bytes(spec.bytes)
        return self._placed[key]

    def _pack(self, spec: BufferSpec, source: Array, size: int) -> Bytes:
        raise NotImplementedError

    def _keep(self, form: Bytes) -> None:
        raise NotImplementedError

    def _drop(self, form: Bytes) -> None:
        raise NotImplementedError

    def _at(self, offset: int, size: int) -> Bytes:
        raise NotImplementedError


_DIGESTS: dict[int, tuple[weakref.ref[Array], str]] = {}


def _array_digest(array: Array) -> str:
    """The digest of an array, cached by identity as long as the array exists."""
    known = _DIGESTS.get(id(array))
    if known is None or known[0]() is not array:
        known = _DIGESTS[id(array)] = weakref.ref(array), array_digest(array)
    return known[1]


def _constants(plan: GraphPlan) -> list[str]:
    """Digests of the large constants of a plan, whose elements the plan's JSON does not contain."""
    return [
        _array_digest(array)
        for graph in plan.graph.walk()
        for _, array in sorted(graph.constants.items())
        if array.size > INLINE_ELEMENTS
    ]


def _unnamed(text: str) -> str:
    """Replace the names of kernels in a text by numbers, in the order of their first occurrence."""
    numbers: dict[str, str] = {}
    return _KERNEL.sub(lambda name: numbers.setdefault(name[0], f"kernel_{len(numbers)}"), text)


_KERNEL = re.compile(r"tw_[0-9a-f]{24}")


def canonical(plan: GraphPlan, *, inner: bool = False) -> tuple[GraphPlan, dict[str, str]]:
    """Copy a plan, and replace the names of its values by numbers such as `%3`.

    Inputs and outputs keep their names, because callers use them. If `inner` is true, the plan is
    the body of a control-flow node, and its inputs and outputs are renamed too. Returns the new
    plan, and a mapping from old to new names.
    """
    graph, names = canonical_graph(plan.graph, inner=inner)

    def step_with(step: Step) -> Step:
        inputs = tuple(names[value] for value in step.inputs)
        step = replace(step, inputs=inputs, output=names[step.output])
        bodies = [canonical(body, inner=True)[0] for body in bodies_of(step)]
        match step:
            case LoopStep():
                return replace(step, body=bodies[0])
            case BranchStep():
                return replace(step, then=bodies[0], otherwise=bodies[1])
            case _:
                return step

    placements = {names[value]: place for value, place in plan.placements.items()}
    return (
        GraphPlan(graph, tuple(map(step_with, plan.steps)), placements, plan.growing),
        names,
    )


def canonical_graph(graph: Graph, *, inner: bool = False) -> tuple[Graph, dict[str, str]]:
    """Copy a graph, and replace the names of its values by numbers such as `%3`.

    Each node is named after its first output. Inputs and outputs keep their names, unless `inner`
    says that the graph is the body of a control-flow node. Returns the new graph, and a mapping
    from old to new names.
    """
    kept = () if inner else (*graph.inputs, *graph.outputs)
    names = {value: value for value in kept}
    used = (value for node in graph.nodes for value in (*node.inputs, *node.outputs))
    for value in (*graph.inputs, *used, *graph.outputs, *sorted(graph.types)):
        names.setdefault(value, f"%{len(names)}")

    def node_with(node: Node) -> Node:
        attrs = tuple(
            (key, canonical_graph(value, inner=True)[0] if isinstance(value, Graph) else value)
            for key, value in node.attrs
        )
        outputs = tuple(names[value] for value in node.outputs)
        inputs = tuple(names[value] for value in node.inputs)
        return Node(outputs[0], node.op, inputs, outputs, attrs)

    return (
        Graph(
            graph.name if not inner else "body",
            tuple(names[value] for value in graph.inputs),
            tuple(names[value] for value in graph.outputs),
            tuple(map(node_with, graph.nodes)),
            {names[value]: kind for value, kind in graph.types.items()},
            {names[value]: array for value, array in graph.constants.items()},
        ),
        names,
    )


def _values(planned: Planned, compiled: CompiledProgram, names: Mapping[str, str]) -> str:
    """Describe in JSON which values of the imported graph can be read from the program's buffers.

    The text has the placement of each stored value. For each value of the imported graph, it has
    the nodes that reconstruct the value from stored values. `names` are the canonical names of
    values.
    """
    program = compiled.program if planned.open is None else compiled.program.at(dict(planned.sizes))
    observed = written(planned.plan, program)
    if observed is None:
        return "none"
    imported = canonical_graph(planned.graph)[1]
    shown = correspondence(planned.graph, planned.plan.graph, (each.value for each in observed))
    found = [[names[each.value], each.after, str(each.placement)] for each in observed]
    return _json(
        [
            found,
            {
                imported[value]: [
                    [
                        names[each.value],
                        [names[origin] for origin in each.origins],
                        each.whole,
                        _moves(each, names),
                    ]
                    for each in some
                ]
                for value, some in shown.items()
            },
        ]
    )


def _moves(shown: Shown, names: Mapping[str, str]) -> list[object]:
    """Return the nodes that reconstruct a value of the imported graph from stored values, as JSON.

    Intermediate values get new names.

    Args:
        shown: the value to reconstruct, with its nodes.
        names: the canonical names of the stored values.
    """
    own = dict(names)
    return [
        [
            node.op,
            str(node.attrs),
            [own.setdefault(value, f"+{len(own)}") for value in (*node.inputs, *node.outputs)],
        ]
        for node in (shown.moves.nodes if shown.moves else ())
    ]


def targets_of(model: str) -> list[str]:
    """The names of the targets for which a line of the digests file is compiled."""
    found = {target for name in DIGESTED[model].builds for target in _targets(model, name)}
    return [name for name in known_targets() if name in found]


def _targets(model: str, name: str) -> list[str]:
    """The names of the targets for which a model is compiled.

    To save time, these are not all targets for each model. A line of the digests file has one
    model, or several small models. If a line has several models, each model is compiled for a
    single target, which a hash of its name selects. A large model is compiled for a random part of
    the targets.

    Args:
        model: the name of the line.
        name: the name of the model on the line.
    """
    if len(DIGESTED[model].builds) > 1:
        return [_chosen(name, known_targets())]
    share = DIGESTED[model].share
    return [name for name in known_targets() if int(_short(name, model), 16) % share == 0]


def _chosen(key: str, targets: Iterable[str]) -> str:
    """Select a target for a key by rendezvous hashing.

    A new target takes over some keys, and leaves all others unchanged.
    """
    return max(targets, key=lambda name: _short(key, name))


@cache
def _home(workload: Workload, model: str) -> str:
    """The name of the target for which the schedule space of a workload is digested.

    To save time, a space is digested for only one of the model's targets. The workload's key
    selects the target.
    """
    return _chosen(workload.key, targets_of(model))


def _space(workload: Workload, planned: Planned, found: Found) -> str:
    """Describe the schedule space of a workload (a fused subgraph) as text.

    The text has the schedule parameters, a digest of all schedules, and the code of some random
    schedules. Their algorithms are added to the features in `found`.
    """
    space = schedule_space(workload, planned.mode)
    lines = [workload.key]
    for each in space.subspaces:
        lines += [each.algorithm, str(each.knobs), str(each.default)]
    lines.append(_short(*map(str, space.points)))
    for schedule in _samples(workload, planned.mode):
        lines += [str(schedule), _code(workload, schedule, planned.mode)]
        found.occurred.add(f"algorithm {schedule.algorithm}")
    return "\n".join(lines)


def _samples(workload: Workload, mode: Mode) -> list[Schedule]:
    """At most SAMPLES random points of a workload's schedule space.

    The workload's key is the seed.
    """
    points = schedule_space(workload, mode).points
    return Random(workload.key).sample(points, min(SAMPLES, len(points)))


REFUSED = "refused"


def _code(workload: Workload, schedule: Schedule, mode: Mode) -> str:
    try:
        lowered = lower_workload(workload, schedule, mode)
    except ScheduleError:
        return REFUSED
    return f"{lowered.digest} {_unnamed(_json(lowered.spec.to_json()))}"


def required() -> set[str]:
    """Names of the compiler features that must occur in some model, such as passes and algorithms.

    The pass `dead_code` is exempt, because it never finds anything to remove. The importer creates
    no dead nodes, and the other passes remove the nodes that they make dead.
    """
    return {
        *(f"pass {step.__name__}" for step in PASSES if step is not dead_code),
        *(f"pass {name}" for name in ("widen", "mixed_precision", "growing_caches")),
        *(f"algorithm {name}" for template in templates() for name in template.algorithms),
        *(f"step {kind.__name__}" for kind in get_args(Step)),
        *(f"instruction {kind.__name__}" for kind in get_args(Instruction)),
        "stages",
    }


@lru_cache(1)
def _read(model: str, name: str) -> ReadModel:
    proto = DIGESTED[model].builds[name]()
    return with_tensors(read_model(proto.SerializeToString()))


_Sizes = tuple[tuple[str, SizeRange], ...]


@contextmanager
def _imported_once(model: ReadModel) -> Iterator[None]:
    """Context in which the graphs imported from a model are shared by all targets."""

    def shared(read: ReadModel, dims: Mapping[str, SizeRange]) -> Graph:
        assert read is model
        return _imported(read, tuple(sorted(dims.items())))

    with patch.object(driver, "import_model", shared):
        yield


@lru_cache(64)
def _imported(model: ReadModel, dims: _Sizes) -> Graph:
    return import_model(model, dict(dims))


def _lines(model: str, targets: Sequence[str]) -> tuple[str, dict[str, Digests], set[str], float]:
    """Digest a model for several targets, in a worker process.

    Returns the model, the digests by target, the compiler features that were used (such as passes
    and algorithms), and the seconds taken.
    """
    logging.disable(logging.WARNING)  # the quantiser's advice
    warnings.simplefilter("ignore")  # branches that contradict themselves
    began = time.perf_counter()
    lines, occurred = {}, set[str]()
    for name in targets:
        found = digest_model(model, known_targets()[name])
        lines[name] = found.digests()
        occurred |= found.occurred
    memo.forget()
    for each in (_home, _imported, _read):
        each.cache_clear()
    return model, lines, occurred, time.perf_counter() - began


def read_file(path: Path = FILE) -> tuple[dict[tuple[str, str], Digests], set[str]]:
    """Read the digests file.

    Returns the digests of each model and target, and the compiler features (such as passes and
    algorithms) that at least one model uses.
    """
    digests: dict[tuple[str, str], Digests] = {}
    occurred = set()
    for line in path.read_text().splitlines():
        if line.startswith("+ "):
            occurred.add(line.removeprefix("+ "))
        elif line and not line.startswith("#"):
            model, target, *columns = line.split(" ")
            digests[model, target] = dict(zip(PARTS, columns, strict=True))
    return digests, occurred


def differences(
    expected: Mapping[tuple[str, str], Digests], found: Mapping[tuple[str, str], Digests]
) -> list[str]:
    """One line for each model and target whose digests differ from the expected ones.

    It names the parts that differ.
    """
    differing = []
    for (model, target), digests in found.items():
        known = expected.get((model, target))
        if known is None:
            differing.append(f"{model} {target}: not in the file")
        elif parts := [part for part in PARTS if known[part] != digests[part]]:
            differing.append(f"{model} {target} ({mode_of(model, target)}): {', '.join(parts)}")
    return differing


def _file_text(digests: Mapping[tuple[str, str], Digests], occurred: set[str]) -> str:
    """The text of the digests file, in the order of the models and targets."""
    lines = [
        " ".join((model, target, *(digests[model, target][part] for part in PARTS)))
        for model in DIGESTED
        for target in targets_of(model)
        if (model, target) in digests
    ]
    return "\n".join([_HEAD, *(f"+ {each}" for each in sorted(occurred)), *lines, ""])


_HEAD = f"""\
# Written by `make digests ARGS=--update` (benchmarks/digests.py).
# Columns: model, target, {", ".join(PARTS)}. Lines with "+" say what occurs in some model.
# llvmlite {llvmlite.__version__}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: compare the digests with the file, or update the file.

    The exit code is 1 if digests differ, or if no model uses a required compiler feature (such as a
    pass or an algorithm).
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digests")
    parser.add_argument("--update", action="store_true", help="write the file anew")
    parser.add_argument("--models", nargs="+", default=list(DIGESTED), choices=list(DIGESTED))
    every = list(known_targets())
    parser.add_argument("--targets", nargs="+", default=every, choices=every)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--times", action="store_true", help="say what each model takes")
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    known, known_to_occur = read_file()
    digests: dict[tuple[str, str], Digests] = {}
    occurred: set[str] = set()
    with ProcessPoolExecutor(given.processes) as pool:
        runs = [
            pool.submit(_lines, model, [t for t in targets_of(model) if t in given.targets])
            for model in given.models
        ]
        for run in as_completed(runs):
            model, lines, seen, seconds = run.result()
            found = {(model, target): line for target, line in lines.items()}
            digests |= found
            occurred |= seen
            if given.update:  # what is interrupted goes on with --models
                FILE.write_text(_file_text(known | digests, known_to_occur | occurred))
            differing = [] if given.update else differences(known, found)
            if given.times or differing:
                print("\n".join([f"{model}: {seconds:.1f} s", *differing]), flush=True)
    print(f"{len(digests)} models and targets in {time.perf_counter() - began:.0f} s")
    whole = len(digests) == sum(len(targets_of(model)) for model in DIGESTED)
    absent = sorted(required() - occurred) if whole else []
    for each in absent:
        print(f"{each} occurs in no model")
    if given.update:
        if whole:
            FILE.write_text(_file_text(digests, occurred))
        return bool(absent)
    differing = differences(known, digests)
    print(f"{len(differing)} differ")
    return bool(differing or absent)


if __name__ == "__main__":
    sys.exit(main())
