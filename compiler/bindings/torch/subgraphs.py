"""Partition of a graph of ATen operators into parts that are compiled, and parts run by PyTorch.

    y = relu(x @ w); z = unknown(y); return softmax(z + y)
    -> compiled: y = relu(x @ w)
       PyTorch:  z = unknown(y)
       compiled: softmax(z + y)

Compiled parts and parts for PyTorch alternate. Each node is placed in the earliest part that can
run it after its arguments, so the number of parts is minimal.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.views import is_tensor_valued


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A part of a graph as a separate module, which is compiled or run by PyTorch.

    Attributes:
        module: the part; it takes the values of `inputs` as arguments, and returns those of
            `outputs` as a list.
        is_refused: whether PyTorch runs the part, because it cannot be compiled.
        inputs, outputs: nodes of the whole graph.
    """

    module: fx.GraphModule
    is_refused: bool
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def split_graph(
    root: torch.nn.Module,
    graph: fx.Graph,
    refused: Collection[fx.Node],
    weights: Collection[fx.Node],
) -> list[Subgraph]:
    """Divide a graph into parts, and return them in the order in which they run.

    Args:
        root: the module with the tensors of `get_attr` nodes.
        graph: a graph without in-place operators, whose result is a list. `meta["val"]` of each
            node is its fake tensor.
        refused: the nodes that PyTorch runs, because they cannot be compiled.
        weights: the arguments that are weights. Values that depend only on weights are not passed
            from part to part: each part that needs one computes it, and in a compiled part it is a
            constant.
    """
    (output,) = graph.find_nodes(op="output")
    results = {node for node in output.args[0] if isinstance(node, fx.Node)}
    cutter = _Cutter(root, graph, frozenset(refused), _repeated(graph, refused, weights))
    order = cutter.order(results)
    pieces = []
    for number in sorted(set(order.values())):
        outputs = [
            node
            for node, place in order.items()
            if place == number
            and (node in results or any(order.get(u, number) != number for u in cutter.users(node)))
        ]
        if outputs:
            members = {node for node, place in order.items() if place == number}
            pieces.append(cutter.piece(members, outputs, number % 2 == 1))
    return pieces


def _repeated(
    graph: fx.Graph, refused: Collection[fx.Node], weights: Collection[fx.Node]
) -> frozenset[fx.Node]:
    """Return the nodes that each part computes for itself, and does not receive from another part.

    These are `get_attr` nodes, sizes, and values that depend only on weights and sizes.
    """
    fixed, found = set(weights), set()
    for node in graph.nodes:
        is_size = not is_tensor_valued(node)
        match node.op:
            case "placeholder" if is_size:
                fixed.add(node)
            case "get_attr":
                fixed.add(node)
                found.add(node)
            case "call_function" if node not in refused and not _draws(node):
                follows = fixed.issuperset(node.all_input_nodes)
                if follows:
                    fixed.add(node)
                if follows or is_size:
                    found.add(node)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class _Cutter:
    root: torch.nn.Module
    graph: fx.Graph
    refused: frozenset[fx.Node]
    repeated: frozenset[fx.Node]

    def order(self, results: Collection[fx.Node]) -> dict[fx.Node, int]:
        """Map each node that computes a value to the number of the part that runs it.

        Compiled parts have even numbers, parts for PyTorch odd ones. `results` are the nodes that
        the graph returns.
        """
        found: dict[fx.Node, int] = {}
        latest_draw = 0
        for node in self.graph.nodes:
            if node.op != "call_function" or (node in self.repeated and node not in results):
                continue
            if node.target is operator.getitem and node.args[0] in found:
                found[node] = found[node.args[0]]
                continue
            odd = int(node in self.refused or not is_tensor_valued(node))
            place = max((found[each] for each in self.sources(node) if each in found), default=odd)
            place += place % 2 != odd
            if _draws(node):  # so that random numbers keep the order of the whole graph
                place = latest_draw = max(place, latest_draw)
            found[node] = place
        return found

    def sources(self, node: fx.Node) -> Iterator[fx.Node]:
        """Yield the nodes whose values a part of the graph must have in order to run `node`.

        These are the node's arguments. An argument that each part computes for itself (`repeated`)
        is replaced by the nodes that this computation needs.
        """
        for each in node.all_input_nodes:
            if each in self.repeated:
                yield from self.sources(each)
            else:
                yield each

    def users(self, node: fx.Node) -> Iterator[fx.Node]:
        """Yield the nodes that need the value of `node`, directly or through recomputed nodes.

        Some nodes are recomputed in each part of the graph that needs them (`repeated`). To
        recompute a user of `node`, a part needs the value of `node`. The users of a recomputed node
        are therefore yielded as well.
        """
        for each in node.users:
            yield each
            if each in self.repeated:
                yield from self.users(each)

    def piece(
        self, members: Collection[fx.Node], outputs: Sequence[fx.Node], is_refused: bool
    ) -> Subgraph:
        sources = {each for node in members for each in self.sources(node)} - set(members)
        known = {size.node.expr for node in sources for size in _sizes(node)}
        unknown = {symbol for node in members for size in _sizes(node) for symbol in _free(size)}
        holders = self._holders()
        sources |= {holders[symbol] for symbol in unknown - known if symbol in holders}
        part = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self.graph.nodes:
            if node in sources:
                copies[node] = part.placeholder(node.name)
                copies[node].meta = dict(node.meta)
        inputs = tuple(copies)
        for node in self.graph.nodes:
            is_ready = all(each in copies for each in node.all_input_nodes)
            if node in members or (node in self.repeated and is_ready):
                copies[node] = part.node_copy(node, copies.__getitem__)
        part.output([copies[node] for node in outputs])
        part.eliminate_dead_code()
        return Subgraph(fx.GraphModule(self.root, part), is_refused, inputs, tuple(outputs))

    def _holders(self) -> dict[Any, fx.Node]:
        """Map each symbolic size to an argument of the graph from which it can be read.

        The argument is the size itself, or a tensor with a dimension of that size.
        """
        found: dict[Any, fx.Node] = {}
        for node in self.graph.find_nodes(op="placeholder"):
            for size in _sizes(node):
                if size.node.expr.is_Symbol and not isinstance(node.meta["val"], torch.SymInt):
                    found.setdefault(size.node.expr, node)
                elif size.node.expr.is_Symbol:
                    found[size.node.expr] = node
        return found


def _draws(node: fx.Node) -> bool:
    """Return whether a node generates random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _sizes(node: fx.Node) -> Iterator[Any]:
    """Yield the symbolic sizes in a node's value, which is a size, a tensor or a list of these."""
    value = node.meta.get("val")
    for each in value if isinstance(value, tuple | list) else (value,):
        if isinstance(each, torch.SymInt):
            yield each
        elif isinstance(each, torch.Tensor):
            yield from (size for size in each.shape if isinstance(size, torch.SymInt))


def _free(size: Any) -> Collection[Any]:
    found: Collection[Any] = size.node.expr.free_symbols
    return found
