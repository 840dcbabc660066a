"""Split concatenations of many operands into a tree of concatenations of few operands.

Before:                                 After, for a width of 2:
    %4 = concat(%0, %1, %2, %3)             %5 = concat(%0, %1); %6 = concat(%2, %3)
                                            %4 = concat(%5, %6)

The kernel of a concatenation has a stage (a C function) for each operand. A kernel of 50,000 stages
takes minutes to compile. In a tree, many kernels are equal and compiled once. An operand that is
already at its place in the result is not copied again. Elsewhere: a balanced tree rewrite, as XLA's
tree reduction rewriter does for wide reductions.
"""

from __future__ import annotations

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.passes.rewrite import Rewriter, rewrite

WIDTH = 64
"""Maximum number of operands that one kernel concatenates. DenseNet's widest concatenation has
49."""


def split_concats(graph: Graph) -> Graph:
    """Split every concatenation of more than `WIDTH` operands."""
    return rewrite(graph, _split)


def _split(rewriter: Rewriter, node: Node) -> str | None:
    if node.op != "concat" or len(node.inputs) <= WIDTH:
        return None
    pieces = node.inputs
    while len(pieces) > WIDTH:
        parts = [pieces[at : at + WIDTH] for at in range(0, len(pieces), WIDTH)]
        pieces = tuple(
            rewriter.emit("concat", part, node.attrs, f"{node.output}.part{number}")
            if len(part) > 1
            else part[0]
            for number, part in enumerate(parts)
        )
    return rewriter.emit("concat", pieces, node.attrs)
