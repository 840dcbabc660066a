"""One suite for every search strategy, and the additional requirements on the guided one."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from math import exp
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import Knob, ScheduleSpace, SubSpace
from tilewright.tuner.cost_model import Sample, make_cost_model
from tilewright.tuner.search import (
    Observed,
    SearchContext,
    SearchStrategy,
    make_strategy,
    strategies,
)
from tilewright.tuner.search.bayesian import LEVEL_SHARE, OTHER_ALGORITHM, _beside_rules
from tilewright.tuner.search.kriging import NOISE, Kriging, Opinion
from tilewright.tuner.search.memory import Memory
from tilewright.tuner.search.moves import cross, is_ordered, mutate
from tilewright.tuner.search.ranking import Ranking


def _documented() -> Callable[[Any], SearchStrategy]:
    """The strategy that docs/search-howto.md shows."""
    page = Path(__file__).parents[3] / "docs" / "search-howto.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, page, "exec", dont_inherit=True), names)
    made: Callable[[Any], SearchStrategy] = names["make_search"]
    return made


@pytest.mark.parametrize("name", [*sorted(strategies()), "documented"])
@pytest.mark.parametrize("trained", [False, True])
class TestStrategy:
    def _make(self, name: str, trained: bool, gemm: Any, seed: int = 1) -> SearchStrategy:
        model = make_cost_model("xgboost", 0)
        context = gemm.context(model, seed)
        documented = name == "documented"
        search = _documented()(context) if documented else make_strategy(name, context)
        if trained:
            shown = list(gemm.space.points[::9])
            search.update([Observed(s, gemm.seconds(s)) for s in shown])
            kept, rows = context.features.rows(shown)
            model.train([Sample("t", r, gemm.seconds(s)) for s, r in zip(kept, rows, strict=True)])
        return search

    def test_it_suggests_members_and_none_twice(self, name: str, trained: bool, gemm: Any) -> None:
        search = self._make(name, trained, gemm)
        shown = set(gemm.space.points[::9]) if trained else set()
        seen: set[Schedule] = set()
        for _ in range(8):
            batch = [s.schedule for s in search.suggest(7)]
            assert len(batch) == len(set(batch)) == 7
            assert not seen & set(batch) and not shown & set(batch)
            assert all(s in gemm.space for s in batch)
            seen.update(batch)
            search.update([Observed(s, gemm.seconds(s)) for s in batch])

    def test_it_uses_up_the_space_and_then_says_so(
        self, name: str, trained: bool, gemm: Any
    ) -> None:
        search = self._make(name, trained, gemm)
        already = len(gemm.space.points[::9]) if trained else 0
        found = 0
        for _ in range(len(gemm.space)):
            batch = search.suggest(40)
            if not batch:
                break
            found += len(batch)
        assert found + already == len(gemm.space)
        assert search.suggest(5) == []

    def test_it_leaves_out_what_it_was_shown(self, name: str, trained: bool, gemm: Any) -> None:
        search = self._make(name, trained, gemm)
        known = list(gemm.space.points[:50])
        search.update([Observed(s, None) for s in known])
        proposed = [s.schedule for _ in range(20) for s in search.suggest(10)]
        assert not set(known) & set(proposed)

    def test_the_same_seed_gives_the_same_candidates(
        self, name: str, trained: bool, gemm: Any
    ) -> None:
        runs = [self._make(name, trained, gemm, seed=5).suggest(12) for _ in range(2)]
        assert runs[0] == runs[1]
        other = self._make(name, trained, gemm, seed=6).suggest(12)
        assert (runs[0] == other) == (name == "grid")  # only a grid has no randomness

    def test_every_algorithm_gets_a_chance(self, name: str, trained: bool, gemm: Any) -> None:
        search = self._make(name, trained, gemm)
        batch = [s.schedule for _ in range(6) for s in search.suggest(10)]
        assert {s.algorithm for s in batch} == {"rows", "columns"}

    def test_it_goes_on_when_all_candidates_fail(self, name: str, trained: bool, gemm: Any) -> None:
        search = self._make(name, trained, gemm)
        seen: set[Schedule] = set()
        for _ in range(6):
            batch = [s.schedule for s in search.suggest(8)]
            assert len(batch) == 8 and not seen & set(batch)
            seen.update(batch)
            search.update([Observed(s, None) for s in batch])

    def test_every_suggestion_says_who_made_it(self, name: str, trained: bool, gemm: Any) -> None:
        search = self._make(name, trained, gemm)
        origins = {s.origin for _ in range(4) for s in search.suggest(8)}
        assert origins and "" not in origins


@pytest.mark.parametrize("name", sorted(strategies()))
def test_a_space_of_one_point_is_used_up_at_once(name: str, gemm: Any) -> None:
    default = Schedule.of("rows", mr=2, nv=1, unroll=1)
    knobs = (Knob("mr", (2,)), Knob("nv", (1,)), Knob("unroll", (1,)))
    gemm.space = ScheduleSpace((SubSpace("rows", knobs, lambda choice: False, default),))
    search = make_strategy(name, gemm.context())
    assert [s.schedule for s in search.suggest(8)] == [default]
    assert search.suggest(8) == []
    search.update([Observed(default, 1e-6)])
    assert search.suggest(8) == []


def _regret(
    gemm: Any,
    seconds: Callable[[Schedule], float],
    strategy: str,
    trials: int,
    seed: int,
    estimates: bool = True,
) -> float:
    """The best so far over the best of the space, less one: the mean after each batch of eight."""
    model = make_cost_model("xgboost" if strategy in LEARNING else "none", seed)
    context = replace(gemm.context(model, seed), estimates=estimates)
    search = make_strategy(strategy, context)
    samples: list[Sample] = []
    best, curve = float("inf"), []
    for _ in range(trials // 8):
        for suggestion in search.suggest(8):
            schedule = suggestion.schedule
            row = context.features.row(schedule)
            taken = None if row is None else seconds(schedule)
            if row is not None:
                samples.append(Sample("t", row, taken))
                best = min(best, taken or best)
            search.update([Observed(schedule, taken)])
        model.train(samples)
        curve.append(best)
    possible = [s for s in gemm.space.points if context.features.row(s) is not None]
    return sum(curve) / len(curve) / min(seconds(s) for s in possible) - 1


LEARNING = ("bayesian", "evolutionary", "portfolio")
"""Strategies that claim to do better than chance within a few batches."""

SEEDS = range(6)


def test_those_that_learn_are_all_that_are_not_blind() -> None:
    assert {*LEARNING, "random", "grid"} == set(strategies())


def test_the_bottom_of_a_bowl_is_found_sooner_than_by_chance(gemm: Any) -> None:
    """Each knob has a best value and is worse step by step; chance needs half of the space."""
    values = {knob.name: knob.values for knob in gemm.space.subspaces[0].knobs}
    bottom = {"mr": 4, "nv": 3, "unroll": 4}

    def seconds(schedule: Schedule) -> float:
        steps = [abs(v.index(schedule[n]) - v.index(bottom[n])) for n, v in values.items()]
        return 1.0 + 0.1 * sum(steps) + 0.3 * (schedule.algorithm == "rows")

    def trials_to(strategy: str, seed: int) -> int:
        search = make_strategy(strategy, gemm.context(seed=seed))
        for tried in range(0, len(gemm.space), 8):
            batch = [s.schedule for s in search.suggest(8)]
            search.update([Observed(s, seconds(s)) for s in batch])
            if any(seconds(s) == 1.0 for s in batch):
                return tried
        return len(gemm.space)

    found = {n: sum(trials_to(n, seed) for seed in range(8)) for n in ("bayesian", "random")}
    assert found["bayesian"] < 0.5 * found["random"]


def _bred(seed: int) -> float:
    """How many steps of knobs the best of a batch that is bred by its estimates is from none."""
    knobs = tuple(Knob(name, tuple(range(8))) for name in "abcd")
    first = Schedule.of("one", **dict.fromkeys("abcd", 0))
    space = ScheduleSpace((SubSpace("one", knobs, lambda _: True, first),))

    def steps(schedule: Schedule) -> int:
        return sum(schedule.integer(knob.name) for knob in knobs)

    features: Any = SimpleNamespace(
        estimated_seconds=lambda schedule: exp(steps(schedule)), effort=1.0
    )
    model = make_cost_model("none", 0)
    search = make_strategy(
        "evolutionary", SearchContext(space, features, model, random.Random(seed))
    )
    return float(min(steps(suggestion.schedule) for suggestion in search.suggest(8)))


def test_parents_are_the_better_ones_of_a_draw() -> None:
    """Three generations from the best of a sample improve more than from any, or from the worst:
    the best of 256 random candidates has 2.1 steps in the mean."""
    assert sum(map(_bred, range(16))) / 16 < 1.6


@pytest.mark.parametrize("name", LEARNING)
def test_learning_beats_chance_where_the_estimate_is_wrong(name: str, gemm: Any) -> None:
    """Times that like columns outside, many accumulators and four-fold unrolling."""
    learned = [_regret(gemm, gemm.seconds, name, 32, seed) for seed in SEEDS]
    chance = [_regret(gemm, gemm.seconds, "random", 32, seed) for seed in SEEDS]
    assert sum(learned) < sum(chance)


@pytest.mark.parametrize("name", LEARNING)
def test_the_model_alone_beats_chance(name: str, gemm: Any) -> None:
    """Without estimates: candidates have no score before something is measured."""
    learned = [_regret(gemm, gemm.seconds, name, 32, seed, estimates=False) for seed in SEEDS]
    chance = [_regret(gemm, gemm.seconds, "random", 32, seed) for seed in SEEDS]
    assert sum(learned) < sum(chance)


def test_without_estimates_all_candidates_are_alike_at_first(gemm: Any) -> None:
    ranking = Ranking(replace(gemm.context(), estimates=False))
    points = gemm.space.points[:40]
    assert set(ranking.scores(points).values()) == {0.0}
    assert (ranking.prior, Ranking(gemm.context()).prior) == ("random", "estimate")
    first = make_strategy("bayesian", replace(gemm.context(), estimates=False)).suggest(6)
    assert {suggestion.origin for suggestion in first} == {"random"}


@pytest.mark.parametrize("sign", [1, -1])
def test_an_untrusted_estimate_is_believed_where_times_bear_it_out(sign: int, gemm: Any) -> None:
    """After 16 measurements suggestions follow the estimate where times do, and shun it where times
    are the other way round."""
    features = gemm.features()
    estimates = {
        s: d for s in gemm.space.points if (d := features.estimated_seconds(s)) is not None
    }
    search = make_strategy("bayesian", replace(gemm.context(), estimates=False))
    measured = random.Random(3).sample(sorted(estimates, key=lambda s: s.digest), 16)
    search.update([Observed(s, estimates[s] ** sign, s.digest) for s in measured])
    chosen = [estimates[suggestion.schedule] ** sign for suggestion in search.suggest(4)]
    others = sorted(value**sign for s, value in estimates.items() if s not in measured)
    assert sorted(chosen)[1] < others[len(others) // 4]


@pytest.mark.parametrize("name", LEARNING)
def test_learning_beats_chance_on_recorded_times(name: str, gemm: Any) -> None:
    """A table of times: the estimate's, each off by a percent or two, one algorithm by 20 %."""
    features = gemm.features()
    table: dict[Schedule, float] = {}
    for schedule in gemm.space.points:
        estimated = features.estimated_seconds(schedule)
        if estimated is not None:
            noise = random.Random(schedule.digest).gauss(0.0, 0.015)
            table[schedule] = estimated * exp(noise + 0.2 * (schedule.algorithm == "rows"))
    learned = [_regret(gemm, table.__getitem__, name, 32, seed) for seed in SEEDS]
    chance = [_regret(gemm, table.__getitem__, "random", 32, seed) for seed in SEEDS]
    assert sum(learned) < sum(chance)


