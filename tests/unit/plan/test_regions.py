"""Regions: distances add up, and no byte has two writers."""

from __future__ import annotations

import pytest

from tilewright.compiler.plan.regions import Regions


def test_distances_add_up() -> None:
    regions = Regions()
    for value in "abc":
        regions.add(value, 64)
    regions.add("abc", 192, written=False)
    regions.join("a", "b", 64)
    regions.join("abc", "b", 64)
    assert regions.can_join("abc", "c", 128)
    regions.join("c", "abc", -128)
    assert [regions.start(v) for v in ("a", "b", "c", "abc")] == [0, 64, 128, 0]
    assert regions.of("a") is regions.of("c") and regions.of("a").bytes == 192


def test_a_byte_has_one_writer() -> None:
    regions = Regions()
    for value in "abc":
        regions.add(value, 128)
    regions.add("view", 64, written=False)
    regions.join("a", "b", 128)
    assert not regions.can_join("a", "c", 192)
    assert not regions.can_join("c", "b", -64)
    assert regions.can_join("a", "c", 256) and regions.can_join("b", "c", -256)
    assert regions.can_join("a", "view", 192)


def test_a_value_has_one_place() -> None:
    regions = Regions()
    for value in "ab":
        regions.add(value, 64)
    regions.join("a", "b", 64)
    assert regions.can_join("a", "b", 64) and not regions.can_join("a", "b", 128)
    regions.join("b", "a", -64)
    with pytest.raises(ValueError, match="'b' does not lie 128 bytes after 'a'"):
        regions.join("a", "b", 128)
