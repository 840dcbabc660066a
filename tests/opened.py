"""Models with open dimensions: a job plans every model that can be imported at a size."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from tilewright.compiler import driver
from tilewright.compiler.errors import CompilerError
from tilewright.service.jobs.plan.planning import ModelRequest
from tilewright.service.jobs.plan.segment_planning import plan_first_program


def dims_of(port: Any) -> list[str | int]:
    """The dimensions of an input, a text for an open one."""
    return [dim.dim_param or dim.dim_value for dim in port.type.tensor_type.shape.dim]


OPEN, SHARED = 0.3, 0.3
"""How often a dimension is open, and how often it has the name of another one."""


def dynamic_dimensions(proto: Any, chance: random.Random) -> None:
    """Open some dimensions of a model's inputs."""
    count = 0
    for port in proto.graph.input:
        for dim in port.type.tensor_type.shape.dim:
            if chance.random() < OPEN:
                dim.dim_param = f"d{max(count - (chance.random() < SHARED), 0)}"
                count += 1


def refusal(proto: Any, feeds: Mapping[str, Any]) -> str:
    """Why a job refuses a model that can be imported at the sizes of these inputs; empty if it does
    not, or if it names the dimension that needs a size."""
    data: bytes = proto.SerializeToString()
    sizes: dict[str | int, int] = {}
    for port in proto.graph.input:
        for dim, size in zip(dims_of(port), feeds[port.name].shape, strict=True):
            if sizes.setdefault(dim, size) != size:
                return ""  # one name for several sizes
    try:
        driver.load_graph(data, {dim: size for dim, size in sizes.items() if isinstance(dim, str)})
    except CompilerError:
        return ""
    try:
        plan_first_program(ModelRequest(data), {})
    except CompilerError as error:
        return "" if "give it one with --dim" in str(error) else str(error)
    return ""
