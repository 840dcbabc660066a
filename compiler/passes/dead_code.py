"""Dead code elimination: remove nodes that no output of the graph needs.

Before:                         After:
    %1 = exp(%0)                    %2 = relu(%0)
    %2 = relu(%0)                   return %2
    return %2

A node that declares an input as strings is kept, even if no output needs the input.
"""

from __future__ import annotations

from tilewright.compiler.graph.edit import live
from tilewright.compiler.graph.ir import Graph


def dead_code(graph: Graph) -> Graph:
    """Remove nodes, constants and types that no output depends on; inputs of the graph stay.

    If there is nothing to remove, the graph is returned unchanged.
    """
    nodes, values = live(graph.nodes, graph.inputs, graph.outputs)
    if len(nodes) == len(graph.nodes) and graph.types.keys() <= values:
        return graph
    return graph.replace(
        nodes=nodes,
        types={value: kind for value, kind in graph.types.items() if value in values},
        constants={value: array for value, array in graph.constants.items() if value in values},
    )
