"""Drawings in layers: nothing overlaps, all edges lead down, and deep models stay narrow."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

from tilewright.service.jobs.report.layered import BEND_GAP, GAP, Layered, layered

HEIGHT, DISTANCE = 40.0, 80.0


def drawn(widths: list[float], edges: list[tuple[int, int]]) -> Layered:
    return layered(widths, edges, HEIGHT, DISTANCE)


def test_nothing_and_one_box() -> None:
    assert drawn([], []).centres == ()
    one = drawn([100.0], [])
    assert (one.centres, one.width, one.height) == (((50.0, 20.0),), 100.0, HEIGHT)


def test_a_diamond_is_symmetric() -> None:
    found = drawn([100.0] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    xs, ys = zip(*found.centres, strict=True)
    assert ys == (20.0, 100.0, 100.0, 180.0)
    assert abs(xs[0] - xs[3]) < 1.0 and abs(xs[2] - xs[1]) == 100.0 + GAP
    assert abs((xs[1] + xs[2]) / 2 - xs[0]) < 5.0


def test_an_edge_passes_beside_the_boxes_between() -> None:
    found = drawn([100.0] * 3, [(0, 1), (1, 2), (0, 2)])
    (_, bend, _) = found.paths[2]
    assert abs(bend[0] - found.centres[1][0]) >= 50.0 + BEND_GAP - 1e-6
    assert bend[1] == found.centres[1][1]


def test_what_nothing_leads_to_is_beside_its_reader() -> None:
    chain = [(n, n + 1) for n in range(5)]
    found = drawn([50.0] * 7, [*chain[:4], (5, 6), (4, 6)])
    assert found.centres[5][1] == found.centres[6][1] - DISTANCE


def test_random_graphs_are_drawn_without_overlaps() -> None:
    for seed in range(8):
        chance = random.Random(seed)
        count = 60
        widths = [chance.uniform(30.0, 200.0) for _ in range(count)]
        edges = {(chance.randrange(n), n) for n in range(1, count) for _ in range(2)}
        found = drawn(widths, sorted(edges))
        boxes = [(x - w / 2, x + w / 2, y) for (x, y), w in zip(found.centres, widths, strict=True)]
        for (left, right, y), (other, end, below) in combinations(boxes, 2):
            assert y != below or right <= other + 1e-6 or end <= left + 1e-6
        assert min(b[0] for b in boxes) >= -1e-6 and max(b[1] for b in boxes) <= found.width + 1e-6
        for (start, end), path in zip(sorted(edges), found.paths, strict=True):
            assert path[0] == (found.centres[start][0], found.centres[start][1] + HEIGHT / 2)
            assert path[-1] == (found.centres[end][0], found.centres[end][1] - HEIGHT / 2)
            assert all(lower > upper for (_, upper), (_, lower) in pairwise(path))


def test_a_deep_residual_model_stays_narrow() -> None:
    count = 900
    edges = [(n, n + 1) for n in range(count - 1)] + [(n, n + 3) for n in range(0, count - 3, 3)]
    assert drawn([120.0] * count, sorted(edges)).width < 2000.0
