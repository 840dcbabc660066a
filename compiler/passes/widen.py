"""Compute 16-bit floats in float32; only stored values have 16 bits.

Before:                                     After:
    input %0: float16                           input %0: float16
    %1 = matmul(%0, w)                          %1 = cast(%0) {to="float32"}
    %2 = add(%1, b)                             %2 = matmul(%1, w)
    %3 = softmax(%2)                            %3 = add(%2, b)
    output %3                                   %4 = softmax(%3)
                                                %5 = cast(%4) {to="float16"}
                                                output %5

`w` and `b` become float32 with exactly the same values. Operators are recognised, folded and fused
like those of a float32 model. Sums, norms and later operators of a kernel are float32 and rounded
once: at the model's outputs, or where `mixed_precision` stores values in 16 bits again. Results are
therefore closer to exact arithmetic, and not bit-identical to a program that rounds after each
operator.

If all products of the graph have factors of one 16-bit type, the pass `mixed_precision` runs
afterwards with this type, and decides which values are stored in 16 bits.

Values of another 16-bit type stay in 16 bits only where no operator computes with them in float32:
in data movements, selections, casts, native functions and control flow. Factors of products stay in
16 bits too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.edit import Edit
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.loops.semantics import from_memory
from tilewright.compiler.ops.products import HALVES
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.passes.mixed_precision import FACTORS

_CHOICES = ("max_pool", "reduce_max", "reduce_min", "max", "min", "relu", "neg", "abs", "where")
"""Operators that return elements of their operands, possibly negated, or zeros. Their results are
exact in any type."""

_MOVING = (OpKind.MOVEMENT, OpKind.PIECES, OpKind.VIEW, OpKind.GATHER)
"""Kinds of operators that return elements of their operands without change."""

_STEPS = 16
"""Maximum number of nodes between a 16-bit value and the product with block-scaled weights that
uses it."""


def multiplied_type(graph: Graph) -> DType | None:
    """Return the 16-bit float type of the factors of all products of a graph.

    Returns None if the products have different types, or a type that is not a 16-bit float.
    """
    types = {
        kind
        for node in graph.nodes
        if ops.get(node.op).kind in (OpKind.CONTRACTION, OpKind.ATTENTION)
        for kind in _factors(graph, node)
    }
    (only,) = types if len(types) == 1 else (None,)
    return only if only in HALVES else None


def _factors(graph: Graph, node: Node) -> set[DType]:
    """Return the element types of a product's operands.

    A product with block-scaled weights always computes in float32. The result is then the type that
    its left operand had before a conversion to float32.
    """
    if node.op != "block_matmul":
        return {graph.types[value].dtype for value in node.inputs}
    value = node.inputs[0]
    for _ in range(_STEPS):
        producer = graph.producer(value)
        if graph.types[value].dtype in HALVES or producer is None or not producer.inputs:
            break
        value = producer.inputs[0]
    found = graph.types[value].dtype
    return {found if found in HALVES else DType.FLOAT32}


def widen(graph: Graph, own: DType | None) -> Graph:
    """Return the graph with operators on float16 and bfloat16 computed in float32.

    Inputs and outputs of the graph keep their types: casts are added after the inputs and before
    the outputs.

    Args:
        graph: the graph; one without 16-bit floats is returned unchanged.
        own: the 16-bit float type in which the pass `mixed_precision` will store values afterwards;
            None if it will not. Values of another 16-bit type keep this type where no operator
            computes with them.
    """
    if not any(kind.dtype in HALVES for kind in graph.types.values()):
        return graph
    return _Widening(graph, own).graph()


class _Widening:
    def __init__(self, graph: Graph, own: DType | None) -> None:
        self._source = graph
        self._own = own
        self._edit = Edit(graph)
        self._stored = {value for value in graph.inputs if self._is_narrow(value)}
        """The 16-bit values that the new graph contains unchanged, except constants."""
        self._factors = _factors_of_halves(graph, own)
        self._names: dict[str, str] = {}
        """16-bit values of the old graph -> the float32 values that replace them in the new
        graph."""
        self._rounded: dict[str, str] = {}
        """16-bit values -> their replacements in float32, rounded to 16 bits again."""

    def graph(self) -> Graph:
        """Return the graph with 16-bit floats computed in float32.

        The inputs and outputs have the same names and types as those of the source graph.
        """
        source = self._source
        for node in source.nodes:
            self._rewrite(node)
        for value in dict.fromkeys(source.outputs):
            # Inputs and constants that are returned are unchanged.
            narrow = self._is_narrow(value) and value not in source.constants
            if narrow and value not in self._stored:
                self._edit.convert(self._names[value], value)
        return self._edit.finish()

    def _rewrite(self, node: Node) -> None:
        narrow = any(self._is_narrow(v) for v in (*node.inputs, node.output))
        if not narrow or self._stays(node):
            inputs = tuple(self._as_before(value) for value in node.inputs)
            self._edit.put(replace(node, inputs=inputs))
            if self._is_narrow(node.output):
                self._stored.add(node.output)
            return
        inputs = tuple(self._wide(v) if self._is_narrow(v) else v for v in node.inputs)
        output, attrs = node.output, node.attrs
        if self._is_narrow(output):
            output = self._edit.in_type(output, DType.FLOAT32)
            self._names[node.output] = output
            # the attributes of cast and iota that state the type
            to = {k: DType.FLOAT32.value for k, _ in attrs if k in ("to", "dtype")}
            attrs = tuple((key, to.get(key, value)) for key, value in attrs)
        name = node.name if node.name == output else output
        self._edit.put(Node(name, node.op, inputs, (output,), attrs))
        if node.output in self._factors:
            self._edit.convert(self._names.pop(node.output), node.output)
            self._stored.add(node.output)

    def _stays(self, node: Node) -> bool:
        """Whether a node is copied with its 16-bit types, instead of being computed in float32."""
        if _is_opaque(node):
            return True
        output = self._source.types[node.output].dtype
        if output not in HALVES:
            return False
        narrow = [v for v in node.inputs if self._is_narrow(v)]
        if ops.get(node.op).kind is OpKind.PIECES and any(v in self._stored for v in narrow):
            return True  # a cache stays in its 16-bit type when rows are appended
        if output is self._own:
            return False
        if node.op == "cast":
            return True
        if node.op not in _CHOICES and ops.get(node.op).kind not in _MOVING:
            return False
        return all(v in self._stored or v in self._source.constants for v in narrow)

    def _as_before(self, value: str) -> str:
        """The name of a value in its original type.

        A 16-bit value that the new graph contains only in float32 is converted back.
        """
        if not self._is_narrow(value) or value in self._stored or value in self._source.constants:
            return value
        if value not in self._rounded:
            wide = self._names[value]
            self._rounded[value] = self._converted(wide, self._source.types[value].dtype)
        return self._rounded[value]

    def _wide(self, value: str) -> str:
        """The float32 version of a 16-bit value, converted at its first use."""
        if value not in self._names and value in self._source.constants:
            array, dtype = self._source.constants[value], self._source.types[value].dtype
            name = self._names[value] = self._edit.in_type(value, DType.FLOAT32)
            self._edit.constants[name] = from_memory(array, dtype).astype(np.float32)
        elif value not in self._names:
            self._names[value] = self._converted(value, DType.FLOAT32)
        return self._names[value]

    def _is_narrow(self, value: str) -> bool:
        return self._source.types[value].dtype in HALVES

    def _converted(self, value: str, to: DType) -> str:
        return self._edit.convert(value, self._edit.in_type(value, to))


def _factors_of_halves(graph: Graph, own: DType | None) -> set[str]:
    """Return the factors of products that are stored in a 16-bit type other than `own`.

    `own` is the type in which the pass `mixed_precision` stores values, or None. The returned
    factors stay in 16 bits, so that products can use 16-bit instructions. Data movements may lie
    between a factor and its product. The results of a softmax are excluded, because a fused
    attention kernel never stores them.
    """
    factors: set[str] = set()
    for node in reversed(graph.nodes):
        kind = ops.get(node.op).kind
        multiplied = node.inputs[: FACTORS.get(node.op, 0)]
        if node.output in factors and kind in _MOVING:
            multiplied = node.inputs
        factors.update(v for v in multiplied if graph.types[v].dtype in HALVES)
        if node.op == "softmax":
            factors.discard(node.output)
    return {value for value in factors if graph.types[value].dtype is not own}


def _is_opaque(node: Node) -> bool:
    """Whether a node needs the bits of 16-bit floats, as native functions and control flow do."""
    kind = ops.get(node.op).kind
    return kind in (OpKind.NATIVE, OpKind.CONTROL) or node.op in ("bitcast", "field")
