"""Import of control-flow bodies as separate graphs.

A body may read values of the enclosing graph. Each such value becomes one input of the body's
graph, and one operand of the node that runs the body. Constants, and values that depend only on
sizes, are copied into the body instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tilewright.compiler.errors import UnsupportedOperatorError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.builder import GraphBuilder
from tilewright.compiler.ops.onnx_node import OnnxNode


class Enclosure:
    """The graph of a control-flow body under construction.

    Attributes:
        builder: builds the body's graph.
        node: a copy of the control-flow node with this builder; import rules add nodes through it.
        captured: the values of the enclosing graph that become inputs of the body. These inputs are
            in the order of `captured`, after the inputs that `input` adds.
    """

    def __init__(self, node: OnnxNode) -> None:
        self.builder = GraphBuilder()
        self.node = replace(node, builder=self.builder)
        self._outer = node
        self._inner: dict[str, str] = {}
        self._origins: dict[str, str] = {}

    @property
    def captured(self) -> tuple[str, ...]:
        builder = self.builder
        known = builder.constants.keys() | builder.sizes.keys()
        return tuple(v for v, inner in self._inner.items() if inner not in known)

    def input(self, name: str, kind: TensorType, origin: str | None = None) -> str:
        """Add an input to the body and return its name.

        The name is `name`, with underscores appended if it is in use. `origin` is the value of the
        enclosing graph that initialises the input, if any.
        """
        while name in self.builder.types:
            name += "_"
        if origin is not None:
            self._origins[name] = origin
        return self.builder.input(name, kind)

    def capture(self, value: str) -> str:
        """Return the name in the body for a value of the enclosing graph.

        The first call for a value adds an input to the body. A constant, or a value that depends
        only on sizes, is instead copied into the body.

        Raises:
            UnsupportedOperatorError: if the value has a data-dependent extent, or is text or a
                sequence.
        """
        if value not in self._inner:
            _refuse_others(self._outer, [value])
            self._outer.refuse_trimmed([value])
            outer, number = self._outer.builder, len(self._inner)
            kind, known = outer.types[value], outer.known(value)
            if known is not None:
                name = self.builder.constant(known, f"constant.{number}", kind.dtype)
            elif value in outer.sizes:
                name = self.builder.numbers(outer.sizes[value], kind.dtype, f"sizes.{number}")
            else:
                name = self.input(f"capture.{number}", kind, value)
            self._inner[value] = name
        return self._inner[value]

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Return a context manager that rewrites each UnsupportedOperatorError raised within it.

        The error then names values of the enclosing graph in place of values of the body's graph.
        """
        try:
            yield
        except UnsupportedOperatorError as error:
            origins = [self._origins[v] for v in error.depends_on if v in self._origins]
            found = (v for origin in origins for v in self._outer.builder.inputs_of(origin))
            outside = {inner: value for value, inner in self._inner.items()}
            raise UnsupportedOperatorError(
                error.node,
                error.operator,
                error.domain,
                error.opset,
                error.reason,
                tuple(dict.fromkeys(found)),
                tuple(outside.get(v, v) for v in error.waits_for),
            ) from error

    def graph(self, outputs: Sequence[str]) -> Graph:
        """Return the finished graph of the body with these outputs.

        Raises:
            UnsupportedOperatorError: if an output has a data-dependent extent, or is text or a
                sequence.
        """
        _refuse_others(self.node, outputs)
        self.node.refuse_trimmed(outputs)
        prefix = "output"
        while any(name.startswith(f"{prefix}.") for name in self.builder.types):
            prefix += "_"
        names = [(value, f"{prefix}.{number}") for number, value in enumerate(outputs)]
        return self.builder.finish("body", names, {}, {})


def _refuse_others(node: OnnxNode, values: Sequence[str]) -> None:
    """Raise UnsupportedOperatorError if a value is a sequence, text or a dictionary.

    Control-flow bodies do not support these as captured values or outputs.
    """
    for value in values:
        if value in node.builder.sequences:
            raise node.unsupported("a sequence across a body")
        if value in node.builder.labels:
            raise node.unsupported(f"text or dictionaries ('{value}') across a body")


class CapturingScope(MutableMapping[str, str | None]):
    """A mapping from ONNX names to values of a body's graph.

    It includes the names of the enclosing graph. Looking up such a name captures its value
    (`Enclosure.capture`).
    """

    def __init__(self, values: Mapping[str, str | None], enclosure: Enclosure) -> None:
        self._values = values
        self._enclosure = enclosure
        self._own: dict[str, str | None] = {}

    def __getitem__(self, name: str) -> str | None:
        if name in self._own:
            return self._own[name]
        value = self._values[name]
        return None if value is None else self._enclosure.capture(value)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._values

    def __setitem__(self, name: str, value: str | None) -> None:
        self._own[name] = value

    def __delitem__(self, name: str) -> None:
        del self._own[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from (name for name in self._values if name not in self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def inlined(builder: GraphBuilder, body: Graph, operands: Sequence[str]) -> list[str]:
    """Copy the nodes of a body into the graph under construction.

    `operands` are the values that replace the body's inputs. Returns the names of the copies of the
    body's outputs.
    """
    values = dict(zip(body.inputs, operands, strict=True))
    for name, array in body.constants.items():
        values[name] = builder.constant(array, name, body.types[name].dtype)
    for node in body.nodes:
        inputs = [values[v] for v in node.inputs]
        values[node.output] = builder.emit(node.op, inputs, dict(node.attrs), node.name)
    return [values[v] for v in body.outputs]
