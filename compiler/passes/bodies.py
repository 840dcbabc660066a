"""Optimise the bodies of control-flow nodes, and remove captured values that they do not read.

Before:                                         After:
    %2 = loop(n, go, x, c0, %1) {...}               %2 = loop(n, go, x) {...}
      input state.0, capture.0, capture.1             input state.0
      output on, mul(state.0, capture.0)              output on, mul(state.0, c0)

A captured constant becomes a constant of the body, so that kernels can pack it. The pipeline's
passes then run on each body as a separate graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.compiler.graph.edit import Edit
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import integer


def optimise_bodies(graph: Graph, optimise: Callable[[Graph, bool], Graph]) -> Graph:
    """Optimise the bodies of all control-flow nodes as separate graphs.

    `optimise` receives a body, and whether it is the body of a loop; it returns the optimised body.
    The surrounding graph changes only in one way: captured values that no body reads are removed.
    """
    if not any(node.bodies for node in graph.nodes):
        return graph
    edit = Edit(graph)
    for node in graph.nodes:
        if node.bodies:
            repeated = node.op == "loop"
            bodies = [optimise(body, repeated) for body in _with_constants(graph, node)]
            node = _without_unread(node, bodies)
        edit.put(node)
    return edit.finish()


def _first_capture(node: Node) -> tuple[int, int]:
    """Return the position of a loop's or branch's first captured value: as an operand, as an input.

    A captured value is a value of the surrounding graph that a body reads. It is an operand of the
    node, and an input of the body.
    """
    states = integer(node.attrs, "states", 0)
    return (2 + states, 1 + states) if node.op == "loop" else (1, 0)


def _with_constants(graph: Graph, node: Node) -> list[Graph]:
    """Return the bodies of a loop or branch, with captured constants copied into them.

    A captured constant is one of the surrounding graph that a body reads. The inputs for these
    constants remain, but are no longer read.
    """
    operands, inputs = _first_capture(node)
    bodies = []
    for body in node.bodies:
        captured = zip(body.inputs[inputs:], node.inputs[operands:], strict=True)
        # The input stays, because all bodies of a node have the same inputs: the constant therefore
        # needs a name of its own.
        edit, names = Edit(body), dict[str, str]()
        for name, value in captured:
            if value in graph.constants:
                own = names[name] = edit.fresh(f"{name}.constant")
                edit.types[own], edit.constants[own] = body.types[name], graph.constants[value]
        for each in body.nodes:
            edit.put(replace(each, inputs=tuple(names.get(v, v) for v in each.inputs)))
        bodies.append(edit.finish([names.get(v, v) for v in body.outputs]))
    return bodies


def _without_unread(node: Node, bodies: Sequence[Graph]) -> Node:
    """Return a loop or branch with new bodies, without the captured values that no body reads.

    A captured value is a value of the surrounding graph that is passed to the bodies.
    """
    own, inner = _first_capture(node)
    read = [
        any(b.consumers(name) or name in b.outputs for b, name in zip(bodies, names, strict=True))
        for names in zip(*(body.inputs[inner:] for body in bodies), strict=True)
    ]
    trimmed = []
    for body in bodies:
        captured = zip(body.inputs[inner:], read, strict=True)
        inputs = (*body.inputs[:inner], *(name for name, used in captured if used))
        gone = set(body.inputs) - set(inputs)
        types = {v: kind for v, kind in body.types.items() if v not in gone}
        trimmed.append(body.replace(inputs=inputs, types=types))
    kept = tuple(v for v, used in zip(node.inputs[own:], read, strict=True) if used)
    attrs = {**dict(node.attrs), **dict(zip(body_keys(node), trimmed, strict=True))}
    return replace(node, inputs=(*node.inputs[:own], *kept), attrs=tuple(sorted(attrs.items())))


def body_keys(node: Node) -> tuple[str, ...]:
    """Return the names of the attributes that hold a loop's or branch's bodies, in their order."""
    return tuple(key for key, value in node.attrs if isinstance(value, Graph))
