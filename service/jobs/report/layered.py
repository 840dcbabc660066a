"""Draws a directed graph in layers from top to bottom: positions of boxes, and routes of edges.

Sugiyama, Tagawa, Toda: "Methods for visual understanding of hierarchical system structures" (1981).
Each box lies in a layer below all of its predecessors. An edge across several layers has a bend in
each layer in between. Boxes are ordered within their layers by the mean positions of their
neighbours, which keeps the number of crossings small. Then each box moves as close to this mean
position as the minimal distances allow. This is a least-squares problem with a fixed order, solved
by the pool-adjacent-violators algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

GAP = 24.0
"""Horizontal distance between neighbouring boxes of a layer of the drawing."""

BEND_GAP = 12.0
"""Horizontal distance between an edge that passes through a layer and the boxes or edges next to
it."""

LONGEST = 400
"""Largest number of layers that an edge may cross with bends. A longer edge is straight and runs
behind boxes."""

MOST_BENDS = 20_000

PULL = 0.98
"""Factor that pulls positions towards the middle in each layer. Without it, residual edges shift
the drawing of a deep model more and more to one side."""

SWEEPS = 6

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Layered:
    """The layout of a graph.

    Attributes:
        centres: the coordinates (x, y) of the centre of each box, in the order of the boxes.
        paths: for each edge, the coordinates of its ends and bends: from the lower side of a box
            to the upper side of another box.
        width: the width of the drawing.
        height: the height of the drawing.
    """

    centres: tuple[Point, ...]
    paths: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def layered(
    widths: Sequence[float], edges: Sequence[tuple[int, int]], height: float, distance: float
) -> Layered:
    """Lay out the boxes of a graph in layers, and route its edges.

    Args:
        widths: the width of each box; boxes are in topological order.
        edges: for each edge the indices of its boxes; the second index is larger than the first.
        height: the height of all boxes.
        distance: the vertical distance between the centres of two layers.
    """
    if not widths:
        return Layered((), tuple(() for _ in edges), 0.0, 0.0)
    rows = _layers(len(widths), edges)
    net = _Net(widths, rows)
    chains = [net.chain(start, end) for start, end in edges]
    net.order()
    net.place()
    least = min(x - w / 2 for x, w in zip(net.x, net.widths, strict=True))
    most = max(x + w / 2 for x, w in zip(net.x, net.widths, strict=True))

    def at(vertex: int, side: float = 0.0) -> Point:
        return (net.x[vertex] - least, net.row[vertex] * distance + height / 2 + side)

    paths = tuple(
        (at(start, height / 2), *map(at, bends), at(end, -height / 2))
        for (start, end), bends in zip(edges, chains, strict=True)
    )
    centres = tuple(map(at, range(len(widths))))
    return Layered(centres, paths, most - least, max(rows) * distance + height)


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each box, from 0 at the top: the length of the longest path to it.

    A box without incoming edges is moved down to the layer just above its first successor.

    Args:
        count: the number of boxes.
        edges: the indices of the boxes of each edge.
    """
    rows = [0] * count
    fed = [False] * count
    for start, end in sorted(edges, key=lambda edge: edge[1]):
        rows[end] = max(rows[end], rows[start] + 1)
        fed[end] = True
    readers: dict[int, int] = {}
    for start, end in edges:
        readers[start] = min(rows[end], readers.get(start, rows[end]))
    return [row if fed[n] else max(0, readers.get(n, 1) - 1) for n, row in enumerate(rows)]


