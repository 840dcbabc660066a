"""Which plan a job tunes: found once, within a share of the budget, and known from then on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.service.devices import FakeDevice
from tests.unit.tuner.fakes import FakeBuilder, FakeQueue
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.choices import RULE
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.program import KernelCall
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.service.jobs import graph_choice
from tilewright.service.jobs import known_plan as known_plan_module
from tilewright.service.jobs.device import DeviceError
from tilewright.service.jobs.graph_choice import choose_plan, confirm_plan, race_plans
from tilewright.service.jobs.job_spec import JobBudget
from tilewright.service.jobs.known_model import KnownModel
from tilewright.service.jobs.known_plan import keep_choice, known_plan, model_digest
from tilewright.service.jobs.local_device import LocalDevice
from tilewright.service.jobs.planning import ModelRequest, Planned, plan_model
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.events import Ended, Finished
from tilewright.tuner.fixed_trials import FixedTrials
from tilewright.tuner.measure.model_runs import Race
from tilewright.tuner.measure.references import ReferenceCache
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.measure.wire import MeasureRequest
from tilewright.tuner.tasks import Task

ours = partial(FakeDevice, trusted=True)


def model_bytes() -> bytes:
    """Two layers of a product and a sigmoid."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for layer in range(2):
        weight = rng.standard_normal((256, 256)).astype(np.float32) / 16
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        source = "x" if layer == 0 else "y0"
        nodes.append(helper.make_node("MatMul", [source, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Sigmoid", [f"m{layer}"], [f"y{layer}"]))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 256])],
        [helper.make_tensor_value_info("y1", TensorProto.FLOAT, [64, 256])],
        weights,
    )
    data: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)]
    ).SerializeToString()
    return data


MODEL = model_bytes()


def plan(target: str = "host") -> Planned:
    return plan_model(ModelRequest(MODEL, Mode(resolve_target(target))))


@dataclass
class Queue(FakeQueue):
    """Runs a workload in the seconds that `by_key` has for it, else in one."""

    seconds: Callable[[Any], float] = lambda schedule: 1.0
    by_key: dict[str, float] = field(default_factory=dict)

    def _measure(self, request: MeasureRequest) -> None:
        self.seconds = lambda schedule: self.by_key.get(request.key.workload_key, 1.0)
        super()._measure(request)


@pytest.fixture
def ratios() -> list[float]:
    """What alternatives take of the rule's plan, in the first race and in those after it."""
    return [0.9]


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch, ratios: list[float]) -> list[int]:
    """Plans in turns, made up. How many were run beside the rule's, each time."""
    raced: list[int] = []

    def run(rule: GraphPlan, others: Sequence[GraphPlan], *more: Any, **_: Any) -> Race:
        (device,) = [each for each in more if isinstance(each, FakeDevice)]
        raced.append(len(others))
        ratio = ratios[min(len(raced), len(ratios)) - 1]
        found = tuple(Comparison("rule", (ratio,) * 8) for _ in others)
        return Race(1.0, found, "" if device.trusted else device.worker)

    monkeypatch.setattr(graph_choice, "race_plans", run)
    link = partial(FixedTrials, link=lambda objects: b"".join(objects))
    monkeypatch.setattr(graph_choice, "FixedTrials", link)
    return raced


def device(planned: Planned) -> Queue:
    """The products with their sigmoids are slow; each alone is fast."""
    return Queue(by_key={w.key: 3.0 for w, _ in planned.workloads})


def choose(
    planned: Planned, storage: Storage, runner: Queue, budget: JobBudget | None = None, **more: Any
) -> graph_choice.ChosenPlan:
    return choose_plan(
        planned,
        storage,
        more.pop("builder", None) or FakeBuilder(),
        ours(runner=runner, runnable=more.pop("runnable", True)),
        budget or JobBudget(100),
        job_id=more.pop("job_id", "job"),
        token=more.pop("token", CancelToken()),
        references=ReferenceCache(),
        **more,
    )


@dataclass
class Tuning:
    """A tune loop that remembers what it was given."""

    cancelled: bool = False
    given: list[tuple[list[str], JobBudget]] = field(default_factory=list)

    def __call__(self, tasks: list[Task], budget: JobBudget) -> Finished:
        self.given.append(([task.name for task in tasks], budget))
        ended = Ended.CANCELLED if self.cancelled else Ended.TRIALS
        return Finished((), (), 0, 0.0, ended=ended)


def settled(storage: Storage, runner: Queue, tune: Tuning | None = None, **more: Any) -> Planned:
    """The plan that a whole job serves."""
    chosen = choose(plan(), storage, runner, **more)
    return confirm_plan(chosen, storage, ours(), tune or Tuning(), job_id="job")


