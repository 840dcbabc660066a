"""Dead code elimination: drop what no output of the graph needs.

Before:                         After:
    %1 = exp(%0)                    %2 = relu(%0)
    %2 = relu(%0)                   return %2
    return %2
"""

from __future__ import annotations

from compiler.graph.ir import Graph
from compiler.passes.rewrite import keep, rewrite


def dead_code(graph: Graph) -> Graph:
    """Drop nodes, constants and types that no output depends on; inputs of the graph stay."""
    return rewrite(graph, keep)
