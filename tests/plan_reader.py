"""Graph plans, read back from their JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.compiler.errors import ArtifactError
from tilewright.compiler.graph.text import parse_graph
from tilewright.compiler.loops.layout import Layout
from tilewright.compiler.plan.placement import Placement
from tilewright.compiler.plan.plan import (
    PLAN_SCHEMA,
    GraphPlan,
    Growth,
    KernelStep,
    NativeStep,
    RefusalStep,
    Step,
    ViewStep,
    control_step,
)
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.sizes import SlackDimension, parse_size, with_dimensions


def read_plan(
    data: Mapping[str, Any], constants: Mapping[str, np.ndarray] | None = None
) -> GraphPlan:
    """The plan whose `to_json` gave the data; `constants` resolves the digests in its graph.

    Raises:
        ArtifactError: if the data is of another version or incomplete.
    """
    if data.get("schema") != PLAN_SCHEMA:
        raise ArtifactError(f"graph plan: schema {data.get('schema')}, expected {PLAN_SCHEMA}")
    try:
        workloads = {key: Workload.parse(text) for key, text in data["workloads"].items()}
        graph = parse_graph(data["graph"], constants)
        steps: list[Step] = []
        known = {dimension.name: dimension for dimension in graph.dimensions}
        growing = data.get("growing", ())
        rooms = {name: SlackDimension(name, 0) for name in (str(each["room"]) for each in growing)}
        graph = with_dimensions(graph, {known[n]: r for n, r in rooms.items() if n in known})
        known |= rooms

        def whole(size: int | str) -> int:
            return parse_size(size, known) if isinstance(size, str) else int(size)

        for step in data["steps"]:
            if "bodies" in step:
                node = graph.producer(step["output"])
                if node is None or len(node.bodies) != len(step["bodies"]):
                    raise ValueError(f"no node with bodies makes '{step['output']}'")
                plans = [read_plan(body, constants) for body in step["bodies"]]
                steps.append(control_step(node, plans[:: 1 if node.op == "loop" else -1]))
            elif "view" in step:
                offsets = tuple(map(whole, step["offsets"]))
                steps.append(ViewStep(tuple(step["view"]), step["output"], offsets))
            elif "refusal" in step:
                steps.append(RefusalStep(str(step["refusal"]), step["output"]))
            elif "native" in step:
                parameters = tuple(map(whole, step["parameters"]))
                inputs = tuple(step["inputs"])
                steps.append(NativeStep(step["native"], parameters, inputs, step["output"]))
            else:
                inputs, sizes = tuple(step["inputs"]), tuple(step.get("sizes", ()))
                workload = workloads[step["kernel"]]
                if len(sizes) != len(workload.dimensions) or not set(sizes) <= set(known):
                    raise ValueError(f"sizes {sizes} of the kernel of '{step['output']}'")
                steps.append(KernelStep(workload, inputs, step["output"], sizes))
        placements = {
            value: Placement(
                Layout.parse(place["layout"]),
                tuple((int(before), int(after)) for before, after in place["halo"]),
            )
            for value, place in data["placements"].items()
        }
        grown = tuple(
            Growth(
                str(each["input"]),
                str(each["output"]),
                int(each["axis"]),
                whole(each["before"]),
                whole(each["after"]),
                rooms[each["room"]],
            )
            for each in growing
        )
        return GraphPlan(graph, tuple(steps), placements, grown)
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"graph plan: malformed: {error}") from error