def operators(planned: Planned) -> list[tuple[str, ...]]:
    return [workload.operators for workload, _ in planned.workloads]


def test_builders_start_before_alternatives_are_found(storage: Storage, race: list[int]) -> None:
    builder = FakeBuilder()
    choose(plan(), storage, device(plan()), builder=builder)
    assert builder.started == 1


def test_a_plan_is_found_once(storage: Storage, race: list[int]) -> None:
    first = settled(storage, device(plan()))
    assert operators(plan()) == [("matmul", "sigmoid")]
    assert operators(first) == [("matmul",), ("sigmoid",)]
    assert race == [1, 1]
    idle, resting = Queue(stuck=True), FakeBuilder()
    again = choose(plan(), storage, idle, builder=resting)
    assert not resting.started
    assert (again.planned.plan, again.budget) == (first.plan, JobBudget(100))
    assert again.planned.decision == first.decision
    tune = Tuning()
    assert confirm_plan(again, storage, ours(), tune, job_id="job") == again.planned
    assert not idle.submitted and not tune.given and race == [1, 1]
    assert known_plan(plan(), storage).plan == first.plan
    stored = {each.run_seconds for each in storage.plans.list(model_digest(MODEL))}
    assert stored == {1.0, 0.9}


@pytest.fixture(autouse=True)
def registered(storage: Storage) -> None:
    """The worker of another owner."""
    storage.workers.register("honest", [], {}, owner="honest", worker_id="honest")


def leased(runner: Queue, other: FakeDevice | None = None) -> FakeDevice:
    return FakeDevice(runner=runner, other=other)


def chosen_on(storage: Storage, board: FakeDevice, job_id: str) -> Planned:
    more: Any = {"token": CancelToken(), "references": ReferenceCache()}
    found = choose_plan(
        plan(), storage, FakeBuilder(), board, JobBudget(100), job_id=job_id, **more
    )
    return confirm_plan(found, storage, board, Tuning(), job_id=job_id)


@pytest.mark.parametrize("ratios", [[0.9, 0.9, 1.2], [1.2, 0.9], [0.9, 1.2, 0.9]])
def test_a_plan_about_which_workers_contradict_each_other_is_nobodys(
    storage: Storage, race: list[int]
) -> None:
    """The first says of the plan that it is faster, or that it is not; another says otherwise."""
    second = FakeDevice(worker="honest", owner="honest")
    served = chosen_on(storage, leased(device(plan()), second), "first")
    assert served.plan == plan().plan, "the rules' plan is safe"
    assert known_plan(plan(), storage).decision is None
    assert known_plan(plan(), storage, "first").decision is None


@pytest.mark.parametrize("ratios", [[0.9, 0.9, 0.9], [1.0, 1.0]])
def test_a_plan_that_another_worker_confirms_is_every_jobs(
    storage: Storage, race: list[int], ratios: list[float]
) -> None:
    second = FakeDevice(worker="honest", owner="honest")
    served = chosen_on(storage, leased(device(plan()), second), "first")
    assert race == [1] * len(ratios)
    stored = {each.run_seconds for each in storage.plans.list(model_digest(MODEL))}
    assert stored == ({1.0, 0.9} if 0.9 in ratios else {1.0})
    assert known_plan(plan(), storage).plan == served.plan
    again = chosen_on(storage, leased(Queue(stuck=True), second), "second")
    assert again.plan == served.plan and len(race) == len(ratios)


@pytest.mark.parametrize("ratios", [[0.9, 0.9, 1.0, 0.9]])
def test_a_plan_that_nobody_confirmed_is_chosen_anew_by_the_next_job(
    storage: Storage, race: list[int]
) -> None:
    """The second opinion was a tie."""
    second = FakeDevice(worker="honest", owner="honest")
    served = chosen_on(storage, leased(device(plan()), second), "first")
    assert operators(served) == [("matmul",), ("sigmoid",)] and len(race) == 3
    assert known_plan(plan(), storage).decision is None
    assert known_plan(plan(), storage, "first").plan == served.plan, "its own job believes it"
    chosen_on(storage, leased(device(plan()), second), "second")
    assert len(race) == 6 and known_plan(plan(), storage).plan == served.plan


