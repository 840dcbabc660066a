"""Which parts stay in float32: the order, the fewest of them, and when it gives up."""

from __future__ import annotations

import json
import math

import pytest

from tilewright.service.quantize.selection import ROUNDS, PartNoise, by_noise_for_time, select


def order(*candidates: tuple[float, float | None]) -> list[int]:
    made = [PartNoise(part, noise, saved) for part, (noise, saved) in enumerate(candidates)]
    return [candidate.part for candidate in by_noise_for_time(made)]


def test_noise_for_time_decides() -> None:
    assert order((1, 1), (1, 2), (3, 2), (0, 1)) == [2, 0, 1, 3]


def test_what_saves_nothing_is_kept_first_and_silence_last() -> None:
    assert order((9, 1), (1, 0), (2, -1), (0, -5)) == [2, 1, 0, 3]


def test_unknown_savings_count_as_usual_ones() -> None:
    assert order((4, None), (1, 1), (5, 1), (3, 1)) == [2, 0, 3, 1]
    assert order((1, None), (2, None)) == [1, 0]


def test_noise_without_bounds_comes_before_all_other() -> None:
    assert order((1, 1), (math.inf, 1), (2, 1)) == [1, 2, 0]


def parts(count: int) -> list[PartNoise]:
    """Part 0 is the noisiest."""
    return [PartNoise(part, float(count - part), 1.0) for part in range(count)]


def test_no_more_are_kept_than_it_takes() -> None:
    asked: list[int] = []

    def would(keep: frozenset[int]) -> bool:
        asked.append(len(keep))
        return len(keep) >= 37

    found = select(parts(100), would, lambda keep: True)
    assert found is not None
    assert found.kept == frozenset(range(37)) and found.rounds == (37,)
    assert found.runs == 100 + len(asked) and len(asked) <= 7
    text = json.loads(json.dumps(found.to_json()))
    assert text["kept"] == list(range(37)) and text["order"][0]["part"] == 0


def test_the_real_model_has_the_last_word() -> None:
    asked: list[int] = []

    def does(keep: frozenset[int]) -> bool:
        asked.append(len(keep))
        return len(keep) >= 6

    found = select(parts(20), lambda keep: len(keep) >= 4, does)
    assert found is not None and asked == [4, 5, 7, 6] == list(found.rounds)
    assert found.kept == frozenset(range(6))


def test_steps_that_double_are_searched_backwards() -> None:
    """The last one asked about need not be the one that is chosen."""
    answers: dict[int, bool] = {}

    def does(keep: frozenset[int]) -> bool:
        return answers.setdefault(len(keep), len(keep) >= 20)

    found = select(parts(200), lambda keep: len(keep) >= 3, does)
    assert found is not None and found.kept == frozenset(range(20))
    assert found.rounds == tuple(answers) == (3, 4, 6, 10, 18, 34, 26, 22, 20, 19)
    assert answers[20] and not answers[19]


@pytest.mark.parametrize("needed", range(1, 40))
def test_what_is_kept_was_asked_about_and_is_enough(needed: int) -> None:
    yes: list[frozenset[int]] = []

    def does(keep: frozenset[int]) -> bool:
        if len(keep) >= needed:
            yes.append(keep)
        return len(keep) >= needed

    found = select(parts(41), lambda keep: True, does)
    assert found is not None and found.kept == yes[-1] == min(yes, key=len)
    assert len(found.rounds) <= ROUNDS and len(set(found.rounds)) == len(found.rounds)


def test_noise_without_bounds_is_no_number_of_json() -> None:
    loud = [PartNoise(0, math.inf, 1.0), PartNoise(1, 1.0, None)]
    found = select(loud, lambda keep: len(keep) > 0, lambda keep: True)
    assert found is not None
    order = json.loads(json.dumps(found.to_json(), allow_nan=False))["order"]
    assert [one["noise"] for one in order] == [None, 1.0]


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_the_search_ends(count: int) -> None:
    asked: list[int] = []

    def never(keep: frozenset[int]) -> bool:
        asked.append(len(keep))
        return False

    assert select(parts(count), lambda keep: len(keep) > 0, never) is None
    assert len(asked) <= ROUNDS and len(set(asked)) == len(asked)
    assert all(kept < count for kept in asked)


def test_all_parts_in_float32_is_no_answer() -> None:
    assert select(parts(5), lambda keep: False, lambda keep: True) is None
