"""Construction of graphs node by node, with type inference, unique names and constant folding."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.edit import Edit
from tilewright.compiler.graph.ir import Attrs, AttrValue, Graph, Node
from tilewright.compiler.graph.names import fresh
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.ops import size_arithmetic
from tilewright.compiler.ops.attributes import axis_of
from tilewright.compiler.runtime.labels import LABELLED, Labels
from tilewright.compiler.sizes import (
    DynamicSizeError,
    SizeErrorContext,
    bounds,
    dynamic_sizes,
    is_dynamic,
)

FOLD_LIMIT_BYTES = 1 << 20
"""Size in bytes up to which the result of a node on constants is folded. Larger results are folded
only if they are not larger than the operands."""

VALUE_LIMIT_BYTES = 1 << 36
"""Maximum size of a value in bytes. A larger shape is an error, before any memory is allocated."""


GENERATED_LIMIT_BYTES = 1 << 30
"""Maximum total size in bytes of the constants that a model generates, such as by repeating one
element."""

SMALL_BYTES = 1 << 12
"""Size in bytes up to which results, such as shapes and scalars, are folded even if the limit on
all folded values is reached."""


@dataclass(frozen=True, slots=True)
class Trim:
    """A trimmed value: the first `count` positions of `source` along `axis`.

    `source` and `count` name values of the graph. `count` is computed at run time.
    """

    source: str
    count: str
    axis: int


class GraphBuilder:
    """A graph under construction.

    Values get unique temporary names; `finish` assigns the final ones.

    Values that depend only on constants and dynamic sizes, such as shapes, are computed at import
    if possible. The dictionary `sizes` holds their elements: arrays of integers and dynamic sizes.
    Nodes that compute such a value at run time are added only if another node reads it.
    """

    def __init__(self, reserved: Collection[str] = ()) -> None:
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.sizes: dict[str, np.ndarray] = {}
        self.narrow: set[str] = set()
        self.labels: dict[str, Labels] = {}
        """Names of values that represent texts or dictionaries -> the tables of the texts or
        keys."""
        self.sequences: dict[str, tuple[str, ...]] = {}
        """Names of sequences -> the names of their values. A sequence never has the name of a
        value."""
        self.limits: dict[tuple[int, int], str] = {}
        """Pairs (size, limit) -> the scalar 0, whose computation checks that the size does not
        exceed the limit. A run that violates the limit is refused (`ops.refusals`)."""
        self._inputs: list[str] = []
        self._nodes: dict[str, Node] = {}  # by output
        self._reserved = set(reserved)
        self._numbers: dict[str, int] = {}
        self._trims: dict[str, Trim] = {}
        self._as_nodes: set[str] = set()
        self._undecided: dict[str, DynamicSizeError] = {}
        self._generated_bytes = 0
        self._folded_bytes = 0
        self._constant_bytes = 0

    def input(self, name: str, kind: TensorType) -> str:
        """Add a graph input with exactly this name and type; return the name.

        Raises:
            InvalidModelError: if a value of this name exists.
        """
        _check_size(f"input '{name}'", kind)
        if name in self.types:
            raise InvalidModelError(f"value '{name}' is defined twice")
        self.types[name] = kind
        self._inputs.append(name)
        return name

    def constant(
        self,
        array: np.ndarray,
        hint: str,
        dtype: DType | None = None,
        *,
        exact: bool = False,
        narrow: bool = False,
        labels: Labels | None = None,
    ) -> str:
        """Add a constant and return its name.

        Args:
            array: the elements.
            hint: the constant's name if `exact` is true; otherwise a new name is derived from it.
            dtype: the element type, if NumPy's type does not determine it (bfloat16's raw bits).
            exact: whether the name must be `hint`.
            narrow: whether elements have 4 bits in the file, which only some operators support.
            labels: the table of strings, if the elements are positions in such a table.
        """
        kind = dtype or DType(array.dtype.name)
        name = hint if exact else self._fresh(hint)
        self.types[name] = TensorType(kind, tuple(array.shape))
        self.constants[name] = array
        self._constant_bytes += array.nbytes
        if narrow:
            self.narrow.add(name)
        if labels is not None:
            self.labels[name] = labels
        return name

    def numbers(self, array: np.ndarray, dtype: DType, hint: str) -> str:
        """Add a value whose elements are integers and dynamic sizes; return its name.

        The value is a constant if no element is a dynamic size. Otherwise, its elements are stored
        in `sizes`, and no node is added yet. `hint` is the preferred name.
        """
        known = size_arithmetic.numbers(array, dtype)
        if known is not None:
            return self.constant(known, hint, dtype)
        name = self._fresh(hint)
        self.types[name] = TensorType(dtype, tuple(array.shape))
        self.sizes[name] = array
        return name

    def reserve(self, label: str, size: int) -> None:
        """Count `size` bytes towards the limit on the constants that import rules generate.

        Import rules call this method before they allocate a constant. `label` names the node in
        errors.

        Raises:
            InvalidModelError: if the total exceeds GENERATED_LIMIT_BYTES, or the size is negative.
        """
        if size < 0:
            raise InvalidModelError(f"{label}: a constant has a negative size, {size} bytes")
        self._generated_bytes += size
        if self._generated_bytes > GENERATED_LIMIT_BYTES:
            raise InvalidModelError(
                f"{label}: with this constant of {size} bytes, the constants that the model's "
                f"nodes generate exceed the limit of {GENERATED_LIMIT_BYTES} bytes"
            )

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, AttrValue],
        hint: str,
        label: str = "",
        *,
        keep: bool = False,
    ) -> str:
        """Add a node and return the name of its output.

        If constants and dynamic sizes alone determine the result, the builder may compute it at
        import and add no node; it then returns the name of the computed value. With `keep`, the
        node is always added: a later pass matches the node and needs its operands.

        Args:
            op: the operator.
            inputs: the operands.
            attrs: the attributes of the node.
            hint: the output's name begins with this text.
            label: the text that names the node in errors; by default the operator.
            keep: whether to add the node even if its result is known.

        Raises:
            InvalidModelError: if the operator does not accept the operands.
        """
        operator = ops.get(op)
        pairs = tuple(sorted(attrs.items()))
        try:
            with SizeErrorContext(label or op):
                kind = operator.infer([self.types[value] for value in inputs], pairs)
        except InvalidModelError as error:
            raise InvalidModelError(f"{label or op}: {error}") from error
        _check_size(label or op, kind)
        folded = None if keep else self._fold(operator, inputs, pairs, kind)
        if folded is not None:
            return self.constant(folded, f"{hint}.{op}", kind.dtype)
        undecided = None
        if self.sizes and not self.sizes.keys().isdisjoint(inputs):
            try:
                sizes = None if keep else self._fold_sizes(op, inputs, pairs, kind.dtype)
                if sizes is not None:
                    return self.numbers(sizes.reshape(kind.shape), kind.dtype, f"{hint}.{op}")
            except DynamicSizeError as error:
                undecided = error.by(label or op)
            inputs = [self._as_data(value) for value in inputs]
        name = self._fresh(f"{hint}.{op}")
        if undecided is not None:
            self._undecided[name] = undecided
        self.types[name] = kind
        self._add(name, op, inputs, pairs)
        if op == "trim":
            self._trims[name] = Trim(inputs[0], inputs[1], axis_of(pairs, len(kind.shape), 0))
        return name

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Return a context manager; nodes added within it are placed before all other nodes.

        The added nodes must not depend on nodes that the graph already has.
        """
        others, self._nodes = self._nodes, {}
        try:
            yield
        finally:
            self._nodes |= others

    def sequence(self, values: Sequence[str]) -> str:
        """Register an ONNX sequence that consists of `values`; return a new name for it."""
        name = self._fresh("sequence")
        self.sequences[name] = tuple(values)
        return name

    def known(self, value: str) -> np.ndarray | None:
        """Return the array of a constant, or of a value without elements; None for all others."""
        kind = self.types[value]
        empty = (
            None
            if kind.elements != 0 or value in self._trims
            else np.zeros(kind.shape, kind.dtype.numpy)
        )
        return self.constants.get(value, empty)

    def undecided(self, value: str) -> DynamicSizeError | None:
        """Return the error that explains why dynamic sizes leave a value unknown at import.

        The caller has found that the value is unknown. If the sizes leave a condition undecided,
        the error states this condition. The result is None if the value depends on a graph input.
        """
        found = self._computed_from(value)
        reasons = [self._undecided[each] for each in found if each in self._undecided]
        if not set(found).isdisjoint(self._inputs):
            return None
        unknown = DynamicSizeError("it depends on dynamic sizes")
        return next(iter(reasons), unknown)

    def trim(self, value: str) -> Trim | None:
        """Return the `Trim` (source and length) of a value that has an extent computed at run time.

        The result is None for other values. The type of the value states the largest possible
        extent.
        """
        return self._trims.get(value)

    def is_made(self, value: str) -> bool:
        """Whether the value is neither a graph input nor a constant."""
        return value not in self.constants and value not in self._inputs

    def maker(self, value: str) -> Node | None:
        """Return the node that computes a value; None for inputs and constants."""
        return self._nodes.get(value)

    def inputs_of(self, value: str) -> tuple[str, ...]:
        """Return the graph inputs that a value depends on, in the order of the graph's inputs."""
        found = {*self._computed_from(value)}
        return tuple(name for name in self._inputs if name in found)

    def _computed_from(self, value: str) -> list[str]:
        """Return the value and all values that it depends on; the value itself comes first."""
        seen, stack, found = {value}, [value], list[str]()
        while stack:
            found.append(stack.pop())
            node = self._nodes.get(found[-1])
            if node is not None:
                stack += [v for v in node.inputs if v not in seen]
                seen.update(node.inputs)
        return found

    def finish(
        self,
        name: str,
        outputs: Sequence[tuple[str, str]],
        names: Mapping[str, str],
        node_names: Mapping[str, str],
    ) -> Graph:
        """Build the graph, without nodes that no output depends on.

        Args:
            name: the graph's name.
            outputs: for each output of the graph, the value and the output's name.
            names: final names of values that should not keep their temporary names.
            node_names: final names of nodes; the key is the temporary name of the node's output.
        """
        for value, _ in outputs:
            self._as_data(value)
        renames = dict(names)
        made = {*self._nodes}
        final_names = {final for _, final in outputs}
        results = []
        for value, final in outputs:
            if value in made and renames.get(value) not in final_names:
                renames[value] = final
            if renames.get(value) == final:
                results.append(final)
                continue
            # The output is an input, a constant, or another output under a second name.
            copy = self._fresh(f"{final}.identity")
            self._nodes[copy] = self._copied(value, copy)
            self.types[copy] = self.types[value]
            if final not in self.types:
                renames[copy] = final
            results.append(renames.get(copy, copy))
        return self._graph(name, results, renames, node_names)

    def _copied(self, value: str, copy: str) -> Node:
        """Return a node that computes the same value as `value` under the name `copy`."""
        if self.trim(value) is None:
            return Node(copy, "identity", (value,), (copy,), ())
        return replace(self._nodes[value], name=copy, outputs=(copy,))

    def _graph(
        self,
        name: str,
        outputs: Sequence[str],
        renames: Mapping[str, str],
        node_names: Mapping[str, str],
    ) -> Graph:
        def final(value: str) -> str:
            return renames.get(value, value)

        types = {final(value): kind for value, kind in self.types.items()}
        constants = {final(value): array for value, array in self.constants.items()}
        edit = Edit(Graph(name, tuple(self._inputs), tuple(outputs), (), types, constants))
        for node in self._nodes.values():
            output = final(node.output)
            inputs, own_name = tuple(map(final, node.inputs)), node_names.get(node.output, output)
            edit.put(Node(own_name, node.op, inputs, (output,), node.attrs))
        return edit.finish()

    def _fold(
        self,
        operator: ops.Operator,
        inputs: Sequence[str],
        attrs: tuple[tuple[str, AttrValue], ...],
        kind: TensorType,
    ) -> np.ndarray | None:
        if operator.kind is ops.OpKind.CONTROL:
            return None  # a body may run for any time, or forever
        if any(map(is_dynamic, kind.shape)):
            return None
        if 0 in kind.shape and operator.name not in ("trim", LABELLED):
            return np.zeros(kind.shape, kind.dtype.numpy)  # there is nothing to compute
        known = [self.known(value) for value in inputs]
        arrays = [array for array in known if array is not None]
        if len(arrays) != len(inputs) or not arrays or dynamic_sizes(attrs):
            return None
        if kind.bytes > max(FOLD_LIMIT_BYTES, sum(array.nbytes for array in arrays)):
            return None
        given = self._constant_bytes - self._folded_bytes
        limit = max(GENERATED_LIMIT_BYTES, 2 * given)
        if kind.bytes > SMALL_BYTES and self._folded_bytes + kind.bytes > limit:
            return None  # all folded values are in memory at once, which would exceed the limit
        operands = [
            from_memory(array, self.types[value].dtype)
            for value, array in zip(inputs, arrays, strict=True)
        ]
        if kind.dtype is DType.FLOAT16 and operator.name != "bitcast":
            # as in `passes.widen`: sums are float32
            operands = [a.astype(np.float32) if a.dtype == np.float16 else a for a in operands]
        with np.errstate(all="ignore"):
            result = np.asarray(operator.reference(operands, attrs))
        if operator.name == "trim" and result.shape != kind.shape:
            return None
        with np.errstate(over="ignore"):
            stored = to_memory(result, kind.dtype).reshape(kind.shape)
        if kind.dtype is DType.FLOAT16 and np.isinf(stored).any() and np.isfinite(result).all():
            return None  # beyond float16, as a sum of squares whose root is not
        self._folded_bytes += kind.bytes
        return stored

    def _fold_sizes(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: tuple[tuple[str, AttrValue], ...],
        dtype: DType,
    ) -> np.ndarray | None:
        """Compute the result of a node at import by arithmetic on integers and dynamic sizes.

        The result is None if the operator is not supported, or an operand is unknown or too large.

        Raises:
            DynamicSizeError: if the result can be computed only at run time.
        """
        operands = []
        for value in inputs:
            array, kind = self.sizes.get(value), self.types[value]
            if array is None:
                known = self.known(value)
                if known is None or known.size > size_arithmetic.ELEMENTS_LIMIT:
                    return None
                array = size_arithmetic.items(from_memory(known, kind.dtype))
            operands.append(array)
        return size_arithmetic.folded(op, operands, attrs, dtype)

    def _as_data(self, value: str) -> str:
        """Add the nodes that compute a value from dynamic sizes at run time, and return its name.

        Such a value is an entry of the dictionary `sizes`. If its nodes exist, none are added. Any
        other value is returned unchanged.
        """
        array = self.sizes.get(value)
        if array is None or value in self._as_nodes:
            return value
        self._as_nodes.add(value)
        kind = self.types[value]
        parts = []
        for item in array.flat if array.size > 1 else ():
            parts.append(self.numbers(np.array([item], object), kind.dtype, f"{value}.part"))
        if not parts:
            (item,) = array.flat
            attrs = {"dtype": kind.dtype.value, "shape": kind.shape, "start": item, "step": 0}
            self._add(value, "iota", (), tuple(attrs.items()))
            return value
        inputs = tuple(map(self._as_data, parts))
        name = value if len(kind.shape) == 1 else self._fresh(f"{value}.flat")
        self.types[name] = TensorType(kind.dtype, (len(parts),))
        self._add(name, "concat", inputs, (("axis", 0),))
        if name != value:
            self._add(value, "reshape", (name,), (("shape", kind.shape),))
        return value

    def _add(self, name: str, op: str, inputs: Sequence[str], attrs: Attrs) -> None:
        self._nodes[name] = Node(name, op, tuple(inputs), (name,), attrs)

    def _fresh(self, hint: str) -> str:
        return fresh(hint, self.types, self.sequences, self._reserved, last=self._numbers)


def _check_size(label: str, kind: TensorType) -> None:
    least = bounds(kind.bytes)[0] if is_dynamic(kind.bytes) else kind.bytes
    if least > VALUE_LIMIT_BYTES:
        raise InvalidModelError(
            f"{label}: a value of type {kind} takes {kind.bytes} bytes, "
            f"more than the limit of {VALUE_LIMIT_BYTES}"
        )
