"""One suite for every search strategy, and what the guided one must be able to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compiler.schedule.schedule import Schedule
from tuner.cost_model import Sample, make_cost_model
from tuner.search import Observed, SearchStrategy, make_strategy, strategies


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
        assert runs[0] != self._make(name, trained, gemm, seed=6).suggest(12)

    def test_every_algorithm_gets_a_chance(self, name: str, trained: bool, gemm: Any) -> None:
        search = self._make(name, trained, gemm)
        batch = [s.schedule for _ in range(6) for s in search.suggest(10)]
        assert {s.algorithm for s in batch} == {"rows", "columns"}


def _best_after(gemm: Any, strategy: str, trials: int, seed: int) -> float:
    model = make_cost_model("xgboost" if strategy == "evolutionary" else "none", seed)
    context = gemm.context(model, seed)
    search = make_strategy(strategy, context)
    samples: list[Sample] = []
    best = float("inf")
    for _ in range(trials // 8):
        batch = [s.schedule for s in search.suggest(8)]
        for schedule in batch:
            row = context.features.row(schedule)
            taken = None if row is None else gemm.seconds(schedule)
            if row is not None:
                samples.append(Sample("t", row, taken))
            if taken is not None:
                best = min(best, taken)
            search.update([Observed(schedule, taken)])
        model.train(samples)
    return best


def test_guided_search_beats_chance_at_equal_trials(gemm: Any) -> None:
    guided = [_best_after(gemm, "evolutionary", 32, seed) for seed in range(6)]
    chance = [_best_after(gemm, "random", 32, seed) for seed in range(6)]
    wins = sum(g < c for g, c in zip(guided, chance, strict=True))
    losses = sum(g > c for g, c in zip(guided, chance, strict=True))
    assert wins > losses
    assert sum(guided) < sum(chance)


def test_an_unknown_strategy_is_named(gemm: Any) -> None:
    with pytest.raises(ValueError, match="psychic"):
        make_strategy("psychic", gemm.context())
