"""Separation of results that need no computation: sizes, and views of other tensors.

    add = x + y; parts = split(add); return parts[0], parts[1], x.t()
    -> compiled graph: add = x + y; return add
       PyTorch:        parts = split(add); return parts[0], parts[1], x.t()

PyTorch creates these results from the arguments and from the compiled graph's results. Views
therefore share memory as the caller expects, and have the strides and offsets that `aot_autograd`
needs in order to recreate them from the caller's own tensors.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import fx


def split_views(whole: fx.GraphModule) -> tuple[fx.Graph | None, fx.GraphModule | None]:
    """Split a graph in two: one graph computes values, the other creates the results from them.

    The second graph contains only operators that compute no elements, such as views.

    Args:
        whole: a graph whose result is a list. `meta["val"]` of each node is its fake tensor.

    Returns:
        Two graphs. The first computes values from the arguments; it is None if no value must be
            computed. The second creates the results from the arguments and the computed values; it
            is None if the results are the computed values.
    """
    graph = whole.graph
    (output,) = graph.find_nodes(op="output")
    wanted = output.args[0]
    results = dict.fromkeys(node for node in wanted if isinstance(node, fx.Node))
    roots = _roots(graph)
    arguments = graph.find_nodes(op="placeholder")
    viewed = Counter(roots[node] for node in results if node in roots)
    shared = [node for node, count in viewed.items() if count > 1 and node.op != "placeholder"]
    made = _made(graph, roots, {*arguments, *shared})
    computed = list(dict.fromkeys([*shared, *(node for node in results if node not in made)]))
    if computed == list(wanted):
        return graph, None
    making = fx.Graph()
    copies = {node: making.node_copy(node) for node in arguments}
    copies |= {node: making.placeholder(f"computed_{k}") for k, node in enumerate(computed)}
    for node in graph.nodes:
        if node in made and node not in copies:
            copies[node] = making.node_copy(node, copies.__getitem__)
    making.output(fx.map_arg(wanted, copies.__getitem__))
    making.eliminate_dead_code()
    return (_computing(graph, computed) if computed else None), fx.GraphModule(whole, making)


def _roots(graph: fx.Graph) -> Mapping[fx.Node, fx.Node]:
    """Map each tensor-valued node to the node that owns its memory: itself, or the base of its
    view.

    A node whose value is a new list of tensors is left out.
    """
    roots: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if not is_tensor_valued(node):
            continue
        if _is_view(node):
            first = node.args[0]
            root = roots.get(first, node)
            # as_strided addresses memory, where a computed value may have another layout
            strided = node.target is torch.ops.aten.as_strided.default
            roots[node] = node if strided and root.op != "placeholder" else root
        elif isinstance(node.meta["val"], torch.Tensor):
            roots[node] = node
    return roots


def _made(
    graph: fx.Graph, roots: Mapping[fx.Node, fx.Node], known: Collection[fx.Node]
) -> set[fx.Node]:
    """Return the nodes whose values PyTorch can create without computing elements.

    These are the nodes in `known`, views of their values, and nodes that compute sizes. `roots`
    maps each view to the node that owns its memory.
    """
    found = set(known)
    for node in graph.nodes:
        if node.op != "call_function" or not all(each in found for each in node.all_input_nodes):
            continue
        if not is_tensor_valued(node) or roots.get(node) in known:
            found.add(node)
    return found


def _is_view(node: fx.Node) -> bool:
    """Return whether a node's result is a view of its first argument, or an item of a list
    argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    first = next(iter(node.target._schema.arguments), None)
    return first is not None and first.alias_info is not None and not first.alias_info.is_write


def _computing(graph: fx.Graph, computed: Iterable[fx.Node]) -> fx.Graph:
    """Return a copy of a graph that returns the values of the nodes `computed` only."""
    found = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    found.graph_copy(graph, copies)
    found.output([copies[node] for node in computed])
    found.eliminate_dead_code()
    return found


def is_tensor_valued(node: fx.Node) -> bool:
    """Return whether a node's value is a tensor or a list of tensors."""
    value: Any = node.meta.get("val")
    if isinstance(value, tuple | list):
        return any(isinstance(each, torch.Tensor) for each in value)
    return isinstance(value, torch.Tensor)
