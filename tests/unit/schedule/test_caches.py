"""Untuned schedules are chosen for the caches of a target's core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.schedule.problems import conv, matmul
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space, untuned_schedule, untuned_schedules
from tilewright.compiler.sizes import Dimension, dynamic_size
from tilewright.compiler.targets.families import CoreModel
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

V4 = resolve_target("x86-64-v4")
KI, MI = 1 << 10, 1 << 20

Untuned = Callable[..., Schedule]


@pytest.fixture
def untuned(monkeypatch: pytest.MonkeyPatch) -> Untuned:
    """The untuned schedule of a workload on a core that differs in this from the family's."""

    def schedule(workload: Workload, numerics: str = "fast", **properties: object) -> Schedule:
        core: CoreModel = replace(V4.core, **properties)  # type: ignore[arg-type]
        # Schedules are remembered by target, which knows its core by the name of the CPU.
        target: Target = replace(V4, cpu=f"test {properties}")
        monkeypatch.setitem(V4.family.cores, target.cpu, core)  # type: ignore[arg-type]
        return next(untuned_schedules(workload, Mode(target, numerics=numerics)))

    return schedule


def caches(second: int, third: int) -> tuple[int, int, int]:
    return 32 * KI, second, third


def test_panels_that_stay_near_allow_flat_tiles(untuned: Untuned) -> None:
    """Of 192 rows and three vectors a panel has 36 KiB."""
    workload = matmul(40, 96, 192)
    far = untuned(workload, "strict", panel_bytes=32 * KI)
    near = untuned(workload, "strict", panel_bytes=64 * KI)
    assert far.integer("tile") > near.integer("tile")


def test_winograd_blocks_fit_the_second_level(untuned: Untuned) -> None:
    workload = conv(16, channels=64, filters=64, size=56)
    blocks = [
        untuned(workload, cache_bytes=caches(second, 32 * MI)).integer("block")
        for second in (128 * KI, 512 * KI, MI)
    ]
    assert blocks == sorted(set(blocks))


def test_winograd_reads_weights_seldom_that_no_cache_holds(untuned: Untuned) -> None:
    """5.3 MB of transformed weights come anew for every block."""
    workload = conv(16, channels=192, filters=192, size=56)
    held = untuned(workload, cache_bytes=caches(MI, 32 * MI))
    missed = untuned(workload, cache_bytes=caches(MI, 4 * MI))
    assert missed.integer("block") > held.integer("block")


@pytest.mark.parametrize(
    ("second", "third", "order"),
    [
        (MI, 32 * MI, "products-inner"),
        (256 * KI, 8 * MI, "products-outer"),
        (MI, 512 * KI, "rows-outer"),
    ],
)
def test_strassen_reads_its_sums_again_where_caches_hold_them(
    untuned: Untuned, second: int, third: int, order: str
) -> None:
    """Sums of 128 x 256 elements are read by every panel, or those of one product by all panels."""
    found = untuned(matmul(256, 512, 512), cache_bytes=caches(second, third))
    assert (found.algorithm, found.text("order")) == ("strassen", order)


@pytest.mark.parametrize(
    ("second", "third", "packed"),
    [(MI, 32 * MI, False), (256 * KI, 8 * MI, True), (MI, MI, True)],
)
def test_run_time_matrices_are_packed_that_caches_do_not_hold(
    untuned: Untuned, second: int, third: int, packed: bool
) -> None:
    found = untuned(matmul(512, 512, 512, constant=False), cache_bytes=caches(second, third))
    assert found["pack"] is packed


@pytest.mark.parametrize(("pages", "packed"), [(512, True), (2048, False)])
def test_run_time_matrices_are_packed_whose_rows_lie_in_too_many_pages(
    untuned: Untuned, pages: int, packed: bool
) -> None:
    """Each of 1024 rows is a page; the caches hold all 4 MB of them."""
    workload = matmul(256, 1024, 1024, constant=False)
    found = untuned(workload, translated_pages=pages, cache_bytes=caches(4 * MI, 32 * MI))
    assert found["pack"] is packed


def test_winograd_reads_cached_weights_seldom_where_caches_are_slow(untuned: Untuned) -> None:
    """2.4 MB of transformed weights are beyond the second level and within the third."""
    workload = conv(16, channels=128, filters=128, size=28)
    fast, slow = (
        untuned(workload, cache_bytes=caches(MI, 32 * MI), bytes_per_cycle=(32, third, 2))
        for third in (26, 3)
    )
    assert slow.integer("block") > fast.integer("block")


@pytest.mark.parametrize(
    ("size", "channels", "inner"), [(128, 1024, True), (120, 1024, False), (128, 256, False)]
)
def test_rows_that_share_cache_sets_are_read_once(
    untuned: Untuned, size: int, channels: int, inner: bool
) -> None:
    """64 blocks of 16 channels, with a stride of a power of two, are more than the lines of a
    set."""
    workload = conv(16, channels=channels, filters=256, size=size, kernel=1)
    found = untuned(workload, "strict", cache_bytes=caches(MI, 32 * MI))
    assert (found.text("order") == "lanes-inner") is inner
    assert not inner or found.integer("tile") >= 9


def test_products_with_several_rows_ask_for_weights_ahead(untuned: Untuned) -> None:
    """One row reads them at the speed of the memory as it is."""
    for workload, expected in ((matmul(7, 384, 768), 8192), (matmul(1, 384, 768), 0)):
        assert untuned(workload, prefetch_bytes=8192).integer("prefetch") == expected
    assert untuned(matmul(7, 384, 768)).integer("prefetch") == 0, "nobody measured it there"
    for rows, expected in ((5, 0), (6, 8192)):
        found = untuned(matmul(rows, 384, 768), prefetch_bytes=8192, prefetch_rows=6)
        assert found.integer("prefetch") == expected


def test_open_rows_ask_for_weights_ahead() -> None:
    workload = matmul(dynamic_size(Dimension("rows", 1, 512)), 768, 384)
    (schedule, *_) = untuned_schedules(workload, Mode(resolve_target("znver5")))
    assert schedule["prefetch"] == "panel"
    deep = matmul(dynamic_size(Dimension("rows", 1, 512)), 3072, 8192)
    (schedule, *_) = untuned_schedules(deep, Mode(resolve_target("znver5")))
    assert schedule["prefetch"] == 8192, "no cache holds two panels"
    (schedule, *_) = untuned_schedules(deep, Mode(resolve_target("znver4")))
    assert schedule["prefetch"] == 0, "it may be two rows"
    (schedule, *_) = untuned_schedules(workload, Mode(V4))
    assert schedule["prefetch"] == 0, "nobody measured it there"


def test_a_range_is_offered_the_tiles_of_all_its_sizes() -> None:
    """The typical size of 2..16 is five."""
    for low, high, least in ((2, 16, 16), (1, 4, 4), (1, 512, 28)):
        workload = matmul(dynamic_size(Dimension("rows", low, high)), 384, 384)
        space = schedule_space(workload, Mode(V4))
        assert max(s.integer("tile") for s in space if s.algorithm == "gemm") >= least
        assert space.default() == untuned_schedule(workload, Mode(V4))
