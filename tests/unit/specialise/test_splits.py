"""Where ranges of sizes are split, for models that are functions which ask about their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError, OutOfMemoryError, ScheduleError
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.segments import (
    LiveIn,
    LiveIns,
    ModelSegment,
    SegmentBoundary,
    SegmentGuard,
)
from tilewright.compiler.sizes import Dimension, dynamic_size, equal, smaller
from tilewright.compiler.sizes.ranges import default_ranges
from tilewright.compiler.specialise.splits import (
    ENDS_LIMIT,
    MOST_FIRST_PARTS,
    make_first_segment,
    make_segment,
)

Sizes = Mapping[str, int]


class Model:
    """A model with one input, whose extents are `names`. `compiled` gets a number or a range for
    each size."""

    def __init__(
        self, names: str, compiled: Callable[[Sizes], object], **ranges: Dimension
    ) -> None:
        self.names = names.split()
        crossing = LiveIn("x", "", DType.FLOAT32, tuple(self.names), deciding=False)
        defaults = default_ranges(name for name in self.names if name not in ranges)
        self.cut = SegmentBoundary[SegmentGuard](LiveIns((crossing,), ranges, defaults), whole=True)
        self.attempts = 0
        self._compiled = compiled

    def first(self, **hints: int) -> str:
        """The sizes that the first program serves; empty without one."""
        make_first_segment(self.cut, self.make, hints)
        return next(iter(self.cut.made)).text if self.cut.made else ""

    def at(self, **sizes: int) -> str:
        """The sizes that the program for these sizes serves."""
        values = {"x": np.broadcast_to(np.float32(0), [sizes[name] for name in self.names])}
        while True:
            facts = self.cut.guard(values)
            if facts in self.cut.made or self.make(self.cut, facts, values) is not None:
                return facts.text

    def make(
        self, cut: SegmentBoundary[SegmentGuard], facts: SegmentGuard, values: Mapping[str, Array]
    ) -> ModelSegment[SegmentGuard] | None:
        def stage() -> ModelSegment[SegmentGuard]:
            self.attempts += 1
            self._compiled({**dict(facts.sizes), **{d.name: dynamic_size(d) for d in facts.open}})
            return ModelSegment(facts, ("y",), None)

        return make_segment(cut, facts, cut.reads.exact(values), stage)


def within(limit: int, *names: str) -> Callable[[Sizes], object]:
    """Asks whether a sum of sizes is at most a number; both answers compile."""

    def compiled(sizes: Sizes) -> None:
        smaller(sum(sizes[name] for name in names or sizes), limit)

    return compiled


@pytest.mark.parametrize(("hint", "first"), [(128, "n 1..512"), (1000, "n 513..4096")])
def test_the_part_that_holds_the_hint_comes_first_and_others_when_they_are_met(
    hint: int, first: str
) -> None:
    model = Model("n", within(512))
    assert model.first(n=hint) == first
    assert len(model.cut.made) == 1
    for size, part in ((3, "n 1..512"), (600, "n 513..4096"), (5000, "n 513.."), (3, "n 1..512")):
        assert model.at(n=size) == part
    assert len(model.cut.made) == 3 and model.attempts == 4
    assert not (model.cut.reason or model.cut.asked or model.cut.refused)


def test_multiples_are_a_part_and_other_sizes_have_programs_of_their_own() -> None:
    def halved_and_doubled(sizes: Sizes) -> None:
        for name in ("height", "width"):
            size = sizes[name]
            for _ in range(3):
                if not equal(size // 2 * 2, size):
                    raise InvalidModelError("an odd size")
                size = size // 2

    model = Model("height width batch", halved_and_doubled)
    found = model.first(height=224, width=224, batch=1)
    assert found == "height 8..4096:8, width 8..4096:8, batch 1..4096"
    assert model.at(height=80, width=640, batch=3) == found
    with pytest.raises(InvalidModelError, match="odd"):
        model.at(height=9, width=16, batch=1)
    assert model.at(height=80, width=640, batch=3) == found


def test_a_refused_hint_gives_way_to_the_part_that_the_model_takes() -> None:
    def reflected(sizes: Sizes) -> None:
        if sizes["n"] <= 300:
            raise InvalidModelError("padding of 300 reflects n elements")

    model = Model("n batch", reflected)
    assert model.first(n=128, batch=1) == "n 301..4096, batch 1..4096"
    with pytest.raises(InvalidModelError):
        model.at(n=128, batch=1)
    assert not model.cut.reason


def test_a_size_that_an_equality_needs_is_found() -> None:
    """A recogniser of text lines takes images of one height."""

    def squeezed(sizes: Sizes) -> None:
        if not equal(sizes["height"] + 2, 50):
            raise InvalidModelError("the height of the features is removed")

    model = Model("height width", squeezed)
    assert model.first(height=224, width=224) == "height=48, width 1..4096"
    assert model.at(height=48, width=7) == "height=48, width 1..4096"


def test_sums_split_all_of_their_sizes_once() -> None:
    model = Model("past new", within(1024))
    found = model.first(past=128, new=128)
    assert found == "past 1..512, new 1..512"
    assert model.at(past=3, new=500) == found
    assert model.at(past=600, new=3) == "past=600, new=3"


def test_a_range_that_has_a_program_keeps_it_when_a_later_question_splits_its_sizes() -> None:
    def asks_without_m(sizes: Sizes) -> None:
        if type(sizes["m"]) is int:
            smaller(sizes["n"], 100)

    model = Model("n m", asks_without_m)
    found = model.first(n=8, m=5)
    assert found == "n 1..4096, m 1..4096"
    assert model.at(n=8, m=0) == "m=0, n 1..100"
    assert model.at(n=500, m=5) == found
    assert model.at(n=500, m=0) == "m=0, n 101..4096"


def test_ranges_that_were_given_are_split_within_and_keep_their_multiple() -> None:
    model = Model("n", within(100), n=Dimension("n", 2, 64, 4))
    found = model.first(n=32)
    assert found == "n 8..100:4"
    assert model.at(n=104) == "n 104..256:4"


@pytest.mark.parametrize("low", [0, 1])
def test_a_range_may_begin_at_0(low: int) -> None:
    model = Model("n", lambda sizes: None, n=Dimension("n", low, 9))
    found = model.first(n=4)
    assert found == f"n {low}..9"
    assert model.at(n=0) == (found if low == 0 else "n=0")

    asking = Model("n", lambda sizes: bool(sizes["n"]), n=Dimension("n", 0, 9))
    assert asking.first(n=4) == "n 1..9"


def test_ranges_are_split_so_often_and_no_more() -> None:
    def stairs(sizes: Sizes) -> None:
        for step in range(2000, 20, -1):
            smaller(sizes["n"], step)

    model = Model("n", stairs)
    model.first(n=5)
    assert len(model.cut.ends["n"]) <= ENDS_LIMIT and model.attempts < 40
    assert model.at(n=5) == "n=5"
    assert model.at(n=6) == "n=6"


def test_a_model_that_refuses_all_sizes_is_tried_so_often_and_no_more() -> None:
    def never(sizes: Sizes) -> None:
        for size in sizes.values():
            for limit in (50, 60, 70):
                smaller(size, limit)
        raise InvalidModelError("at no size")

    model = Model("a b c d e", never)
    assert model.first(a=55, b=55, c=55, d=55, e=55) == ""
    assert model.attempts <= MOST_FIRST_PARTS


def test_what_no_program_of_a_range_can_do_is_said_once() -> None:
    def fails(sizes: Sizes) -> None:
        if type(sizes["n"]) is not int:
            raise ScheduleError("no schedule")

    model = Model("n", fails)
    assert model.first(n=5) == ""
    assert model.cut.reason == "no schedule" and model.attempts == 1
    assert (model.at(n=5), model.at(n=6)) == ("n=5", "n=6")

    def full(sizes: Sizes) -> None:
        raise OutOfMemoryError("full")

    with pytest.raises(OutOfMemoryError):
        Model("n", full).first(n=5)
