"""Fusion: the partition of a graph's nodes into kernels.

Before:                             After:
    %1 = conv(%0, w)                    { %1 = conv(%0, w); %2 = add(%1, %9); %3 = relu(%2) }
    %2 = add(%1, %9)
    %3 = relu(%2)

A group consists of one anchor and the operators fused with it. Anchors are contractions, windows
(pools), reductions, row operators (such as softmax), gathers and attention. The elementwise
operators that follow an anchor and keep its shape are its epilogue. The epilogue includes operators
that convert or dequantise its other operands, such as an int8 residual.

Reductions and row operators also fuse the elementwise operators that compute their operands (the
prologue). The remaining elementwise operators form groups without an anchor. No value is computed
by two groups. If a value is converted between two groups, the narrower type is stored: the reader
converts to a wider type, the producer to a narrower one. Also called operator fusion (TVM) or
fusion groups (XLA).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Const, Expr
from tilewright.compiler.loops.index import Affine, Axis, FloorDiv, affine
from tilewright.compiler.ops.registry import ElementCost, OpKind
from tilewright.compiler.passes.merge_matmuls import INDEX_MAPS
from tilewright.compiler.passes.rematerialise_dequantisation import READERS, dequantisation_chain
from tilewright.compiler.plan.layout_transposes import turns
from tilewright.compiler.runtime.labels import LABELLED
from tilewright.compiler.sizes import typical

EPILOGUE_LIMIT = 40
"""Maximum number of nodes of an epilogue, or of a group without an anchor."""

ANCHORS = (
    OpKind.CONTRACTION,
    OpKind.WINDOW,
    OpKind.REDUCTION,
    OpKind.ROW,
    OpKind.GATHER,
    OpKind.ATTENTION,
)
MOVEMENT = (OpKind.ELEMENTWISE, OpKind.MOVEMENT)

RUNTIME = (OpKind.NATIVE, OpKind.CONTROL)
"""Kinds of operators that the runtime executes itself, and that are never part of a kernel."""


@dataclass(frozen=True, slots=True)
class Group:
    """A set of nodes, in topological order, that become one kernel.

    A group of a single node may need no kernel: a reshape (a view), a native operator, or control
    flow. Other groups read only the value `output` of a group.
    """

    nodes: tuple[Node, ...]
    anchor: Node | None
    output: str

    @property
    def is_view(self) -> bool:
        return len(self.nodes) == 1 and ops.get(self.nodes[0].op).kind is OpKind.VIEW

    @property
    def is_native(self) -> bool:
        """Whether the runtime computes the group without a kernel: a native operator or control
        flow."""
        return ops.get(self.nodes[0].op).kind in RUNTIME

    @property
    def inputs(self) -> tuple[str, ...]:
        """The values from outside the group that its nodes read, each once."""
        made = {value for node in self.nodes for value in node.outputs}
        return tuple(dict.fromkeys(v for node in self.nodes for v in node.inputs if v not in made))


def fuse(graph: Graph, kept: Collection[str] = ()) -> tuple[Group, ...]:
    """Assign the nodes of a graph to groups, one per kernel, in topological order.

    A node whose result has no elements is in no group, because there is nothing to compute. Two
    kinds of node always have a group: `trim`, because it also reports the actual extent of an
    output, and nodes that attach labels (such as names of classes) to an output.

    Args:
        graph: an optimised graph.
        kept: values that end fusion: each is the output of its group, as if the graph returned it.
    """
    return _Fusion(graph, kept).groups()


class _Fusion:
    def __init__(self, graph: Graph, kept: Collection[str]) -> None:
        self._graph = graph
        self._position = {node.name: i for i, node in enumerate(graph.nodes)}
        self._taken = {
            node.name
            for node in graph.nodes
            if graph.types[node.output].elements == 0 and node.op not in ("trim", LABELLED)
        }
        self._outputs = {*graph.outputs, *kept}
        self._alone = turns(graph)
        """Transposes that may become views. They are not fused into other groups."""

    def groups(self) -> tuple[Group, ...]:
        found: list[Group] = []
        anchors = [
            n for n in self._graph.nodes if _kind(n) in ANCHORS and n.name not in self._taken
        ]
        self._taken.update(node.name for node in anchors)
        # The last anchor first: a residual addition joins the branch that is computed later.
        members: list[tuple[Node, list[Node]]] = []
        for anchor in reversed(anchors):
            nodes = [anchor, *self._narrow(self._epilogue(anchor))]
            if anchor.op in ("matmul", "attention"):
                nodes += self._trailing_transpose(nodes[-1])
            members.append((anchor, nodes))
        for anchor, nodes in members:
            if anchor.op == "matmul":
                self._take_transposes(anchor, nodes)
            elif anchor.op == "attention":
                nodes += self._index_maps(anchor)
            elif _kind(anchor) in (OpKind.REDUCTION, OpKind.ROW):
                self._grow_up(nodes, cheap=_kind(anchor) is OpKind.ROW)
            self._take_widenings(nodes)
            self._take_chains(anchor, nodes)
            found.append(self._group(nodes, anchor))
        for node in reversed(self._graph.nodes):
            if node.name in self._taken:
                continue
            if _kind(node) in RUNTIME:
                found.append(self._group([node], node))
                continue
            self._taken.add(node.name)
            nodes = [node]
            if _kind(node) in MOVEMENT and node.name not in self._alone:
                self._grow_up(nodes, cheap=False)
            found.append(self._group(nodes, None))
        return tuple(sorted(found, key=lambda group: self._position[group.nodes[-1].name]))

    def _group(self, nodes: Iterable[Node], anchor: Node | None) -> Group:
        ordered = tuple(sorted(nodes, key=lambda node: self._position[node.name]))
        return Group(ordered, anchor, ordered[-1].output)

    def _epilogue(self, anchor: Node) -> list[Node]:
        """Collect the elementwise nodes to fuse after an anchor, and mark them as grouped.

        The anchor is the main node of the group, such as a convolution. Other groups read only the
        last collected node. A value may branch and join again inside the group (`x * sigmoid(x)`).
        """
        accepted: list[Node] = []
        shape = self._graph.types[anchor.output].shape
        current = anchor.output
        while len(accepted) < EPILOGUE_LIMIT:
            region = self._region(current, shape, EPILOGUE_LIMIT - len(accepted))
            if region is None:
                break
            accepted += region
            self._taken.update(node.name for node in region)
            current = region[-1].output
        return accepted

    def _narrow(self, epilogue: list[Node]) -> list[Node]:
        """Remove the dequantisation at the end of a group if every reader can apply it instead.

        `epilogue` has the elementwise nodes of the group that follow its main node, such as a
        convolution. Returns the remaining nodes; all nodes if some reader cannot dequantise.
        Removed nodes are in no group until a reader's group takes them.
        """
        if not epilogue:
            return []
        value = epilogue[-1].output
        chain = dequantisation_chain(self._graph, value)
        readers = self._graph.consumers(value)
        if (
            value in self._outputs
            or not all(node in epilogue for node in chain)
            or any(_kind(reader) not in READERS for reader in readers)
        ):
            return epilogue
        self._taken.difference_update(node.name for node in chain)
        return [node for node in epilogue if node not in chain]

    def _region(self, value: str, shape: tuple[int, ...], limit: int) -> list[Node] | None:
        """Return the smallest set of elementwise nodes after `value` that can be fused with the
        node that computes `value`.

        Only the result of the last node may be read outside the set. The nodes have results of
        shape `shape`, and there are at most `limit` of them. The result is None if there is no such
        set.
        """
        inside = {value}
        region: list[Node] = []
        while len(region) < limit:
            leaving = [v for v in inside if self._is_used_outside(v, region)]
            if region and leaving == [region[-1].output] and not self._widens(region[-1]):
                return region
            if any(v in self._outputs for v in inside):
                return None
            candidates = [
                node for v in inside for node in self._graph.consumers(v) if node not in region
            ]
            if not candidates:
                return region if region and not self._widens(region[-1]) else None
            node = min(candidates, key=lambda n: self._position[n.name])
            if (
                node.name in self._taken
                or _kind(node) is not OpKind.ELEMENTWISE
                or self._graph.types[node.output].shape != shape
            ):
                return None
            region.append(node)
            inside.add(node.output)
        return None

    def _is_used_outside(self, value: str, region: list[Node]) -> bool:
        if value in self._outputs:
            return True
        users = self._graph.consumers(value)
        return not users or any(user not in region for user in users)

    def _trailing_transpose(self, last: Node) -> list[Node]:
        """Return the transpose to fuse after `last`, as a list of one node or none.

        The transpose must be the only reader of the result of `last`. A transpose that only a
        matmul reads belongs to the matmul's group instead.
        """
        users = self._graph.consumers(last.output)
        if len(users) != 1 or last.output in self._outputs:
            return []
        (user,) = users
        readers = self._graph.consumers(user.output)
        prologue = len(readers) == 1 and readers[0].op == "matmul"
        taken = user.name in self._taken or user.name in self._alone
        if user.op != "transpose" or taken or prologue:
            return []
        self._taken.add(user.name)
        return [user]

    def _take_chains(self, anchor: Node, nodes: list[Node]) -> None:
        """Add to a group the operators that dequantise operands of its elementwise nodes.

        They are added only if nothing outside the group reads their results. `nodes` has the nodes
        of the group, and is extended. The operands of `anchor`, the main node of the group (such as
        a convolution), are not considered.
        """
        for node in [node for node in nodes if node is not anchor and _is_elementwise(node)]:
            for value in node.inputs:
                chain = dequantisation_chain(self._graph, value)
                inside = {node.name, *(each.name for each in chain)}
                if any(
                    each.name in self._taken
                    or each.output in self._outputs
                    or any(user.name not in inside for user in self._graph.consumers(each.output))
                    for each in chain
                ):
                    continue
                self._taken.update(each.name for each in chain)
                nodes += chain

    def _take_transposes(self, anchor: Node, nodes: list[Node]) -> None:
        """Add to a group the transposes of a matmul's operands if only the matmul reads their
        results.

        The matmul's loads then index the untransposed operands. `nodes` has the nodes of the group,
        and is extended.
        """
        for value in dict.fromkeys(anchor.inputs[:2]):
            node = self._graph.producer(value)
            if (
                node is not None
                and node.op == "transpose"
                and node.name not in self._taken
                and node.name not in self._alone
                and value not in self._outputs
                and self._graph.consumers(value) == (anchor,)
            ):
                self._taken.add(node.name)
                nodes.append(node)

    def _take_widenings(self, nodes: list[Node]) -> None:
        """Add to a group the conversions of its operands to a wider float type.

        The conversions are added only if no other group reads their results. `nodes` has the nodes
        of the group, and is extended.
        """
        inside = {node.name for node in nodes}
        for value in dict.fromkeys(v for node in nodes for v in node.inputs):
            node = self._graph.producer(value)
            if (
                node is not None
                and self._widens(node)
                and node.name not in self._taken
                and value not in self._outputs
                and all(user.name in inside for user in self._graph.consumers(value))
            ):
                self._taken.add(node.name)
                nodes.append(node)

    def _widens(self, node: Node) -> bool:
        """Whether a node converts floats to a wider type."""
        return self._converts(node) > 0

    def _narrows(self, node: Node) -> bool:
        return self._converts(node) < 0

    def _converts(self, node: Node) -> int:
        """Return by how many bytes a cast between float types widens an element; negative if it
        narrows.

        The result is 0 for all other nodes.
        """
        if node.op != "cast":
            return 0
        source, to = (self._graph.types[v].dtype for v in (*node.inputs, node.output))
        return to.bytes - source.bytes if source.is_float and to.is_float else 0

    def _index_maps(self, anchor: Node) -> list[Node]:
        """Return the nodes before an attention that only move elements of its operands.

        The attention's kernel loads the unmoved operands instead, at other indices. Only nodes
        whose results are not read outside the group are returned. They are marked as grouped.
        """
        chains = [node for value in anchor.inputs for node in affine_chain(self._graph, value)]
        accepted = {
            node.name: node
            for node in chains
            if node.name not in self._taken and node.output not in self._outputs
        }
        inside = {anchor.name, *accepted}
        while True:
            loose = [
                name
                for name, node in accepted.items()
                if any(user.name not in inside for user in self._graph.consumers(node.output))
            ]
            if not loose:
                break
            for name in loose:
                del accepted[name]
            inside = {anchor.name, *accepted}
        self._taken.update(accepted)
        return list(accepted.values())

    def _grow_up(self, nodes: list[Node], *, cheap: bool) -> None:
        """Add to a group the elementwise and movement nodes that compute its operands.

        Only nodes whose results no other group reads are added. If `cheap` is true, operators that
        are expensive per element, such as `exp`, are not added. This is the case for groups of row
        operators (such as softmax). They read their operands several times, and compute the added
        nodes each time.

        `nodes` has the nodes of the group, and is extended.
        """
        inside = {node.name for node in nodes}
        queue = list(nodes)
        while queue and len(nodes) < EPILOGUE_LIMIT:
            for value in queue.pop(0).inputs:
                node = self._graph.producer(value)
                if (
                    node is None
                    or node.name in self._taken
                    or node.name in self._alone
                    or _kind(node) not in MOVEMENT
                    or self._narrows(node)
                    or value in self._outputs
                    or (cheap and not _is_cheap(node))
                    or any(user.name not in inside for user in self._graph.consumers(value))
                    or self._is_recomputed(node, nodes[0])
                ):
                    continue
                self._taken.add(node.name)
                inside.add(node.name)
                nodes.append(node)
                queue.append(node)

    def _is_recomputed(self, node: Node, root: Node) -> bool:
        """Whether fusing `node` would compute an expensive operator several times per element.

        This is the case if `node` is expensive and its result is broadcast. The result counts as
        broadcast if it has fewer elements than the largest operand or result of `root`, the group's
        first node.
        """
        if _is_cheap(node):
            return False
        types = self._graph.types
        known = (root.output, *root.inputs)
        largest = max(typical(types[value].elements) for value in known)
        return typical(types[node.output].elements) < largest


def _kind(node: Node) -> OpKind:
    return ops.get(node.op).kind


def _is_elementwise(node: Node) -> bool:
    return _kind(node) is OpKind.ELEMENTWISE


def _is_cheap(node: Node) -> bool:
    """Whether an elementwise node is cheap enough to compute several times per element.

    A row operator (such as softmax) reads its operand in several passes. If the node is fused with
    a row operator, each pass computes the node again.
    """
    return ops.get(node.op).cost is ElementCost.CHEAP


def affine_chain(graph: Graph, value: str) -> list[Node]:
    """Return the reshapes, transposes and similar nodes before a value, nearest first.

    Each of them only moves elements, and an element's old index is an affine function of its new
    index. An attention kernel vectorises along the last two axes of an operand. The chain therefore
    ends before a reshape that splits one of these axes.
    """
    axes = [Axis(f"d{d}", e) for d, e in enumerate(graph.types[value].shape)]
    index: tuple[Affine, ...] | None
    index = tuple(map(affine, axes))
    chain: list[Node] = []
    while (node := graph.producer(value)) is not None and node.op in INDEX_MAPS:
        value = node.inputs[0]
        index = _index_of_operand(node, graph.types[value], index)
        if index is None or any(_cuts(each, axes[-2:]) for each in index):
            break
        chain.append(node)
    return chain


def _cuts(index: Affine, axes: Sequence[Axis]) -> bool:
    """Whether an index contains a quotient of one of these axes, such as `d1 // 7`."""
    return any(isinstance(term, FloorDiv) and term.axis in axes for term, _ in index.terms)


def _index_of_operand(
    node: Node, kind: TensorType, index: tuple[Affine, ...]
) -> tuple[Affine, ...] | None:
    """Return the index at which a movement operator reads its operand for the element `index` of
    its result.

    `kind` is the type of the operand. The result is None for a reshape without an affine index map.
    """
    found: list[tuple[Affine, ...]] = []

    def read(index: tuple[Affine, ...], indirect: tuple[tuple[int, Expr], ...] = ()) -> Expr:
        found.append(index)
        return Const(0.0)

    try:
        ops.get(node.op).expression([read], [kind], node.attrs, index, Axis)
    except ValueError:
        return None
    return found[0]
