"""Reshape merging, removal and sinking.

Before:                                     After:
    %1 = reshape(%0) {shape=(4, 8)}             %2 = relu(%0)
    %2 = relu(%1)                               %3 = reshape(%2) {shape=(2, 16)}
    %3 = reshape(%2) {shape=(2, 16)}

A reshape is a view and costs nothing, but it prevents fusion of an elementwise operator with the
preceding kernel. Reshapes therefore sink below elementwise operators that follow a kernel, and a
reshaped iota counts along the new dimension instead.
"""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import axis_of, ints
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.passes.rewrite import Rewriter, rewrite
from tilewright.compiler.passes.sink import movements, unmoved

_PRODUCERS = (
    OpKind.CONTRACTION,
    OpKind.WINDOW,
    OpKind.REDUCTION,
    OpKind.ROW,
    OpKind.ELEMENTWISE,
    OpKind.GATHER,
)


def reshapes(graph: Graph) -> Graph:
    """Merge and remove reshapes, and move them after elementwise operators."""
    return rewrite(graph, _rule)


def _rule(rewriter: Rewriter, node: Node) -> str | None:
    if node.op == "reshape":
        return _merge(rewriter, node)
    if ops.get(node.op).kind is OpKind.ELEMENTWISE:
        return _sink(rewriter, node)
    return None


def _merge(rewriter: Rewriter, node: Node) -> str | None:
    value, shape = node.inputs[0], rewriter.shape(node.outputs[0])
    inner = rewriter.producer(value, "reshape")
    if inner is not None:
        value = inner.inputs[0]
    if rewriter.shape(value) == shape:
        return value
    counted = rewriter.producer(value, "iota")
    if counted is not None:
        return _counted(rewriter, counted, shape)
    return rewriter.emit("reshape", [value], {"shape": shape}) if inner is not None else None


def _counted(rewriter: Rewriter, iota: Node, shape: tuple[int, ...]) -> str | None:
    """Replace a reshaped iota by an iota of the new shape.

    Returns None unless exactly one dimension has an extent other than 1, before and after the
    reshape.
    """
    before = ints(iota.attrs, "shape")
    long = [[dim for dim, e in enumerate(each) if e != 1] for each in (before, shape)]
    if [len(each) for each in long] != [1, 1] or not shape:
        return None
    if axis_of(iota.attrs, len(before), -1) != long[0][0]:
        return None
    attrs = dict(iota.attrs) | {"shape": shape, "axis": long[1][0]}
    return rewriter.emit("iota", [], attrs)


def _sink(rewriter: Rewriter, node: Node) -> str | None:
    views = movements(rewriter, node, "reshape")
    sources = [view.inputs[0] for view in views]
    if not views or not all(rewriter.used_once(view.output) for view in views):
        return None
    shape = rewriter.shape(sources[0])
    if any(rewriter.shape(v) != shape for v in sources):
        return None
    if not any(_follows_kernel(rewriter, value) for value in sources):
        return None
    result = unmoved(rewriter, node, "reshape", lambda v, array: v if array.size == 1 else None)
    if result is None or rewriter.shape(result) != shape:
        return None
    return rewriter.emit("reshape", [result], {"shape": rewriter.shape(node.output)})


def _follows_kernel(rewriter: Rewriter, value: str) -> bool:
    """Whether a value is the result of a kernel, or a transpose of such a result.

    The transpose can be moved after the elementwise operators too, so that these can be fused with
    the kernel.
    """
    node = rewriter.producer(value)
    if node is not None and node.op == "transpose":
        node = rewriter.producer(node.inputs[0])
    return node is not None and ops.get(node.op).kind in _PRODUCERS
