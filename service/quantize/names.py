"""Renames values and nodes whose names could collide with names that onnxruntime derives.

The quantiser derives names of new values: from `x` it derives `x_scale`, `x_quantized` and
`x_QuantizeLinear`, and for a bias that several nodes share `x1`, `x2` and so on. The result is
invalid if the model already has a value `x_scale`. A name that is a prefix of another name is
therefore replaced while the model is quantised, and restored afterwards:

    names of the model:       x,   x_scale
    temporary names:          x.0, x_scale
    after the quantisation:   x.0, x_scale, x.0_scale
    after the restoration:    x,   x_scale, x.0_scale
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import count

import onnx


def temporary_names(graph: onnx.GraphProto) -> dict[str, str]:
    """Return a temporary name for each name of a node or value that is a prefix of another name.

    Names in bodies of If, Loop and Scan count, too. No name begins with a temporary name.
    """
    names = {name for one in graphs(graph) for name in _names(one)}
    starts = {
        name[:end]
        for name in names
        for end, letter in enumerate(name)
        if letter == "_" or letter.isdecimal()
    }
    found: dict[str, str] = {}
    for name in sorted(names & starts):
        taken = names | starts
        found[name] = next(
            other for number in count() if (other := f"{name}.{number}") not in taken
        )
    return found


def rename(graph: onnx.GraphProto, to: Mapping[str, str]) -> None:
    """Rename nodes and values of a graph, and of the bodies of If, Loop and Scan in it, in place.

    `to` has the new names by old name.
    """
    for one in graphs(graph):
        for node in one.node:
            node.name = to.get(node.name, node.name)
            for values in (node.input, node.output):
                values[:] = [to.get(value, value) for value in values]
        for each in (*one.input, *one.output, *one.value_info, *one.initializer):
            each.name = to.get(each.name, each.name)


def fresh(base: str, taken: Collection[str]) -> str:
    """Return a name that is not in `taken`: `base` with zero or more underscores appended."""
    while base in taken:
        base += "_"
    return base


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph, and then all graphs in its nodes: branches of If, bodies of Loop and Scan."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from graphs(body)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from (name for name in (node.name, *node.input, *node.output) if name)
    for each in (*graph.input, *graph.output, *graph.initializer):
        yield each.name
