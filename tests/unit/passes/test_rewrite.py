"""The rewriter and the patterns that the passes are written with."""

from __future__ import annotations

from tests.graphs import Maker, assert_equivalent, operators
from tilewright.compiler.graph.ir import Node
from tilewright.compiler.passes.match import Any_, Apply, Number, match
from tilewright.compiler.passes.rewrite import Rewriter, rewrite


def test_a_replacing_node_takes_over_the_name() -> None:
    g = Maker()
    x = g.input("x", 2, 3)
    before = g.graph(g("exp", g("relu", x, name="r"), name="out"))

    def rule(rewriter: Rewriter, node: Node) -> str | None:
        return rewriter.emit("abs", node.inputs) if node.op == "relu" else None

    after = rewrite(before, rule)
    assert [(n.name, n.op, n.output) for n in after.nodes] == [
        ("r", "abs", "r"),
        ("out", "exp", "out"),
    ]


def test_outputs_keep_their_names() -> None:
    g = Maker()
    x = g.input("x", 2, 3)
    y = g("exp", x, name="y")
    before = g.graph(g("identity", y, name="a"), g("identity", y, name="b"), g("identity", x))

    def rule(_rewriter: Rewriter, node: Node) -> str | None:
        return node.inputs[0] if node.op == "identity" else None

    after = rewrite(before, rule)
    assert after.outputs == before.outputs
    assert operators(after) == ["exp", "identity", "identity"]
    assert after.nodes[0].output == "a"
    assert_equivalent(before, after)


def test_unused_parts_go_and_inputs_stay() -> None:
    g = Maker()
    x = g.input("x", 2, 3)
    g.input("unused", 4)
    g("exp", g("add", x, g.weight("w", 3)))
    before = g.graph(g("relu", x))
    assert rewrite(before, lambda rewriter, node: None) is before

    def rule(rewriter: Rewriter, node: Node) -> str | None:
        return rewriter.emit("abs", node.inputs) if node.op == "relu" else None

    after = rewrite(before, rule)
    assert after.inputs == ("x", "unused") and not after.constants
    assert set(after.types) == {"x", "unused", *after.outputs}


def test_patterns() -> None:
    g = Maker()
    x, y = g.input("x", 2, 3), g.input("y", 2, 3)
    half = g.constant("half", 0.5)
    value = g("mul", half, g("add", g("exp", x), y))
    found = Rewriter(g.graph(value))
    found.apply(lambda rewriter, node: None)
    exp = Apply("exp", (Any_("a"),), "e")
    pattern = Apply("mul", (Apply("add", (Any_("b"), exp)), Number(0.5)))
    assert match(found, value, pattern) == {"a": "x", "b": "y", "e": "exp_0"}
    assert match(found, value, Apply("mul", (pattern, Number(0.5)))) is None
    same = Apply("mul", (Apply("add", (Any_("a"), exp)), Number(0.5)))
    assert match(found, value, same) is None
    assert match(found, value, Apply("mul", (Any_("z"), Number(0.4)))) is None


def test_a_value_that_stands_for_others_has_their_uses_too() -> None:
    g = Maker()
    y = g("exp", g.input("x", 3))
    first, second = g("identity", y), g("identity", y)
    graph = g.graph(g("relu", first), g("neg", second), g("abs", g("sin", y)))
    seen: dict[str, tuple[int, bool]] = {}

    def rule(rewriter: Rewriter, node: Node) -> str | None:
        if node.op in ("relu", "neg", "abs"):
            value = node.inputs[0]
            seen[node.op] = rewriter.uses(value), rewriter.used_once(value)
        return node.inputs[0] if node.op == "identity" else None

    Rewriter(graph).apply(rule)
    assert seen == {"relu": (5, False), "neg": (5, False), "abs": (1, True)}


def test_a_result_of_another_type_takes_no_place() -> None:
    g = Maker()
    x = g.input("x", 3)
    wide = g.constant("wide", [[1.0]])
    graph = g.graph(g("exp", g("relu", x)))

    def rule(rewriter: Rewriter, node: Node) -> str | None:
        return rewriter.emit("mul", [x, wide]) if node.op == "relu" else None

    assert rewrite(g.graph("exp_0"), rule).nodes == graph.nodes
