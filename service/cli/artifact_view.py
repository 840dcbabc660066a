"""Formats the output of `tilewright show graph` for an artifact."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.compiler.runtime.artifact import Artifact, SizedProgram
from tilewright.compiler.runtime.ports import dynamic_dims, shape_text
from tilewright.compiler.runtime.program import Port
from tilewright.service.show.console import rich_facts, rich_table
from tilewright.service.show.table import CellKind, Column, table
from tilewright.service.show.units import size


def artifact_facts(artifact: Artifact) -> dict[str, Any]:
    """Return an artifact's target, options and programs as plain data for `json.dumps`."""
    return {
        "target": artifact.target.get("name"),
        "cpu": artifact.target.get("cpu"),
        "threads": artifact.metadata.get("threads"),
        "numerics": artifact.metadata.get("numerics"),
        "weight_bytes": max(entry.program.weight_bytes for entry in artifact.programs),
        "pads": artifact.ports.pad,
        "cuts": 0 if artifact.stages is None else sum(1 for _ in artifact.stages.walk()) - 1,
        "outputs": list(artifact.ports.outputs),
        "programs": [_program_facts(entry) for entry in artifact.programs],
    }


def _program_facts(entry: SizedProgram) -> dict[str, Any]:
    program = entry.program
    return {
        "name": program.name,
        "sizes": dict(entry.sizes),
        "ranges": {d.name: d.range_text for d in program.dimensions},
        "borders": {name: list(last) for name, last in program.borders.items()},
        "inputs": [_port_facts(port) for port in program.inputs],
        "outputs": [_port_facts(port) for port in program.outputs],
        "kernels": len(program.kernels),
        "instructions": len(program.instructions),
    }


def _port_facts(port: Port) -> dict[str, Any]:
    return {
        "name": port.name,
        "dtype": port.dtype.value,
        "shape": list(dynamic_dims(port.shape)),
        "text": f"{port.name}: {port.dtype}{shape_text(port.shape)}",
    }


def artifact_view(facts: dict[str, Any]) -> RenderableType:
    """Return a printable description of an artifact, with a table of its programs.

    `facts` is the result of `artifact_facts`.
    """
    first = facts["programs"][0]
    outputs = [port["text"] for port in first["outputs"]]
    borders = ", ".join(
        f"{name} {' and '.join(map(str, last))}" for name, last in first["borders"].items()
    )
    rows = [
        ("artifact", first["name"]),
        ("target", f"{facts['target']}, {facts['threads']} threads, numerics {facts['numerics']}"),
        ("inputs", ", ".join(port["text"] for port in first["inputs"])),
        ("outputs", ", ".join(facts["outputs"] if facts["cuts"] else outputs)),
        ("packed weights", size(facts["weight_bytes"])),
        *([("runs", f"in stages, with {facts['cuts']} cuts")] if facts["cuts"] else []),
        *([("other kernels", f"after {borders}")] if borders else []),
        *([("between sizes", "inputs are padded up to the next")] if facts["pads"] else []),
    ]
    described: tuple[Column[dict[str, Any]], ...] = (
        Column("sizes", _sizes, CellKind.NAME),
        Column("kernels", lambda program: str(program["kernels"])),
        Column("instructions", lambda program: str(program["instructions"])),
    )
    programs = rich_table(table(described, facts["programs"], "Programs"))
    return Group(rich_facts(rows), Text(), programs)


def _sizes(program: dict[str, Any]) -> str:
    ranges = [f"{name} {text}" for name, text in program["ranges"].items()]
    fixed = [f"{name}={number}" for name, number in program["sizes"].items()]
    return ", ".join(ranges or fixed) or "as in the model"
