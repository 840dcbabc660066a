"""The text form of graphs: one statement per line, which parses back to an equal graph.

    graph "mlp"
    input x: float32[1,4]
    constant w: float32[4,2] = sha256:5f1c...
    constant b: float32[2] = [0.5, -1.0]
    y: float32[1,2] = gemm(x, w, b) {alpha=1.0, trans_b=0} as "fc1"
    output y

The bodies of a node are below it, indented by two columns, in the order of the attributes:

    %1: uint8[192] = loop(n, go, x) {body=graph, decides=true, rows=(), states=1}
      graph "body"
      input step: int64[]
      ...

Constants of up to 16 elements are written out; larger ones are named by the SHA-256 of their bytes.
Names that are not plain words are JSON strings. A node's name follows `as` if it is not the name of
its output.

Dynamic sizes are in angle brackets, and lines before the inputs state the ranges of their
dimensions:

    graph "join"
    size past 0..1023
    input x: float32[<past>,64]
    input new: float32[1,64]
    y: float32[<past+1>,64] = concat(x, new) {axis=0}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.sizes import Dimension, always_at_most, is_dynamic, parse_size
from tilewright.compiler.sizes.ranges import parse_range

DEPTH_LIMIT = 64
"""Maximum nesting depth of bodies in the text form."""

INLINE_ELEMENTS = 16
"""Maximum number of elements of a constant whose values the text form contains. A larger constant
is represented by a digest."""

INDENT = "  "

_T = TypeVar("_T")
_DIGEST = re.compile(r"= sha256:[0-9a-f]{64}\b")
_WORD = re.compile(r"%?[A-Za-z0-9_./-]+\Z")
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<word>%?[A-Za-z0-9_./+-]+)|(?P<mark>[:=(){}\[\],])"""
    r"""|(?P<size><(?:[^"<>]|"[^"]*")*>))"""
)


def print_graph(graph: Graph, *, digests: bool = True) -> str:
    """Return the text form of a graph, with a line break at its end. Equal graphs have equal texts.

    Constants are in the order of their first use, whatever the order of `graph.constants`. Without
    `digests`, large constants are not hashed: their text is only `sha256:`, which `parse_graph`
    does not accept.
    """
    lines = [f"graph {json.dumps(graph.name)}"]
    for dimension in graph.dimensions:
        lines.append(f"size {dimension} {dimension.range_text}")
    for value in graph.inputs:
        lines.append(f"input {_name(value)}: {_print_type(graph.types[value])}")
    for value in _constants_in_use_order(graph):
        kind = graph.types[value]
        body = _print_constant(graph.constants[value], kind.dtype, digests)
        lines.append(f"constant {_name(value)}: {_print_type(kind)} = {body}")
    for node in graph.nodes:
        lines.append(_print_node(node, graph.types))
        for inner in node.bodies:
            text = print_graph(inner, digests=digests)
            lines += [INDENT + line for line in text.splitlines()]
    lines.extend(f"output {_name(value)}" for value in graph.outputs)
    return "\n".join(lines) + "\n"


