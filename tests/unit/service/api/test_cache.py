"""Caches are bounded by their total size and drop the entries that depend on a change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pytest

from tilewright.service.api.cache import LRU, held_bytes


def test_the_least_recently_used_values_leave_when_all_together_are_too_large() -> None:
    kept: LRU[str, str] = LRU(100)
    for key in ("a", "b", "c"):
        kept.put(key, f"of {key}", 30)
    assert kept.get("a") == "of a", "used again: b is the oldest now"
    kept.put("d", "of d", 60)
    assert [key in kept for key in "abcd"] == [True, False, False, True]
    assert (kept.size, len(kept)) == (90, 2)
    kept.put("huge", "too large", 101)
    assert kept.get("huge") is None and kept.size == 90, "and nothing else left for it"


def test_a_value_that_is_replaced_counts_once() -> None:
    kept: LRU[str, int] = LRU(10)
    kept.put("a", 1, 4, ["x"])
    kept.put("a", 2, 5, ["y"])
    assert (kept.get("a"), kept.size) == (2, 5)
    kept.forget(["x"])
    assert kept.get("a") == 2
    kept.put("a", 3, 11)
    assert kept.get("a") is None and kept.size == 0, "the former value is outdated"


def test_a_change_removes_what_depends_on_it() -> None:
    kept: LRU[str, int] = LRU(10)
    kept.put("a", 1, names=["x", "y"])
    kept.put("b", 2, names=["y"])
    kept.put("c", 3, names=["z"])
    kept.put("d", 4)
    kept.forget(["y", "unknown"])
    assert [key in kept for key in "abcd"] == [False, False, True, True]
    kept.put("b", 5)
    kept.forget(["y"])
    assert kept.get("b") == 5, "it depends on nothing now"
    kept.clear()
    assert (len(kept), kept.size) == (0, 0)
    kept.put("c", 6, names=["z"])
    kept.forget(["z"])
    assert "c" not in kept


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Held:
    text: str
    others: tuple[object, ...]


def test_the_memory_of_a_value_is_that_of_all_it_refers_to_once() -> None:
    text = "x" * 100_000
    assert 100_000 <= held_bytes(Held(text, ())) < 100_500
    assert held_bytes(Held(text, (text, [text]))) < 100_800, "shared, and counted once"
    assert held_bytes({"a": [text, text + "y"]}) > 200_000
    assert held_bytes(Held("a", (Colour.RED, Held))) < 500, "classes are there anyway"
    deep: object = text
    for _ in range(5000):
        deep = [deep]
    assert held_bytes(deep) == pytest.approx(100_000 + 5000 * 64, rel=0.05)
