"""Dead code elimination: drop what no output of the graph needs.

Before:                         After:
    %1 = exp(%0)                    %2 = relu(%0)
    %2 = relu(%0)                   return %2
    return %2

What says that an input is text stays, though no output may need the input.
"""

from __future__ import annotations

from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.ops.labels import is_of_input


def dead_code(graph: Graph) -> Graph:
    """Drop nodes, constants and types that no output depends on; inputs of the graph stay.

    A graph without any is returned as it is.
    """
    alive = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if is_of_input(node, graph.inputs) or not alive.isdisjoint(node.outputs):
            alive.update(node.inputs)
            alive.update(node.outputs)
            kept.append(node)
    alive.update(graph.inputs)
    if len(kept) == len(graph.nodes) and graph.types.keys() <= alive:
        return graph
    return graph.replace(
        nodes=kept[::-1],
        types={value: kind for value, kind in graph.types.items() if value in alive},
        constants={value: array for value, array in graph.constants.items() if value in alive},
    )