def parse_graph(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """Parse the output of `print_graph`.

    `constants` has the arrays of the constants that the text names by digest; the key is the digest
    or the name of the value.

    Raises:
        InvalidModelError: if the text is malformed, or an array is missing or has another digest.
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return _parse_lines(lines, constants or {}, 0)


_Lines = Sequence[tuple[int, str]]
"""Pairs of a line number and the text of the line."""


def _parse_lines(lines: _Lines, constants: Mapping[str, np.ndarray], depth: int) -> Graph:
    """Parse one graph at the nesting depth `depth`.

    Lines indented more deeply than a statement are the bodies of the statement's node.
    """
    if depth > DEPTH_LIMIT:
        raise InvalidModelError(f"graph text: more than {DEPTH_LIMIT} bodies within each other")
    parser = _Parser(constants)
    position = 0
    while position < len(lines):
        number, line = lines[position]
        end = position + 1
        while end < len(lines) and lines[end][1].startswith(INDENT * (depth + 1)):
            end += 1
        inner = lines[position + 1 : end]
        head = INDENT * (depth + 1) + "graph "
        starts = [i for i, (_, text) in enumerate(inner) if text.startswith(head)]
        bodies = [
            _parse_lines(inner[start:stop], constants, depth + 1)
            for start, stop in pairwise([*starts, len(inner)])
        ]
        try:
            if inner and (not starts or starts[0]):
                raise ValueError("the lines indented below it are not a graph")
            parser.statement(line, bodies)
        except (ValueError, KeyError) as error:
            raise InvalidModelError(f"graph text, line {number}: {error}") from error
        position = end
    return parser.graph()


def digest(array: np.ndarray) -> str:
    """Return the SHA-256 of an array's bytes in row-major order, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _constants_in_use_order(graph: Graph) -> list[str]:
    used = dict.fromkeys(value for node in graph.nodes for value in node.inputs)
    used.update(dict.fromkeys(graph.outputs))
    first = [value for value in used if value in graph.constants]
    return first + sorted(value for value in graph.constants if value not in used)


def _name(text: str) -> str:
    return text if _WORD.match(text) else json.dumps(text)


def _print_type(kind: TensorType) -> str:
    return f"{kind.dtype}[{','.join(map(_print_number, kind.shape))}]"


def _print_node(node: Node, types: Mapping[str, TensorType]) -> str:
    results = ", ".join(f"{_name(value)}: {_print_type(types[value])}" for value in node.outputs)
    text = f"{results} = {node.op}({', '.join(map(_name, node.inputs))})"
    if node.attrs:
        text += " {" + ", ".join(f"{k}={_print_attr(v)}" for k, v in node.attrs) + "}"
    return text if node.name == node.outputs[0] else f"{text} as {json.dumps(node.name)}"


def _print_attr(value: AttrValue) -> str:
    match value:
        case Graph():
            return "graph"
        case tuple():
            return "(" + ", ".join(_print_number(item) for item in value) + ")"
        case str():
            return json.dumps(value)
        case _:
            return _print_number(value)


def _print_number(value: float) -> str:
    if is_dynamic(value):
        return f"<{value}>"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def without_digests(text: str) -> str:
    """Remove the digests of constants from a printed graph, as `print_graph(digests=False)` does.

    `text` may also be a JSON document that contains printed graphs.
    """
    return _DIGEST.sub("= sha256:", text)


def _print_constant(array: np.ndarray, dtype: DType, digests: bool) -> str:
    if array.size > INLINE_ELEMENTS:
        return f"sha256:{digest(array) if digests else ''}"
    if array.dtype.kind == "f" and np.isnan(array).any():
        return f"bytes:{array.tobytes().hex()}"  # in decimal digits, all NaNs look alike
    return "[" + ", ".join(_print_number(item) for item in array.reshape(-1).tolist()) + "]"


class _Parser:
    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = arrays
        self._name: str | None = None
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._nodes: list[Node] = []
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, np.ndarray] = {}
        self._dimensions: dict[str, Dimension] = {}

    def graph(self) -> Graph:
        if self._name is None:
            raise InvalidModelError("graph text: the line 'graph NAME' is missing")
        for value in self._outputs:
            if value not in self._types:
                raise InvalidModelError(f"graph text: output '{value}' is not defined")
        return Graph(
            self._name,
            tuple(self._inputs),
            tuple(self._outputs),
            tuple(self._nodes),
            self._types,
            self._constants,
        )

    def statement(self, line: str, bodies: Sequence[Graph] = ()) -> None:
        tokens = _Tokens(line, self._dimensions)
        first = tokens.name()
        if first == "graph" and tokens.peek() not in (":", ","):
            self._name = tokens.name()
        elif first == "size" and tokens.peek() != ":":
            dimension = parse_range(tokens.name(), tokens.range())
            if dimension.name in self._dimensions:
                raise ValueError(f"size '{dimension.name}' is stated twice")
            self._dimensions[dimension.name] = dimension
        elif first == "input" and tokens.peek() != ":":
            self._inputs.append(self._typed(tokens, tokens.name()))
        elif first == "output" and tokens.peek() != ":":
            self._outputs.append(tokens.name())
        elif first == "constant" and tokens.peek() != ":":
            self._constant(tokens)
        else:
            self._node(tokens, first, bodies)
            bodies = ()
        tokens.end()
        if bodies:
            raise ValueError("a body follows a line without a body")

    def _typed(self, tokens: _Tokens, value: str) -> str:
        tokens.take(":")
        dtype = DType(tokens.word())
        shape = tuple(tokens.list("[", "]", tokens.extent))
        if value in self._types:
            raise ValueError(f"value '{value}' is defined twice")
        if not all(always_at_most(0, extent) for extent in shape):
            raise ValueError(f"value '{value}' has a negative extent")
        self._types[value] = TensorType(dtype, shape)
        return value

    def _constant(self, tokens: _Tokens) -> None:
        value = self._typed(tokens, tokens.name())
        kind = self._types[value]
        tokens.take("=")
        if tokens.peek() == "[":
            items = list(tokens.list("[", "]", tokens.scalar))
            if len(items) != kind.elements:
                raise ValueError(f"constant '{value}' has {len(items)} elements")
            array = np.array(items, kind.dtype.numpy).reshape(kind.shape)
        else:
            form = tokens.word()
            tokens.take(":")
            body = tokens.word()
            array = self._stored(value, kind, form, body)
        array.flags.writeable = False
        self._constants[value] = array

    def _stored(self, value: str, kind: TensorType, form: str, body: str) -> np.ndarray:
        if form == "bytes":
            return np.frombuffer(bytes.fromhex(body), kind.dtype.numpy).reshape(kind.shape)
        if form != "sha256":
            raise ValueError(f"constant '{value}': unknown form '{form}'")
        array = self._arrays.get(body, self._arrays.get(value))
        if array is None:
            raise ValueError(f"constant '{value}' (sha256 {body[:12]}...) is not given")
        if array.nbytes != kind.bytes or digest(array) != body:
            raise ValueError(f"constant '{value}' is not the one that the text was printed with")
        # Constants of other types may have the same bytes, and so the same digest.
        return np.ascontiguousarray(array).view(kind.dtype.numpy).reshape(kind.shape)

    def _node(self, tokens: _Tokens, first: str, bodies: Sequence[Graph]) -> None:
        outputs = [self._typed(tokens, first)]
        while tokens.peek() == ",":
            tokens.take(",")
            outputs.append(self._typed(tokens, tokens.name()))
        tokens.take("=")
        op = tokens.word()
        inputs = tuple(tokens.list("(", ")", tokens.name))
        for value in inputs:
            if value not in self._types:
                raise ValueError(f"value '{value}' is not defined")
        attrs: tuple[tuple[str, AttrValue], ...] = ()
        if tokens.peek() == "{":
            attrs = tuple(tokens.list("{", "}", tokens.attribute))
        places = [key for key, value in attrs if value is _BODY]
        if len(places) != len(bodies):
            raise ValueError(f"{len(places)} bodies are stated, {len(bodies)} follow")
        graphs = dict(zip(places, bodies, strict=True))
        attrs = tuple((key, graphs.get(key, value)) for key, value in attrs)
        name = outputs[0]
        if not tokens.at_end():
            if tokens.word() != "as":
                raise ValueError("expected 'as' and the node's name")
            name = tokens.name()
        self._nodes.append(Node(name, op, inputs, tuple(outputs), attrs))


