"""Ranges cut into intervals: which pieces there are, and the trees that choose between them."""

from __future__ import annotations

from itertools import product as combinations

import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.plan.intervals import (
    Box,
    SizeSplit,
    boxes,
    holds,
    intervals,
    leaves,
    merged,
    pieces,
)
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.sizes import check_values, dimensions, dynamic_size, dynamic_sizes
from tilewright.compiler.sizes.ranges import parse_range

BORDERS = (1, 2, 15, 16, 17, 127, 128, 129)


def product(*ranges: str) -> Workload:
    """A product of matrices whose leading extents are open."""
    make = Maker()
    shape = [dynamic_size(parse_range(f"s{n}", text)) for n, text in enumerate(ranges)]
    return as_workload(
        make.graph(make("matmul", make.input("a", *shape, 64), make.input("b", 64, 32)))
    )


def texts(workload: Workload) -> list[str]:
    return [" ".join(d.range_text for d in box) for box in boxes(workload)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1..512", ["1..1", "2..16", "17..128", "129..512"]),
        ("1..", ["1..1", "2..16", "17..128", "129.."]),
        ("1..16", ["1..1", "2..16"]),
        ("16..17", ["16..16", "17..17"]),
        ("17..128", ["17..128"]),
        ("0..40", ["0..1", "2..16", "17..40"]),
        ("32..640:32", ["32..128:32", "160..640:32"]),
        ("0..640:32", ["0..128:32", "160..640:32"]),  # 0 alone needs no tuning
        ("0..", ["0.."]),
    ],
)
def test_ranges_are_cut_at_the_same_sizes_wherever_they_lie(text: str, expected: list[str]) -> None:
    assert [each.range_text for each in intervals(parse_range("n", text))] == expected


def test_the_longest_range_is_cut_most() -> None:
    assert len(texts(product("1..512"))) == 4
    assert texts(product("1..64", "1..512")) == [
        f"{batch} {rows}"
        for batch in ("1..1", "2..64")
        for rows in ("1..1", "2..16", "17..128", "129..512")
    ]
    assert texts(product("32..640:32", "32..640:32")) == [
        "32..128:32 32..640:32",
        "160..640:32 32..640:32",
    ]


def test_what_multiplies_nothing_stays_whole() -> None:
    make = Maker()
    rows = dynamic_size(parse_range("s0", "1..512"))
    workload = as_workload(make.graph(make("relu", make.input("a", rows, 64))))
    (whole,) = pieces(workload)
    assert (whole.workload, whole.box) == (workload, workload.dimensions)
    (fixed,) = pieces(workload.at({"s0": 7}))
    assert fixed.workload == workload.at({"s0": 7})


def test_pieces_are_workloads_of_their_own() -> None:
    """A piece of one size is that of a model of that size; equal pieces of two ranges are one."""
    workload = product("1..64", "1..512")
    found = pieces(workload)
    one, row, *_ = found
    assert one.workload == workload.at({"s0": 1, "s1": 1}) and one.positions == ()
    assert row.positions == (1,)
    assert [d.name for d in row.workload.dimensions] == ["s0"], "named as if it were alone"
    assert len({piece.workload.key for piece in found}) == len(found) == 8
    shared = {each.workload.key for each in pieces(product("1..512"))}
    assert len(shared & {each.workload.key for each in pieces(product("1..300"))}) == 3
    for piece in found:
        assert Workload.parse(piece.workload.text()) == piece.workload
        assert set(dimensions(*dynamic_sizes(piece.workload))) == set(piece.workload.dimensions)


def chosen(tree: object, sizes: tuple[int, ...]) -> object:
    """The leaf that a tree chooses at numbers of the dimensions' multiples."""
    while isinstance(tree, SizeSplit):
        tree = tree.below if sizes[tree.position] <= tree.last else tree.above
    return tree


@pytest.mark.parametrize("same", ["none", "all", "rows", "batches", "some"])
def test_trees_choose_the_part_that_a_size_is_in(same: str) -> None:
    workload = product("1..200", "1..200")
    parts = [(box, number) for number, box in enumerate(boxes(workload))]

    def alike(a: int, b: int) -> bool:
        match same:
            case "none":
                return a == b
            case "all":
                return True
            case "rows":
                return a // 2 == b // 2
            case "batches":
                return a % 2 == b % 2
            case _:
                return a == b or {a, b} <= {2, 3, 4}

    tree = merged(parts, alike)
    found = list(leaves(tree))
    assert len(found) == {"none": 8, "all": 1, "rows": 4, "batches": 2, "some": 7}[same]
    for sizes in combinations(BORDERS, BORDERS):
        values = dict(zip(("s0", "s1"), sizes, strict=True))
        box, number = chosen(tree, sizes)  # type: ignore[misc]
        check_values(box, values)  # raises unless it holds them
        (own,) = [n for part, n in parts if _within(part, values)]
        assert alike(number, own)
        assert holds(box, next(part for part, n in parts if n == own))


def _within(box: Box, values: dict[str, int]) -> bool:
    return all(values[dimension.name] in dimension for dimension in box)