@pytest.mark.parametrize("ratios", [[0.9]])
def test_what_one_owner_chose_is_chosen_anew_where_another_has_a_worker(
    storage: Storage, race: list[int]
) -> None:
    chosen_on(storage, leased(device(plan())), "alone")
    chosen_on(storage, leased(device(plan())), "alone still")
    assert len(race) == 3, "measured twice by one worker, and used"
    second = FakeDevice(worker="honest", owner="honest")
    for name in ("third", "fourth"):
        chosen_on(storage, leased(device(plan()), second), name)
    assert len(race) == 6, "once with the other owner's word"


def test_the_rules_kernels_are_tuned_too_before_their_plan_goes(
    storage: Storage, race: list[int]
) -> None:
    chosen = choose(plan(), storage, device(plan()))
    # the fused kernel counts for no task of the chosen plan; a third of the trials is kept for it
    assert (chosen.budget.trials, chosen.reserve) == (66, JobBudget(33))
    assert known_plan(plan(), storage).decision is None  # until it is confirmed
    tune = Tuning()
    served = confirm_plan(chosen, storage, ours(), tune, job_id="job")
    assert tune.given == [(["matmul k256 +sigmoid 64x256"], JobBudget(33))]
    assert served.plan == chosen.planned.plan
    assert served.decision is not None and served.decision["tuned_ratio"] == 0.9


def test_seconds_are_parted_as_trials_are(storage: Storage, race: list[int]) -> None:
    budget = JobBudget(100, seconds=3000.0)
    chosen = choose(plan(), storage, device(plan()), budget, clock=lambda: 7.0)
    assert chosen.reserve is not None
    assert chosen.budget == replace(budget, trials=66, seconds=pytest.approx(2000.0))
    assert chosen.reserve == replace(budget, trials=33, seconds=pytest.approx(1000.0))


@pytest.mark.parametrize("ratios", [[0.9, 1.0], [0.9, 1.2]])
def test_a_plan_that_is_no_faster_with_tuned_kernels_gives_way(
    storage: Storage, race: list[int]
) -> None:
    served = settled(storage, device(plan()))
    assert served.plan == plan().plan and race == [1, 1]
    assert served.decision is not None and served.decision["name"] == "by rule"
    assert "was faster untuned, and is not with tuned kernels" in served.decision["reason"]
    assert known_plan(plan(), storage).plan == plan().plan
    assert known_plan(plan(), storage).decision == served.decision


def test_a_job_cancelled_in_the_end_decides_nothing(storage: Storage, race: list[int]) -> None:
    settled(storage, device(plan()), Tuning(cancelled=True))
    assert race == [1] and known_plan(plan(), storage).decision is None


def test_what_was_chosen_and_why_is_told(storage: Storage, race: list[int]) -> None:
    decision = choose(plan(), storage, device(plan())).planned.decision
    assert decision is not None
    assert decision["name"] == "matmul float32[64,256]: sigmoid not with matmul (2 places)"
    assert "10.0 % less as a whole" in decision["reason"]
    (tried,) = decision["tried"]
    assert (tried["old_seconds"], tried["new_seconds"], tried["kernels"]) == (6.0, 4.0, 3)
    assert (tried["ratio"], tried["outcome"]) == (0.9, "faster")
    assert (decision["seconds"], decision["rule_seconds"]) == (0.9, 1.0)