class _Net:
    """The graph to lay out, with a vertex for each box and each bend of an edge.

    Edges connect only vertices in adjacent layers.

    Args:
        widths: the width of each box.
        rows: the layer of each box.
    """

    def __init__(self, widths: Sequence[float], rows: Sequence[int]) -> None:
        self.widths = list(widths)
        self.row = list(rows)
        self.x = [0.0] * len(widths)
        self._boxes = len(widths)
        self._above: list[list[int]] = [[] for _ in widths]
        self._below: list[list[int]] = [[] for _ in widths]
        self._layers: list[list[int]] = []

    def chain(self, start: int, end: int) -> list[int]:
        """Add an edge between two boxes, with a bend in each layer between them.

        Returns:
            the indices of the bends; empty if the boxes are in adjacent layers, or if the edge
            would need too many bends: it is then drawn straight, and does not affect the layout.
        """
        span = self.row[end] - self.row[start]
        if span > LONGEST or len(self.row) - self._boxes + span > MOST_BENDS:
            return []
        bends = list(range(len(self.row), len(self.row) + span - 1))
        for n, _ in enumerate(bends, 1):
            self.row.append(self.row[start] + n)
            self.widths.append(0.0)
            self.x.append(0.0)
            self._above.append([])
            self._below.append([])
        way = [start, *bends, end]
        for upper, lower in pairwise(way):
            self._below[upper].append(lower)
            self._above[lower].append(upper)
        return bends

    def order(self) -> None:
        """Determine the order of the vertices within each layer so that few edges cross.

        In repeated sweeps, alternately downwards and upwards, each layer is sorted by the mean
        positions of the neighbours in the previous layer.
        """
        self._layers = [[] for _ in range(max(self.row) + 1)]
        for vertex in self._walk():
            self._layers[self.row[vertex]].append(vertex)
        place = [0.0] * len(self.row)
        for layer in self._layers:
            _number(layer, place)
        for sweep in range(SWEEPS):
            down = sweep % 2 == 0
            for layer in self._layers if down else reversed(self._layers):
                near = self._above if down else self._below
                key = {v: _mean([place[n] for n in near[v]], place[v]) for v in layer}
                layer.sort(key=key.__getitem__)
                _number(layer, place)

    def place(self) -> None:
        """Compute the x coordinate of each vertex, without changing the order within its layer."""
        for layer in self._layers:
            self._settle(layer, [0.0] * len(layer))
        for sweep in range(SWEEPS + 1):
            down = sweep % 2 == 0
            for layer in self._layers if down else reversed(self._layers):
                near = self._above if down else self._below
                wanted = [PULL * _mean([self.x[n] for n in near[v]], self.x[v]) for v in layer]
                self._settle(layer, wanted)

    def _settle(self, layer: Sequence[int], wanted: Sequence[float]) -> None:
        """Move the vertices of a layer as close to their wanted x coordinates as possible.

        The order in the layer and minimal distances between the vertices are kept.

        Args:
            layer: the vertices of the layer, in order.
            wanted: the wanted x coordinate of each.
        """
        offsets = [0.0]
        for left, right in pairwise(layer):
            half = (self.widths[left] + self.widths[right]) / 2
            gap = GAP if min(self.widths[left], self.widths[right]) > 0.0 else BEND_GAP
            offsets.append(offsets[-1] + half + gap)
        weights = [4.0 if not self.widths[v] else 1.0 for v in layer]  # bends: straight edges
        goals = [want - offset for want, offset in zip(wanted, offsets, strict=True)]
        for vertex, x, offset in zip(layer, _rising(goals, weights), offsets, strict=True):
            self.x[vertex] = x + offset

    def _walk(self) -> list[int]:
        """Return all vertices in depth-first order from the top.

        So the vertices of a connected component are adjacent in the initial order of each layer.
        """
        seen = [False] * len(self.row)
        found = []
        for root in sorted(range(len(self.row)), key=lambda v: (self.row[v], v)):
            pending = [root]
            while pending:
                vertex = pending.pop()
                if not seen[vertex]:
                    seen[vertex] = True
                    found.append(vertex)
                    pending += reversed(self._below[vertex])
        return found


def _number(layer: Sequence[int], place: list[float]) -> None:
    for n, vertex in enumerate(layer):
        place[vertex] = n - len(layer) / 2


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _rising(goals: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence that is closest to `goals`, by weighted least squares."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for goal, weight in zip(goals, weights, strict=True):
        mean, total, count = goal, weight, 1
        while pools and pools[-1][0] > mean:
            other, more, others = pools.pop()
            mean = (mean * total + other * more) / (total + more)
            total, count = total + more, count + others
        pools.append((mean, total, count))
    return [mean for mean, _, count in pools for _ in range(count)]
