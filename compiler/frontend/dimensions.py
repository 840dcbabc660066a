"""Dynamic dimensions of ONNX models: dimensions of inputs and outputs without a fixed size."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import GraphProto, NodeProto, TensorShapeProto, ValueInfoProto

from tilewright.compiler.errors import InvalidArgumentError, InvalidModelError, suggestion
from tilewright.compiler.ops.cast import ONNX_TYPES
from tilewright.compiler.runtime.ports import Dims, ModelPorts
from tilewright.compiler.sizes import Dimension, parse_size, substituted
from tilewright.compiler.sizes.hinted_ranges import as_hinted
from tilewright.compiler.sizes.ranges import SizeRange

_NO_TENSORS = {
    "sequence_type": "a sequence",
    "map_type": "a dictionary",
    "optional_type": "an optional value",
}


def model_ports(graph: GraphProto) -> ModelPorts:
    """Return the inputs and outputs of a graph, with the dimensions that the file states.

    An input that has an initializer is left out. A dynamic dimension of an input has the name that
    the file states, or else is named by input and position (`x[0]`).

    Raises:
        InvalidModelError: if an input is not a tensor.
    """
    filled = {tensor.name for tensor in graph.initializer}
    for info in graph.input:
        kind = info.type.WhichOneof("value")
        if kind in _NO_TENSORS:
            raise InvalidModelError(
                f"input '{info.name}' is {_NO_TENSORS[kind]}: only tensors are supported as "
                "inputs; use one input per element"
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
    return ModelPorts(inputs, outputs, dtypes=dtypes)


def dim_name(dim: TensorShapeProto.Dimension) -> str:
    """Return the name of a dynamic dimension; empty if the file states no name with a letter.

    Exporters write '?' or '-1' for every dynamic dimension, so these texts do not count as names.
    """
    name: str = dim.dim_param
    return name if any(map(str.isalpha, name)) else ""


def fixed_size(dim: TensorShapeProto.Dimension) -> int | None:
    """Return the size that the file states; None for a dynamic dimension.

    The size -1, which Paddle's exporter writes, also means a dynamic dimension.
    """
    if not dim.HasField("dim_value") or dim.dim_value == -1:
        return None
    size: int = dim.dim_value
    return size


def stated_size(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return the size that a dimension's text denotes, or None.

    The text is a name in `sizes`, or an expression of such names as exporters write them, such as
    `past_sequence_length + 1`. For any other text, the result is None.
    """
    if text in sizes:
        return sizes[text]
    known = {name: Dimension(name, 0) for name in sizes if name.isidentifier()}
    try:
        return substituted(parse_size(text, known), lambda dimension: sizes[dimension.name])
    except ValueError:
        return None


def free_dimensions(graph: GraphProto) -> tuple[str, ...]:
    """Return the names of the inputs' dynamic dimensions, in the order of the inputs.

    A dimension that the file states as an expression of other dimensions is left out.
    """
    names = model_ports(graph).open
    plain = {name: 1 for name in names if name.isidentifier()}
    return tuple(n for n in names if n in plain or stated_size(n, plain) is None)


_MOVES = frozenset(
    {"Cast", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that may lie between a cache and the operator that adds rows to it, and between this
operator and the output."""

_MOVED = 3
"""Maximum number of consecutive operators from `_MOVES`."""

_CACHE_OPERANDS = {"Attention": (4, 5), "MultiHeadAttention": (6, 7), "QAttention": (8,)}
"""Attention operators -> the positions of the cache operands to which they add rows."""


def cache_lengths(graph: GraphProto) -> frozenset[str]:
    """Return the names of the dynamic dimensions that count the rows of caches.

    A cache is an input to which the model appends rows, and which it returns as an output. It is
    empty before the first run, so its number of rows may be 0. A dimension that also belongs to
    another kind of input is left out, because that input may not support the size 0.
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
    """Check the sizes and ranges that a caller gives for dynamic dimensions, and parse them.

    Args:
        graph: the graph of the model.
        dims: for each dimension, a size, a range, size hints (typical sizes), or a range with
            hints. A key is the name of a dimension, or an input and a position, such as `x[0]`.

    Returns:
        The range of each dimension by name. A fixed size is a range of one number. A dimension for
        which `dims` has size hints but no range (`compiler.sizes.hinted_ranges`) is left out.

    Raises:
        InvalidArgumentError: if a size is invalid, a name belongs to no dynamic dimension of the
            model, or `dims` is not a mapping.
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
            others = f", only: {names}" if known else ": all their sizes are fixed"
            raise InvalidArgumentError(
                f"the inputs have no dynamic dimension '{name}'{others}{suggestion(name, known)}"
            )
        ranged = as_hinted(name, given).dimension
        if ranged is not None:
            ranges[name] = ranged
    return ranges


def _dims(info: ValueInfoProto) -> Dims:
    """The dimensions of an input or output as the file states them.

    Each dimension is a size, a name, or -1 if the file states neither. An input or output that is
    not a tensor has the dimensions (-1,).
    """
    if info.type.WhichOneof("value") in _NO_TENSORS:
        return (-1,)
    return tuple(
        (dim_name(dim) or -1) if (size := fixed_size(dim)) is None else size
        for dim in info.type.tensor_type.shape.dim
    )
