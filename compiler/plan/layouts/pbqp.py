"""Solver for partitioned boolean quadratic problems (PBQP).

A problem is a graph whose nodes each choose one option. A node has a cost per option, an edge a
cost per pair of its nodes' options; the sum is minimised. Nodes with one or two neighbours are
eliminated without loss, as in a dynamic program over a series-parallel graph. If all remaining
nodes have three or more neighbours, a heuristic decides one of them. Scholz and Eckstein, "Register
Allocation for Irregular Architectures" (2002); Anderson and Gregg, "Optimal DNN Primitive Selection
with Partitioned Boolean Quadratic Programming" (2018).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


class Pbqp:
    """A PBQP instance, which `node` and `edge` build and `solve` minimises.

    The result is deterministic.
    """

    def __init__(self) -> None:
        self._costs: list[Costs] = []
        self._edges: list[dict[int, Costs]] = []

    def node(self, costs: Sequence[float]) -> int:
        """Add a node with one option per cost; return the node's number."""
        self._costs.append(np.array(costs, np.float64))
        self._edges.append({})
        return len(self._costs) - 1

    def edge(self, first: int, second: int, costs: Costs) -> None:
        """Add the cost `costs[i, j]` of option i of the first node together with option j of the
        second."""
        if first == second:
            self._costs[first] = self._costs[first] + np.diagonal(costs)
            return
        known = self._edges[first].get(second)
        total = costs if known is None else known + costs
        self._edges[first][second] = total
        self._edges[second][first] = total.T

    def total(self, options: Sequence[int]) -> float:
        """Return the total cost of a solution; `options[n]` is the option of node n."""
        total = sum(
            float(costs[option]) for costs, option in zip(self._costs, options, strict=True)
        )
        for first, edges in enumerate(self._edges):
            for second, costs in edges.items():
                if first < second:
                    total += float(costs[options[first], options[second]])
        return total

    def solve(self) -> list[int]:
        """Return the index of the option chosen for each node.

        The choice is optimal if every node had at most two neighbours when it was eliminated.
        Otherwise it costs no more than the result of a greedy walk over the nodes in order.
        """
        found, exact = _Reduction(self._costs, self._edges).run()
        if exact:
            return found
        return min(self._improved(found), self._improved(self._in_order()), key=self.total)

    def _in_order(self) -> list[int]:
        options: list[int] = []
        for node, costs in enumerate(self._costs):
            seen = costs.copy()
            for other, edge in self._edges[node].items():
                seen += edge[:, options[other]] if other < node else edge.min(axis=1)
            options.append(int(seen.argmin()))
        return options

    def _improved(self, options: list[int]) -> list[int]:
        """Improve a solution by local search, and return it.

        In each of at most four rounds, every node changes to the option that is cheapest with the
        present options of its neighbours.
        """
        options = list(options)
        for _ in range(4):
            changed = False
            for node, costs in enumerate(self._costs):
                seen = costs.copy()
                for other, edge in self._edges[node].items():
                    seen += edge[:, options[other]]
                best = int(seen.argmin())
                if seen[best] < seen[options[node]]:
                    options[node], changed = best, True
            if not changed:
                break
        return options


class _Reduction:
    """The reduction of a PBQP instance: removes all nodes, then chooses their options in reverse
    order.

    The node with the fewest neighbours is removed first.
    """

    def __init__(self, costs: Sequence[Costs], edges: Sequence[dict[int, Costs]]) -> None:
        self._costs = list(costs)
        self._edges = [dict(each) for each in edges]
        self._removed: list[tuple[int, dict[int, Costs]]] = []
        self._decided: dict[int, int] = {}
        self._queue = [(min(len(e), 3), node) for node, e in enumerate(self._edges)]
        heapq.heapify(self._queue)

    def run(self) -> tuple[list[int], bool]:
        """Return the option of each node, and whether the solution is optimal."""
        exact = True
        gone = [False] * len(self._costs)
        while self._queue:
            degree, node = heapq.heappop(self._queue)
            if gone[node] or degree != min(len(self._edges[node]), 3):
                continue
            gone[node] = True
            if degree == 3:
                exact = False
                self._decide(node)
            else:
                self._fold(node)
        for node, edges in reversed(self._removed):
            seen = self._costs[node].copy()
            for other, costs in edges.items():
                seen += costs[:, self._decided[other]]
            self._decided[node] = int(seen.argmin())
        return [self._decided[node] for node in range(len(self._costs))], exact

    def _fold(self, node: int) -> None:
        """Remove a node with at most two neighbours, without loss.

        For each option of a single neighbour, the minimum cost of the node is added to the
        neighbour's cost. For each pair of options of two neighbours, it is added to the cost of the
        edge between them.
        """
        edges = self._detach(node)
        self._removed.append((node, edges))
        match list(edges.items()):
            case [(other, costs)]:
                self._costs[other] = self._costs[other] + (self._costs[node][:, None] + costs).min(
                    0
                )
            case [(first, left), (second, right)]:
                through = self._costs[node][:, None, None] + left[:, :, None] + right[:, None, :]
                added = through.min(axis=0)
                known = self._edges[first].get(second)
                total = added if known is None else known + added
                self._edges[first][second] = total
                self._edges[second][first] = total.T
        self._enqueue(edges)

    def _decide(self, node: int) -> None:
        """Choose the option of a node with three or more neighbours by a heuristic, and remove the
        node.

        The chosen option is cheapest if each neighbour could choose its best option independently.
        """
        edges = self._detach(node)
        seen = self._costs[node].copy()
        for other, costs in edges.items():
            seen += (costs + self._costs[other]).min(axis=1)
        option = int(seen.argmin())
        self._decided[node] = option
        for other, costs in edges.items():
            self._costs[other] = self._costs[other] + costs[option]
        self._enqueue(edges)

    def _detach(self, node: int) -> dict[int, Costs]:
        edges, self._edges[node] = self._edges[node], {}
        for other in edges:
            del self._edges[other][node]
        return edges

    def _enqueue(self, nodes: dict[int, Costs]) -> None:
        for node in nodes:
            heapq.heappush(self._queue, (min(len(self._edges[node]), 3), node))
