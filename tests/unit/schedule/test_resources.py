from __future__ import annotations

import pytest

from tilewright.compiler.schedule.resources import tile_rate, tile_registers, useful_fraction
from tilewright.compiler.targets.host import resolve_target

V3, V4 = resolve_target("x86-64-v3"), resolve_target("x86-64-v4")


@pytest.mark.parametrize(
    ("name", "registers"),
    [
        ("x86-64-v4", 4 * 3 + 3 + 1),  # sums, a row of the panel, one broadcast
        ("spacemit-x60", 4 * 3 + 3),  # instructions take the factor from a scalar register
        (
            "x86-64-v2",
            4 * 3 + 3 + 4 + 1,
        ),  # all rows wait for their factors, and the product is added
    ],
)
def test_a_tile_keeps_sums_a_row_of_the_panel_and_factors(name: str, registers: int) -> None:
    assert tile_registers(resolve_target(name), 4, 3) == registers


def test_vectors_of_two_registers_take_twice_as_many_but_for_the_factor() -> None:
    assert tile_registers(V4, 4, 3, each=2) == 2 * (4 * 3 + 3) + 1


def test_the_work_of_whole_tiles_is_all_of_it_and_tails_waste() -> None:
    assert useful_fraction((12, 4), (6, 3)) == 1.0
    assert useful_fraction((9, 4), (6, 3)) == 0.75
    assert useful_fraction((9, 4), (5, 3)) == 0.75 * 5 / 6


def test_few_sums_and_many_loads_slow_a_tile_down() -> None:
    """Sums that fill their share of the registers and load nothing reach the peak."""
    sums = V3.vector_registers
    assert tile_rate(V3, 1.0, sums, 0) == 1.0
    assert tile_rate(V3, 0.5, sums, 0) == 0.5
    assert tile_rate(V3, 1.0, 4, 0) == pytest.approx(4 / (V3.core.sums_share * sums))
    assert tile_rate(V3, 1.0, 4, 0, wanted=4) == 1.0
    assert tile_rate(V3, 1.0, sums, sums) == pytest.approx(1 / (1 + V3.core.load_slots))