def test_equal_code_is_one_candidate(gemm: Any) -> None:
    """Duplicates are remembered under one name, so that they count as one parent and one sample."""
    memory = Memory(gemm.space, random.Random(1))
    first, second, third = gemm.space.points[:3]
    memory.update(
        [Observed(first, 2.0, "code"), Observed(second, 1.5, "code"), Observed(third, 3.0, "other")]
    )
    assert memory.seconds == {first: 1.5, third: 3.0}
    assert memory.elites(3) == [first, third]
    assert not memory.is_new(second)


def test_numbers_are_neighbours_and_words_are_not() -> None:
    assert is_ordered(Knob("tile", (1, 2, 4)))
    assert not is_ordered(Knob("pack", (False, True)))
    assert not is_ordered(Knob("order", ("a", "b")))


def test_steps_stay_in_the_space_and_mostly_go_to_neighbours(gemm: Any) -> None:
    rng, parent = random.Random(2), Schedule.of("rows", mr=6, nv=2, unroll=4)
    steps = [mutate(gemm.space, parent, rng) for _ in range(200)]
    assert all(step is None or (step in gemm.space and step != parent) for step in steps)
    turned = [s.integer("mr") for s in steps if s is not None and s.integer("mr") != 6]
    assert sum(mr in (4, 8) for mr in turned) > len(turned) / 2
    assert set(turned) - {4, 8}


