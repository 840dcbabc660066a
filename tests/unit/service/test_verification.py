"""How far a whole model may be from its reference, where it chooses by values."""

from __future__ import annotations

import math

import numpy as np

from service.tuning import choice_error, chosen_outputs
from tests.graphs import Maker

PLACES = np.arange(0, 4000, 100)


def test_outputs_behind_a_choice_are_found() -> None:
    g = Maker()
    x = g.input("x", 4, 9)
    places = g("top_k", x, axis=1, k=3, largest=1)
    picked = g("gather", x, places, axis=0)
    plain = g("neg", x)
    assert chosen_outputs(g.graph(plain, picked)) == {picked}


def test_candidates_that_change_places_are_no_error() -> None:
    swapped = PLACES.copy()
    swapped[[3, 4]] = swapped[[4, 3]]
    swapped[-1] = 17
    assert choice_error(swapped, PLACES) == 0.0
    assert choice_error(PLACES[:-2], PLACES) == 0.0
    assert choice_error(PLACES[:0], PLACES[:1]) == 0.0
    values = np.linspace(1.0, 2.0, 40, dtype=np.float32)
    assert choice_error(values * np.float32(1 + 1e-5), values) == 0.0


def test_other_elements_are_an_error() -> None:
    assert choice_error(PLACES + 1, PLACES) == math.inf
    assert choice_error(PLACES[:20], PLACES) == math.inf
    assert choice_error(PLACES.astype(np.int32), PLACES) == math.inf
    assert choice_error(PLACES.reshape(4, 10), PLACES) == math.inf
    values = np.linspace(1.0, 2.0, 40, dtype=np.float32)
    assert choice_error(np.full(40, np.nan, np.float32), values) == math.inf
    assert choice_error(values * np.float32(1.001), values) == math.inf
