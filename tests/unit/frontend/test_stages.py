"""What waits behind a cut: the nodes of a branch in the graph that its If stands in."""

from __future__ import annotations

import onnx.parser

from compiler.frontend.nodes import subgraph
from compiler.frontend.order import reads
from compiler.frontend.stages import unwrapped


def test_values_of_a_body_that_are_called_as_some_of_its_branch_stay_its_own() -> None:
    graph = onnx.parser.parse_graph("""
    choice (float[n, 2] x, bool go) => (float[a, b] y) {
        y = If (go) <
            then_branch = sums () => (float[c, d] found) {
                turned = Relu (x) more = Neg (x)
                found = Scan <num_scan_inputs = 1,
                    body = each (float[2] turned) => (float[2] sum)
                        <float[2] found = {2, 2}>
                        { one = Mul (turned, found) sum = Add (one, more) }> (turned) },
            else_branch = none () => (float[e, f] other) { other = Identity (x) }> }
    """)
    (node,) = graph.node
    made = unwrapped(subgraph(node, "then_branch", "choice"), node, "choice")
    assert [list(reads(each)) for each in made.node[2:]] == [
        ["choice/turned", "choice/more"],
        ["choice/found"],
    ]