def test_a_child_has_each_knob_from_a_parent(gemm: Any) -> None:
    first = Schedule.of("rows", mr=2, nv=1, unroll=1)
    second = Schedule.of("rows", mr=8, nv=3, unroll=8)
    for seed in range(20):
        child = cross(gemm.space, first, second, random.Random(seed))
        assert child is not None and child in gemm.space and child not in (first, second)
        assert all(child[k] in (first[k], second[k]) for k in ("mr", "nv", "unroll"))


LEVELS = {"rows": 0.0, "columns": 0.0}


class TestKriging:
    """Regression around the prior."""

    def test_without_measurements_levels_and_opinions_are_all(self, gemm: Any) -> None:
        points = gemm.space.points[:5]
        (algorithm,) = {point.algorithm for point in points}
        levels = {**LEVELS, algorithm: -7.0}
        means, deviations = Kriging(gemm.space).predict(points, levels, [], {})
        assert means.tolist() == [-7.0] * 5
        assert len(set(deviations.tolist())) == 1
        opinion = Opinion({point: float(n) for n, point in enumerate(points)}, 0.5, 0.0)
        means, _ = Kriging(gemm.space).predict(points, levels, [opinion], {})
        assert means.tolist() == [-8.0, -7.5, -7.0, -6.5, -6.0]

    def test_what_was_measured_is_known_and_its_like_nearly(self, gemm: Any) -> None:
        """A tile that took 30 % longer than expected: its neighbours probably do, too, those far
        away less, and the other algorithm least."""
        slow = Schedule.of("rows", mr=6, nv=2, unroll=2)
        asked = [
            slow,
            Schedule.of("rows", mr=8, nv=2, unroll=2),
            Schedule.of("rows", mr=24, nv=1, unroll=8),
            Schedule.of("columns", mr=6, nv=2, unroll=2),
        ]
        means, deviations = Kriging(gemm.space).predict(asked, LEVELS, [], {slow: 0.3})
        assert means[0] == pytest.approx(0.3, abs=0.001)
        assert means[0] > means[1] > means[2] > means[3] > 0
        assert deviations[0] < deviations[1] < deviations[2] < deviations[3]

    def test_an_opinion_that_is_refuted_is_trusted_less(self, gemm: Any) -> None:
        """The model sees a factor of e between the halves of a space. If times show the opposite,
        its predictions for unmeasured schedules follow them."""
        points = [p for p in gemm.space.points if p.algorithm == "rows"]
        seen = {p: float(n % 2) for n, p in enumerate(points)}
        opinion = Opinion(seen, 0.5, 0.5)
        apart = []
        for sign in (1, -1):
            measured = {p: sign * seen[p] for p in points[: len(points) // 2]}
            rest = points[len(points) // 2 :]
            means, _ = Kriging(gemm.space).predict(rest, LEVELS, [opinion], measured)
            kinds = np.array([seen[p] for p in rest])
            apart.append(means[kinds == 1].mean() - means[kinds == 0].mean())
        assert apart[0] == pytest.approx(1, abs=0.2)
        assert apart[1] < 0

    def test_an_algorithm_that_was_never_measured_stays_uncertain(self, gemm: Any) -> None:
        points = gemm.space.points
        measured = {p: 0.0 for p in points if p.algorithm == "rows"}
        others = [p for p in points if p.algorithm == "columns"]
        _, deviations = Kriging(gemm.space).predict(others, LEVELS, [], measured)
        assert deviations.min() > 10 * NOISE


def test_the_distance_from_the_rules_is_that_of_all_knobs(gemm: Any) -> None:
    kriging = Kriging(gemm.space)
    default = gemm.space.default()
    (space,) = [s for s in gemm.space.subspaces if s.algorithm == default.algorithm]
    ends = {
        k.name: k.values[0] if default[k.name] != k.values[0] else k.values[-1] for k in space.knobs
    }
    one = {**dict(default.choices), "unroll": ends["unroll"]}
    near, far = Schedule.of(default.algorithm, **one), Schedule.of(default.algorithm, **ends)
    found = kriging.turned([default, near, far])
    assert found[default] == 0
    assert 0 < found[near] <= 1
    assert found[near] < found[far] <= len(space.knobs)


def test_another_algorithm_than_the_rules_chose_has_to_show_more() -> None:
    """Where the estimate sees no difference the rules' choice is expected to be faster; a
    difference that it sees counts in part."""
    assert _beside_rules({"a": -7.0, "b": -7.0}, "a") == {"a": -7.0, "b": -7.0 + OTHER_ALGORITHM}
    ahead = _beside_rules({"a": -7.0, "b": -8.0}, "a")
    assert ahead["b"] == pytest.approx(-7.0 - LEVEL_SHARE + OTHER_ALGORITHM)
    assert _beside_rules({"b": -8.0}, "a") == {"b": -8.0}


def test_what_the_model_said_of_a_measurement_is_what_it_said_before(gemm: Any) -> None:
    """A model has memorised its training data: later scores of a measurement do not count."""

    class Changing:
        trained = False
        sign = 1

        def predict(self, rows: Any) -> Any:
            return [self.sign * n for n in range(len(rows))]

    model = Changing()
    ranking = Ranking(gemm.context(model))
    points = list(gemm.space.points)[:40]
    estimates = ranking.estimates(points)
    assert ranking.predict(points, estimates, []) == {}
    model.trained = True
    before = ranking.predict(points, estimates, [])
    values = np.array(list(before.values()))
    assert values.mean() == pytest.approx(0, abs=1e-9)
    assert values.std() == pytest.approx(np.std([estimates[s] for s in before]))
    assert before[points[0]] > before[points[-1]]  # a higher score is a shorter time
    model.sign = -1
    after = ranking.predict(points[1:], estimates, points[:1])
    assert after[points[0]] == before[points[0]]
    assert after[points[1]] < 0 < before[points[1]]


def test_a_portfolio_shifts_towards_who_finds_faster_ones(gemm: Any) -> None:
    """Only random suggestions are ever fast: the random strategy starts with the smallest share and
    ends with the largest."""
    search = make_strategy("portfolio", gemm.context())
    shares: list[int] = []
    best = 1.0
    for _ in range(12):
        batch = search.suggest(8)
        shares.append(sum(s.origin == "random" for s in batch))
        for suggestion in batch:
            best *= 0.98 if suggestion.origin == "random" else 1.0
            seconds = best if suggestion.origin == "random" else 2.0
            search.update([Observed(suggestion.schedule, seconds)])
    assert sum(shares[:2]) < 8
    assert sum(shares[-2:]) > 12


def test_an_unknown_strategy_is_named(gemm: Any) -> None:
    with pytest.raises(ValueError, match="psychic"):
        make_strategy("psychic", gemm.context())
