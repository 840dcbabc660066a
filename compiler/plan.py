"""Graph plans: how a graph is cut into kernels, and how values lie between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import ArtifactError
from compiler.graph.ir import Graph
from compiler.graph.text import parse_graph, print_graph
from compiler.loops.layout import ROW_MAJOR, Layout, strides
from compiler.workload import Halo, Workload

PLAN_SCHEMA = 1
"""Version of the JSON form."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How a value lies in memory: its layout, and the zeros kept around it."""

    layout: Layout = ROW_MAJOR
    halo: Halo = ()

    def __post_init__(self) -> None:
        if self.halo and not any(any(pair) for pair in self.halo):
            object.__setattr__(self, "halo", ())


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Run a workload's kernel: `inputs[i]` of the graph enters as the workload's input i."""

    workload: Workload
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True)
class ViewStep:
    """`output` is `input` under another shape: the same bytes, nothing runs."""

    input: str
    output: str


Step = KernelStep | ViewStep


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The optimised graph (relayouts are `identity` nodes), its steps in order, and placements.

    `placements` covers every graph input and every step's output; inputs and outputs of the graph
    are row-major without a halo. Constants have none: each kernel packs its own.
    """

    graph: Graph
    steps: tuple[Step, ...]
    placements: Mapping[str, Placement]

    @property
    def kernels(self) -> tuple[KernelStep, ...]:
        """The steps that run a kernel, in order."""
        return tuple(step for step in self.steps if isinstance(step, KernelStep))

    def tasks(self) -> list[tuple[Workload, int]]:
        """Each distinct workload and how many kernels share it, in order of first use."""
        counts: dict[Workload, int] = {}
        for step in self.kernels:
            counts[step.workload] = counts.get(step.workload, 0) + 1
        return list(counts.items())

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json`; constants larger than a few elements are named by digest."""
        workloads = {step.workload.key: step.workload.text() for step in self.kernels}
        steps: list[dict[str, Any]] = []
        for step in self.steps:
            match step:
                case KernelStep():
                    steps.append(
                        {
                            "kernel": step.workload.key,
                            "inputs": list(step.inputs),
                            "output": step.output,
                        }
                    )
                case ViewStep():
                    steps.append({"view": step.input, "output": step.output})
        return {
            "schema": PLAN_SCHEMA,
            "graph": print_graph(self.graph),
            "workloads": workloads,
            "steps": steps,
            "placements": {
                value: {"layout": str(place.layout), "halo": [list(pair) for pair in place.halo]}
                for value, place in self.placements.items()
            },
        }

    @staticmethod
    def from_json(
        data: Mapping[str, Any], constants: Mapping[str, np.ndarray] | None = None
    ) -> GraphPlan:
        """Read what `to_json` gives; `constants` resolves the digests in the graph's text.

        Raises:
            ArtifactError: if the data is of another version or incomplete.
        """
        if data.get("schema") != PLAN_SCHEMA:
            raise ArtifactError(f"graph plan: schema {data.get('schema')}, expected {PLAN_SCHEMA}")
        try:
            workloads = {key: Workload.parse(text) for key, text in data["workloads"].items()}
            steps: list[Step] = []
            for step in data["steps"]:
                if "view" in step:
                    steps.append(ViewStep(step["view"], step["output"]))
                else:
                    workload = workloads[step["kernel"]]
                    steps.append(KernelStep(workload, tuple(step["inputs"]), step["output"]))
            placements = {
                value: Placement(
                    Layout.parse(place["layout"]),
                    tuple((int(before), int(after)) for before, after in place["halo"]),
                )
                for value, place in data["placements"].items()
            }
            return GraphPlan(parse_graph(data["graph"], constants), tuple(steps), placements)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"graph plan: malformed: {error}") from error


def same_bytes(shape: tuple[int, ...], first: Placement, second: Placement) -> bool:
    """Whether two placements put every element of a tensor at the same place of equal buffers.

    NCHW16c is row-major where one pixel is left and the channels divide by 16. An address is a sum
    over dimensions, so each dimension is compared alone.
    """
    if first == second:
        return True
    size = strides(shape, first.layout, first.halo)[1]
    if size != strides(shape, second.layout, second.halo)[1]:
        return False
    return all(
        np.array_equal(a, b)
        for a, b in zip(_addresses(shape, first), _addresses(shape, second), strict=True)
    )


def _addresses(shape: tuple[int, ...], place: Placement) -> list[np.ndarray]:
    """What each index along each dimension adds to an element's address, in elements."""
    result = [np.zeros(extent, np.int64) for extent in shape]
    steps, _ = strides(shape, place.layout, place.halo)
    for factor, step in zip(place.layout.resolved(len(shape)), steps, strict=True):
        before = place.halo[factor.dim][0] if place.halo else 0
        index = (np.arange(shape[factor.dim]) + before) // factor.div
        result[factor.dim] += (index % factor.mod if factor.mod else index) * step
    return result