_BODY = Graph("", (), (), (), {})
"""Temporary value of an attribute that is a body, until the lines of the body are read."""


class _Tokens:
    """The tokens of one line of a graph's text: strings, words, numbers, sizes and punctuation."""

    def __init__(self, line: str, dimensions: Mapping[str, Dimension]) -> None:
        self._dimensions = dimensions
        self._items: list[tuple[str, str]] = []
        position, end = 0, len(line.rstrip())
        while position < end:
            found = _TOKEN.match(line, position)
            if found is None:
                raise ValueError(f"unexpected '{line[position : position + 20].strip()}'")
            self._items.append((str(found.lastgroup), found[str(found.lastgroup)]))
            position = found.end()
        self._items.reverse()

    def at_end(self) -> bool:
        return not self._items

    def end(self) -> None:
        if self._items:
            raise ValueError(f"unexpected '{self._items[-1][1]}' at the end")

    def peek(self) -> str | None:
        """Return the next token if it is a punctuation mark, else None; do not consume it."""
        kind, text = self._items[-1] if self._items else ("", "")
        return text if kind == "mark" else None

    def take(self, mark: str) -> None:
        if self.peek() != mark:
            got = self._items[-1][1] if self._items else "the end of the line"
            raise ValueError(f"expected '{mark}', got '{got}'")
        self._items.pop()

    def word(self) -> str:
        if not self._items or self._items[-1][0] != "word":
            got = self._items[-1][1] if self._items else "the end of the line"
            raise ValueError(f"expected a word, got '{got}'")
        return self._items.pop()[1]

    def name(self) -> str:
        if self._items and self._items[-1][0] == "string":
            return str(json.loads(self._items.pop()[1]))
        return self.word()

    def list(self, opening: str, closing: str, item: Callable[[], _T]) -> Iterator[_T]:
        """Parse `opening`, items separated by commas, and `closing`; yield the items."""
        self.take(opening)
        while self.peek() != closing:
            yield item()
            if self.peek() != closing:
                self.take(",")
        self.take(closing)

    def attribute(self) -> tuple[str, AttrValue]:
        key = self.word()
        self.take("=")
        if self.peek() == "(":
            return key, tuple(self.list("(", ")", self.scalar))
        if self._items and self._items[-1][0] == "string":
            return key, self.name()
        if self._items and self._items[-1] == ("word", "graph"):
            self._items.pop()
            return key, _BODY
        return key, self.scalar()

    def range(self) -> str:
        """Parse the range of a dimension; return its text.

        Examples are `1..512`, and `32..640:32` for the multiples of 32 in a range.
        """
        text = self.word()
        if self.peek() != ":":
            return text
        self.take(":")
        return f"{text}:{self.word()}"

    def extent(self) -> int:
        """Parse an extent: an integer, or a dynamic size, which is returned as a `Size`."""
        return self._size() if self._is_size() else int(self.word())

    def _is_size(self) -> bool:
        return bool(self._items) and self._items[-1][0] == "size"

    def _size(self) -> int:
        return parse_size(self._items.pop()[1][1:-1], self._dimensions)

    def scalar(self) -> Any:
        """Parse a number, a dynamic size or a boolean."""
        if self._is_size():
            return self._size()
        text = self.word()
        if text in ("true", "false"):
            return text == "true"
        if text.lstrip("+-").isdigit():
            return int(text)
        return float(text)
