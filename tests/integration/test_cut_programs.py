"""Programs with different kernels for different sizes: their results, and their contents."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from benchmarks.dynamic_models import dynamic_bert
from tests.guarded_programs import GuardedExecutable
from tests.kernels import in_child
from tilewright.compiler.driver import load_graph, load_program, make_plan, optimise
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.frontend.dimensions import model_ports
from tilewright.compiler.frontend.model_file import read_model
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.intervals import pieces
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.artifacts import save_artifact
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder
from tilewright.compiler.program.kernels import KernelCache
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.compiler.runtime.program import SizeBranch
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.sizes.ranges import parse_range
from tilewright.compiler.targets.host import resolve_target
from tilewright.service import cli

SIZES = (1, 2, 3, 15, 16, 17, 37, 127, 128, 129, 200)
HOST = resolve_target("host")

KERNELS = KernelCache()
"""Tests share their compiled kernels."""


@dataclass
class Drawn:
    """A schedule source with another schedule for every piece; it lacks those in `dropped`."""

    plan: GraphPlan
    dropped: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = {workload.key: _drawn(workload) for workload, _ in self.plan.tasks()}

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        self.asked.append(workload_key)
        return None if workload_key in self.dropped else self.known.get(workload_key)


def _drawn(workload: Workload) -> Schedule:
    """A schedule that is not the default, if there is one that lowers."""
    space = schedule_space(workload, Mode(HOST))
    draw = Random(workload.key)
    for schedule in draw.sample(space.points, min(20, len(space))):
        try:
            lower_schedule(workload, schedule, Mode(HOST))
        except CompilerError:
            continue
        if schedule != space.default():
            return schedule
    return space.default()


@pytest.fixture(scope="module")
def model() -> bytes:
    small = dynamic_bert(layers=1, hidden=32, heads=2, intermediate=64, vocabulary=50)
    return bytes(small.SerializeToString())


@pytest.fixture(scope="module")
def plan(model: bytes) -> GraphPlan:
    dims = {"batch": 1, "sequence": parse_range("sequence", "1..200")}
    return make_plan(optimise(load_graph(model, dims), Mode(HOST)), Mode(HOST))


@pytest.fixture(scope="module")
def runs(model: bytes) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    session = onnxruntime.InferenceSession(model)
    found = []
    for size in SIZES:
        arrays = [
            np.asarray(np.arange(size)[None] % 2 + number, np.int64)
            for number, _ in enumerate(session.get_inputs())
        ]
        named = dict(zip((each.name for each in session.get_inputs()), arrays, strict=True))
        found.append((arrays, session.run(None, named)))
    return found


@pytest.fixture(scope="module")
def source(plan: GraphPlan) -> Drawn:
    return Drawn(plan)


@pytest.fixture(scope="module")
def cut(plan: GraphPlan, source: Drawn) -> CompiledProgram:
    return ProgramBuilder(source, Mode(HOST), kernels=KERNELS).build(plan)


def test_every_interval_has_the_schedule_that_is_known_of_it(
    plan: GraphPlan, cut: CompiledProgram, source: Drawn
) -> None:
    assert {key: cut.schedules[key] for key in source.known} == source.known
    assert cut.tuned == source.known.keys()
    branches = [each for each in cut.program.walk() if isinstance(each, SizeBranch)]
    borders = {each.last for each in branches}
    assert borders == {1, 16, 128} and {each.dimension.name for each in branches} == {"sequence"}
    whole = [step for step in plan.kernels if len(pieces(step.workload)) > 1]
    assert len(branches) >= len(whole), "each is cut somewhere"


def test_dimensions_may_have_the_names_by_which_kernels_count_theirs() -> None:
    """Kernels name them s0, s1 in order of appearance; here s1 comes first."""
    text = "<ir_version: 8, opset_import: ['' : 17]> m (float[s1,s0,9] x) => (y) {y = MatMul(x, w)}"
    model = onnx.parser.parse_model(text.replace("'", '"'))
    weights = np.arange(63, dtype=np.float32).reshape(9, 7)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    dims = {name: parse_range(name, f"1..{high}") for name, high in (("s0", 200), ("s1", 5))}
    plan = make_plan(optimise(load_graph(model.SerializeToString(), dims), Mode(HOST)), Mode(HOST))
    cut = ProgramBuilder(Drawn(plan), Mode(HOST), kernels=KERNELS).build(plan)
    assert "s0" in cut.program.borders
    executable = load_program(cut)
    for size in SIZES:
        x = np.arange(3 * size * 9, dtype=np.float32).reshape(3, size, 9) % 8
        assert np.array_equal(executable.run([x])[0], x @ weights)


def test_cut_programs_keep_to_their_memory_on_both_sides_of_every_border(
    cut: CompiledProgram, runs: list[tuple[list[np.ndarray], list[np.ndarray]]]
) -> None:
    executable = load_program(cut)

    def work(late: bool) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            guarded = GuardedExecutable(executable, monkeypatch, late=late)
            for arrays, expected in Random(1).sample(runs, len(runs)):
                sizes = {"sequence": arrays[0].shape[1]}
                for mine, theirs in zip(guarded.run(arrays, sizes), expected, strict=True):
                    np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)

    for late in (False, True):
        in_child(partial(work, late))


def test_artifacts_hold_the_intervals(
    model: bytes,
    plan: GraphPlan,
    source: Drawn,
    tmp_path: Path,
    runs: list[tuple[list[np.ndarray], list[np.ndarray]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ports = model_ports(read_model(model).proto.graph).fixed({"batch": 1})
    save_artifact(
        {(): plan}, ProgramBuilder(source, Mode(HOST), kernels=KERNELS), tmp_path / "made", ports
    )
    manifest = json.loads((tmp_path / "made" / "manifest.json").read_text())
    assert '"last"' in json.dumps(manifest)
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    assert cli.run(["show", "graph", str(tmp_path / "made")]) == 0
    assert "after sequence 1 and 16 and 128" in capsys.readouterr().out
    loaded = load_artifact(tmp_path / "made")
    for arrays, expected in runs:
        for mine, theirs in zip(loaded.run(arrays), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)


def test_untuned_weights_lie_in_memory_once(plan: GraphPlan) -> None:
    untuned = ProgramBuilder(None, Mode(HOST), kernels=KERNELS).build(plan).program
    kept = sum(array.nbytes for array in plan.graph.constants.values())
    assert untuned.weight_bytes < 1.5 * kept
    branches = [each for each in untuned.walk() if isinstance(each, SizeBranch)]
    assert not branches, "nothing is known of the intervals"


def test_kernels_of_some_sizes_give_way_to_a_limit_of_packed_weights(
    plan: GraphPlan, cut: CompiledProgram, source: Drawn
) -> None:
    untuned = ProgramBuilder(None, Mode(HOST), kernels=KERNELS).build(plan).program.weight_bytes
    assert cut.program.weight_bytes > untuned
    limited = ProgramBuilder(source, Mode(HOST), weight_limit_bytes=untuned, kernels=KERNELS).build(
        plan
    )
    assert limited.program.weight_bytes <= untuned
    assert limited.tuned, "what packs nothing keeps its schedules"


def test_what_nobody_tuned_keeps_the_default_of_the_range(plan: GraphPlan, source: Drawn) -> None:
    workload = next(
        step.workload
        for step in plan.kernels
        if len(pieces(step.workload)) == 4 and any(b.constant for b in step.workload.inputs)
    )
    one, few, many, most = (piece.workload.key for piece in pieces(workload))
    some = Drawn(plan, {one, many, most})
    some.known = {few: source.known[few]}
    made = ProgramBuilder(some, Mode(HOST), kernels=KERNELS).build(plan)
    default = ProgramBuilder(None, Mode(HOST), kernels=KERNELS).build(plan)
    assert made.schedules[few] == source.known[few]
    assert made.tuned == {few}
    for key in (one, many, most):
        assert made.schedules[key] == default.schedules[key]