def test_another_code_generation_knows_nothing(
    storage: Storage, race: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    settled(storage, device(plan()))
    for module in (graph_choice, known_plan_module):
        monkeypatch.setattr(module, "CODEGEN_VERSION", "another")
    assert known_plan(plan(), storage) == plan()
    runner = device(plan())
    assert settled(storage, runner, job_id="next").decision is not None
    assert runner.submitted and race == [1, 1, 1, 1]


def test_other_threads_and_sizes_know_nothing(storage: Storage, race: list[int]) -> None:
    settled(storage, device(plan()))
    for request in (
        replace(plan().request, mode=Mode(threads=2)),
        replace(plan().request, mode=Mode(numerics="strict")),
        replace(plan().request, dims={"batch": 2}),
    ):
        assert known_plan(replace(plan(), request=request), storage).decision is None


def test_a_plan_that_its_choice_no_longer_leads_to_is_not_used(storage: Storage) -> None:
    here = plan()
    decision = {"choice": RULE.to_json(), "name": "by rule"}
    keep_choice(replace(here, decision=decision), storage, None, job_id="", worker=None)
    assert known_plan(plan(), storage).decision == decision
    other = replace(here, plan=replace(here.plan, steps=here.plan.steps[:-1]))
    keep_choice(replace(other, decision=decision), storage, None, job_id="", worker=None)
    assert known_plan(plan(), storage).decision is None
    nonsense = {"choice": {"kept": 1}, "name": "?"}
    keep_choice(replace(here, decision=nonsense), storage, None, job_id="", worker=None)
    assert known_plan(plan(), storage).decision is None


def test_only_a_share_of_the_trials_is_spent(storage: Storage, race: list[int]) -> None:
    runner = device(plan())
    left = choose(plan(), storage, runner, JobBudget(14))  # two kernels, and three would be needed
    assert not runner.submitted and left.budget == JobBudget(14)
    assert left.planned.plan == plan().plan
    # more trials may find more: nothing is decided for good
    assert known_plan(plan(), storage).decision is None
    nothing = choose(plan(), storage, runner, JobBudget(0))
    assert nothing.planned == plan() and not runner.submitted


def test_a_job_of_few_seconds_tries_no_plans(storage: Storage, race: list[int]) -> None:
    runner, budget = device(plan()), JobBudget(100, 20.0)
    chosen = choose(plan(), storage, runner, budget)
    assert (chosen.planned, chosen.budget) == (plan(), budget)
    assert not runner.submitted and not race


def test_seconds_end_the_trying(storage: Storage, race: list[int]) -> None:
    ticks = iter(range(1000))
    runner = Queue(stuck=True)
    left = choose(plan(), storage, runner, JobBudget(100, 40.0), clock=lambda: float(next(ticks)))
    assert left.planned.plan == plan().plan and not race
    assert left.budget.seconds is not None and left.budget.seconds < 40.0
    assert known_plan(plan(), storage).decision is None


def test_a_cancelled_job_decides_nothing(storage: Storage, race: list[int]) -> None:
    token = CancelToken()
    token.cancel()
    choose(plan(), storage, device(plan()), token=token)
    assert not race and known_plan(plan(), storage).decision is None


def test_a_plan_that_does_not_compile_fails_no_job(
    storage: Storage, race: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Race:
        raise CompilerError("the fused workload of sigmoid has no schedule")

    monkeypatch.setattr(graph_choice, "race_plans", refuse)
    left = choose(plan(), storage, device(plan()))
    assert left.planned.plan == plan().plan and left.rule is None
    assert left.planned.decision is not None
    assert left.planned.decision["reason"].endswith("the fused workload of sigmoid has no schedule")
    assert known_plan(plan(), storage).decision is None


def test_where_the_device_cannot_run_the_target_the_kernels_decide(
    storage: Storage, race: list[int]
) -> None:
    here = plan("riscv64")
    chosen = choose(here, storage, device(here), runnable=False)
    assert not race and chosen.planned.decision is not None
    assert "none was run as a whole" in chosen.planned.decision["reason"]
    assert operators(chosen.planned) == [("matmul",), ("sigmoid",)]


def test_a_target_of_another_machine_is_raced_on_its_device(
    storage: Storage, race: list[int]
) -> None:
    here = plan("riscv64")
    chosen = choose(here, storage, device(here))
    assert race == [1] and chosen.planned.decision is not None
    assert "10.0 % less as a whole" in chosen.planned.decision["reason"]


def test_a_device_that_fails_decides_nothing_for_good(
    storage: Storage, race: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any, **__: Any) -> Race:
        raise DeviceError("board 'b' does not answer")

    confirmed = choose(plan(), storage, device(plan()))
    monkeypatch.setattr(graph_choice, "race_plans", absent)
    chosen = choose(plan(), storage, device(plan()))
    assert chosen.planned.decision is not None
    assert known_plan(plan(), storage).decision is None
    served = confirm_plan(confirmed, storage, ours(), Tuning(), job_id="job")
    assert served.plan == plan().plan and served.decision is not None
    assert "not confirmed: board 'b' does not answer" in served.decision["reason"]
    assert known_plan(plan(), storage).decision is None


def test_plans_run_interleaved(storage: Storage) -> None:
    here = plan()
    stops = iter([False, False, True])
    with LocalDevice() as local:
        race = race_plans(
            here.plan,
            [here.plan] * 2,
            storage,
            here.mode,
            local,
            lambda: next(stops),
        )
    assert race.incumbent_seconds > 0
    (only,) = race.comparisons  # the time was over after one
    assert only.ratios


def test_a_model_is_compiled_by_the_plan_that_was_chosen(storage: Storage, race: list[int]) -> None:
    chosen = settled(storage, device(plan()))
    assert chosen.decision is not None and chosen.decision["choice"]["kept"]
    executable = KnownModel(MODEL, storage).compile()
    assert isinstance(executable, Executable)
    calls = [step for step in executable.program.walk() if isinstance(step, KernelCall)]
    assert len(calls) == len(chosen.plan.kernels) != len(plan().plan.kernels)
