"""The open dimensions of a model: those of its inputs and outputs that have no fixed size."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, NodeProto, TensorShapeProto, ValueInfoProto

from tilewright.compiler.errors import InvalidArgumentError, InvalidModelError
from tilewright.compiler.ops.cast import ONNX_TYPES
from tilewright.compiler.runtime.ports import Dims, OpenPorts
from tilewright.compiler.sizes import Dimension, parse_size, substituted
from tilewright.compiler.sizes.hinted_ranges import as_hinted
from tilewright.compiler.sizes.ranges import SizeRange

_NO_TENSORS = {
    "sequence_type": "a sequence",
    "map_type": "a dictionary",
    "optional_type": "an optional value",
}


def model_ports(graph: GraphProto) -> OpenPorts:
    """Inputs and outputs with their dimensions as stated, without inputs that initializers fill.

    An open dimension of an input has the name that the file gives it, or the input and the
    position (`x[0]`) where it gives none that means something.

    Raises:
        InvalidModelError: if an input is no tensor.
    """
    filled = {tensor.name for tensor in graph.initializer}
    for info in graph.input:
        kind = info.type.WhichOneof("value")
        if kind in _NO_TENSORS:
            raise InvalidModelError(
                f"input '{info.name}' is {_NO_TENSORS[kind]}: inputs are tensors alone; give the "
                "model one for each element"
            )
    inputs = {
        info.name: tuple(
            f"{info.name}[{position}]" if dim == -1 else dim
            for position, dim in enumerate(_dims(info))
        )
        for info in graph.input
        if info.name not in filled
    }
    known = {dim for dims in inputs.values() for dim in dims if isinstance(dim, str)}
    outputs = {
        info.name: tuple(-1 if isinstance(d, str) and d not in known else d for d in _dims(info))
        for info in graph.output
    }
    dtypes = {
        info.name: ONNX_TYPES[number]
        for info in (*graph.input, *graph.output)
        if (number := info.type.tensor_type.elem_type) in ONNX_TYPES
        and (info.name in inputs or info.name in outputs)
    }
    return OpenPorts(inputs, outputs, dtypes=dtypes)


def dim_name(dim: TensorShapeProto.Dimension) -> str:
    """The name of an open dimension; empty where the file gives none, or one without a letter.

    Exporters write '?' or '-1' for whatever is open: two of those are two dimensions.
    """
    name: str = dim.dim_param
    return name if any(map(str.isalpha, name)) else ""


def fixed_size(dim: TensorShapeProto.Dimension) -> int | None:
    """The size that the file gives; None where it is open, for which Paddle writes -1."""
    if not dim.HasField("dim_value") or dim.dim_value == -1:
        return None
    size: int = dim.dim_value
    return size


def stated_size(text: str, sizes: Mapping[str, int]) -> int | None:
    """The size that a dimension's text stands for: a name, or an expression of known names.

    Exporters write `past_sequence_length + 1`; None if the text is no such expression.
    """
    if text in sizes:
        return sizes[text]
    known = {name: Dimension(name, 0) for name in sizes if name.isidentifier()}
    try:
        return substituted(parse_size(text, known), lambda dimension: sizes[dimension.name])
    except ValueError:
        return None


def free_dimensions(graph: GraphProto) -> tuple[str, ...]:
    """The open dimensions of the inputs that need a size or a range, by name, in order.

    What an expression of others' names states needs none.
    """
    names = model_ports(graph).open
    plain = {name: 1 for name in names if name.isidentifier()}
    return tuple(n for n in names if n in plain or stated_size(n, plain) is None)


_MOVES = frozenset(
    {"Cast", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""What parts of a cache may go through before rows are added to them, and after it."""

_MOVED = 3
"""Most of these operators in a row."""

_CACHE_OPERANDS = {"Attention": (4, 5), "MultiHeadAttention": (6, 7), "QAttention": (8,)}
"""Operands to which operators of attention add rows."""


def cache_lengths(graph: GraphProto) -> frozenset[str]:
    """The open dimensions that say how many rows caches hold, by name: in a first run they may be
    0.

    They are those of inputs to which the model adds rows and gives them back, and of no others.
    """
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for value in dict.fromkeys(node.input):
            readers.setdefault(value, []).append(node)
    outputs = {info.name for info in graph.output}

    def is_given_back(value: str, depth: int = _MOVED) -> bool:
        return value in outputs or any(
            depth and node.op_type in (*_MOVES, "Concat") and is_given_back(v, depth - 1)
            for node in readers.get(value, ())
            for v in node.output
        )

    def grows(value: str, depth: int = _MOVED) -> bool:
        return any(
            (node.op_type == "Concat" and node.input[0] == value and is_given_back(node.output[0]))
            or any(value == v for k, v in enumerate(node.input) if k in _cached_by(node))
            or (depth and node.op_type in _MOVES and any(grows(v, depth - 1) for v in node.output))
            for node in readers.get(value, ())
        )

    found: set[str] = set()
    others: set[str] = set()
    for name, dims in model_ports(graph).inputs.items():
        (found if grows(name) else others).update(dim for dim in dims if isinstance(dim, str))
    return frozenset(found - others)


def _cached_by(node: NodeProto) -> tuple[int, ...]:
    return _CACHE_OPERANDS.get(node.op_type, ())


def check_dims(graph: GraphProto, dims: Mapping[str, SizeRange]) -> dict[str, Dimension]:
    """The sizes that dimensions may have; that of one that is fixed is a range of one number. One
    of which hints alone are stated (`compiler.sizes.hinted_ranges`) is left out: nobody gave it a
    range.

    A size that changes no open dimension is a mistake, also where the model has none.

    Raises:
        InvalidArgumentError: if one is no size, or belongs to no open dimension, or `dims` are no
            mapping.
    """
    if not isinstance(dims, Mapping):
        raise InvalidArgumentError(f"dims are a mapping such as {{'batch': '1..64'}}, not {dims!r}")
    constants = {tensor.name for tensor in graph.initializer}
    known: dict[str, None] = {}
    for info in graph.input:
        if info.name in constants:
            continue
        for position, dim in enumerate(info.type.tensor_type.shape.dim):
            if fixed_size(dim) is None:
                if name := dim_name(dim):
                    known[name] = None
                known[f"{info.name}[{position}]"] = None
    ranges: dict[str, Dimension] = {}
    for name, given in dims.items():
        if name not in known:
            names = ", ".join(f"'{n}'" for n in known)
            others = f", open are: {names}" if known else ": all their sizes are fixed"
            raise InvalidArgumentError(f"the inputs have no open dimension '{name}'{others}")
        ranged = as_hinted(name, given).dimension
        if ranged is not None:
            ranges[name] = ranged
    return ranges


def _dims(info: ValueInfoProto) -> Dims:
    """As stated; what is no tensor has one that nobody knows."""
    if info.type.WhichOneof("value") in _NO_TENSORS:
        return (-1,)
    return tuple(
        (dim_name(dim) or -1) if (size := fixed_size(dim)) is None else size
        for dim in info.type.tensor_type.shape.dim
    )
