"""A small GEMM whose schedules, nests and times are known by heart."""

from __future__ import annotations

import random
from copy import copy
from dataclasses import dataclass, field
from functools import cache

import pytest

from tests.unit.tuner.fakes import FakeQueue, FakeTask, World
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Accumulator, Combiner, Role, Tensor
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Stage, Store, Tile
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import Knob, ScheduleSpace, SubSpace
from tilewright.compiler.targets.host import resolve_target
from tilewright.tuner.analysis.features import FeatureExtractor, target_facts
from tilewright.tuner.cost_model import CostModel, make_cost_model, xgboost
from tilewright.tuner.search import SearchContext

M, N, K = 96, 192, 64
LANES = 16


def gemm_nest(schedule: Schedule) -> LoopNest:
    """C[m, n] = sum A[m, k] * B[k, n], B packed in panels of nv vectors; rows are mr high."""
    mr, nv = schedule.integer("mr"), schedule.integer("nv")
    if N % (nv * LANES):
        raise ScheduleError(f"panels of {nv} vectors do not divide {N} columns")
    m, n, k = Axis("m", M), Axis("n", N), Axis("k", K)
    panel = nv * LANES
    a = Tensor("a", (M, K))
    b = Tensor(
        "b",
        (K, N),
        layout=Layout((Factor(1, panel), Factor(0), Factor(1, 1, panel))),
        role=Role.WEIGHT,
    )
    c = Tensor("c", (M, N), role=Role.OUTPUT)
    compute = Compute(
        stores=(Store(c[m, n], Accumulator()),),
        body=a[m, k] * b[k, n],
        combiner=Combiner.SUM,
        reduce=(Tile(k, schedule.integer("unroll")),),
        unroll=(Tile(k), Tile(m), Tile(n, LANES)),
        vector=n,
    )
    if schedule.algorithm == "rows":
        loops = For(m, mr, (For(n, panel, (compute,)),))
    else:
        loops = For(n, panel, (For(m, mr, (compute,)),))
    return LoopNest("gemm", (a, b, c), (), (Stage("s", (loops,)),))


def _fits(assignment: dict[str, object]) -> bool:
    mr, nv = assignment["mr"], assignment["nv"]
    assert isinstance(mr, int) and isinstance(nv, int)
    return mr * nv + nv + 1 <= 32


def gemm_space() -> ScheduleSpace:
    knobs = (
        Knob("mr", (1, 2, 3, 4, 6, 8, 12, 16, 24)),
        Knob("nv", (1, 2, 3, 4, 5, 6)),
        Knob("unroll", (1, 2, 4, 8)),
    )
    return ScheduleSpace(
        tuple(
            SubSpace(name, knobs, _fits, Schedule.of(name, mr=2, nv=1, unroll=1))
            for name in ("columns", "rows")
        )
    )


def seconds(schedule: Schedule) -> float:
    """A time that likes many accumulators, columns outside, and four-fold unrolling."""
    mr, nv, unroll = (schedule.integer(name) for name in ("mr", "nv", "unroll"))
    accumulators = mr * nv
    penalty = 1.0 + 2.0 / accumulators + (0.6 if schedule.algorithm == "rows" else 0.0)
    return 1e-4 * (penalty + 0.1 * abs(unroll - 4) / 4 + 0.3 * (nv == 1))


@cache
def _analysed(default: Schedule) -> FeatureExtractor:
    """Features of the GEMM's candidates: computing them takes longer than most searches."""
    made = FeatureExtractor(gemm_nest, default, target_facts(resolve_target("x86-64-v4")))
    made.row(default)  # to which all others are related
    return made


@dataclass
class Bench:
    """A test problem for strategies and models."""

    space: ScheduleSpace = field(default_factory=gemm_space)
    m: int = M
    n: int = N
    k: int = K
    lanes: int = LANES

    def nest(self, schedule: Schedule) -> LoopNest:
        return gemm_nest(schedule)

    def seconds(self, schedule: Schedule) -> float:
        return seconds(schedule)

    def features(self) -> FeatureExtractor:
        """A copy of one extractor: it shares the rows, and has settings of its own."""
        return copy(_analysed(self.space.default()))

    def context(self, model: CostModel | None = None, seed: int = 1) -> SearchContext:
        return SearchContext(
            self.space,
            self.features(),
            model or make_cost_model("none", seed),
            random.Random(seed),
        )


@pytest.fixture
def gemm() -> Bench:
    return Bench()


@pytest.fixture
def world(gemm: Bench, monkeypatch: pytest.MonkeyPatch) -> World:
    """Two tasks on a simulated device.

    Cost models grow few trees: their quality is tested with the models, and growing them takes half
    of such a run.
    """
    monkeypatch.setattr(xgboost, "ROUNDS", 10)
    monkeypatch.setattr(xgboost, "LOCAL_ROUNDS", 5)

    def task(name: str, count: int) -> FakeTask:
        return FakeTask(name, gemm.space, gemm.nest, count)

    return World([task("small", 1), task("frequent", 6)], FakeQueue(gemm.seconds))
