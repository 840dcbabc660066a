"""Store values between products, and compute products, in a 16-bit float type.

Before:                             After (bfloat16):
    %1 = matmul(%0, w)                  %1 = matmul(%0, w) {accumulator="float32"}
    %2 = add(%1, b)                     %2 = add(%1, b)
                                        %3 = cast(%2) {to="bfloat16"}
    %3 = softmax(%2)                    %4 = cast(%3) {to="float32"}
                                        %5 = softmax(%4)
                                        %6 = cast(%5) {to="bfloat16"}
    %4 = matmul(%3, v)                  %7 = matmul(%6, v) {accumulator="float32"}

The constants `w` and `v` are rounded once, at compile time. The operands of products have 16 bits,
and so do values that pass from one kernel to another between the first product and the last. All
arithmetic stays in float32, in a kernel's registers: sums of products, normalisations, softmax,
elementwise operators. Operators that only move elements keep the type in which the elements are
stored.

The following values stay float32: the inputs and outputs of the graph; values whose rounding could
cause a jump (rounded, compared or converted to integers); operands of native functions and bodies
of control flow; results of a computation with a constant that the 16-bit type cannot represent,
such as a mask's -1e9; and sums and their squares (`float32_sums`), unless they are factors.

Elsewhere: mixed precision (Micikevicius et al., 2018); OpenVINO's inference precision.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.edit import Edit
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.passes.float32_sums import float32_sums
from tilewright.compiler.passes.quantisation import MOVEMENTS, moved_operands
from tilewright.compiler.plan.fusion import Group, fuse
from tilewright.compiler.sizes import typical

FACTORS = {"matmul": 2, "conv": 2, "attention": 3}
"""Operators that are products -> the number of leading operands that are factors."""

_MOVES = (*MOVEMENTS, "pad", "extend")
"""Operators that move elements of their `moved_operands` without change, and may add zeros."""

_FEW_ROWS = 16
"""Maximum number of rows for which products of float16 are faster than those of float32. With 2048
x 2048 weights, they took half of the time for 1 row, nine tenths for 16, and twice as long for
128."""

_JUMPS = ("floor", "ceil", "round", "sign", "mod")


def mixed_precision(graph: Graph, dtype: DType, *, repeated: bool = False) -> Graph:
    """Store values in a 16-bit float type and multiply in it, by the rules of this module.

    Args:
        graph: the graph.
        dtype: float16 or bfloat16.
        repeated: whether the graph is the body of a loop. Only factors then have 16 bits: errors of
            other values in a state would grow with each step.

    Raises:
        InvalidModelError: if a weight does not fit into float16 and would be infinite.
    """
    return _MixedPrecision(graph, dtype, repeated=repeated).graph()


def half_precision_products(graph: Graph, dtype: DType) -> Graph:
    """Compute products with few rows in `dtype`, if their factors are stored in that type.

    One of the factors may be a float32 constant, which is converted only if this loses no
    precision. No other value changes its type.
    """
    return _MixedPrecision(graph, dtype, chooses=False).graph()


class _MixedPrecision:
    def __init__(
        self, graph: Graph, dtype: DType, *, chooses: bool = True, repeated: bool = False
    ) -> None:
        self._source = graph
        self._dtype = dtype
        self._chooses = chooses
        self._repeated = repeated
        self._groups = fuse(graph)
        self._edit = Edit(graph)
        self._stored: dict[str, str] = {
            node.output: value
            for node in graph.nodes
            if node.op == "cast" and graph.types[node.output].dtype is DType.FLOAT32
            for value in node.inputs
            if graph.types[value].dtype is dtype
        }
        """float32 values that were converted from the 16-bit type -> the 16-bit values."""
        self._again: dict[str, str] = {}
        """Results of the model's own casts to the 16-bit type -> the equal 16-bit values that
        already exist."""
        self._crossing = self._chosen() if chooses else set()

    def graph(self) -> Graph:
        """Return the graph with the selected values converted to the 16-bit type."""
        for group in self._groups:
            self._rewrite(group)
        return self._edit.finish() if self._stored else self._source

    # ---- selection of values that are stored narrow

    def _chosen(self) -> set[str]:
        """Return the values between kernels that will be stored in the 16-bit type.

        These are outputs of groups; a group has the nodes that fusion puts into one kernel.
        """
        makers = {group.output: group for group in self._groups}
        readers: dict[str, list[Group]] = {}
        for group in self._groups:
            for value in group.inputs:
                readers.setdefault(value, []).append(group)
        before, after = self._between(makers, readers)
        factors = {
            value
            for value in makers
            if any(self._multiplies(group, value) for group in readers.get(value, []))
        }
        seen_as = set(factors)  # also values of which views are factors
        for group in reversed(self._groups):
            if group.is_view and group.output in seen_as:
                seen_as.update(group.inputs)
        sums = float32_sums(self._source, self._groups) - seen_as
        chosen = {
            value
            for value in makers
            if self._may_be_narrow(value, makers[value], readers.get(value, []))
            and value in after
            and ((value in before and not self._repeated) or value in factors)
            and value not in sums
        }
        while True:
            # Views and concatenations have one type: all of their values are narrow, or none.
            tied = [
                {v for v in (*group.inputs, group.output) if self._is_value(v)}
                for group in self._groups
                if group.is_view or self._is_pieces(group)
            ]
            loose = {v for each in tied if not each <= chosen for v in each if v in chosen}
            if not loose:
                return chosen
            chosen -= loose

    def _between(
        self, makers: dict[str, Group], readers: dict[str, list[Group]]
    ) -> tuple[set[str], set[str]]:
        """Return the values that depend on a product, and the values that a product depends on.

        `makers` maps a value to the group (the nodes of one kernel) that computes it. `readers`
        maps a value to the groups that read it.
        """
        before: set[str] = set()
        for value, group in makers.items():
            if _product(group) is not None or any(v in before for v in group.inputs):
                before.add(value)
        after: set[str] = set()
        for group in reversed(self._groups):
            if _product(group) is not None or group.output in after:
                after.update(group.inputs)
        return before, after & readers.keys()

    def _is_value(self, value: str) -> bool:
        """Whether a value is float32 and not a constant."""
        return (
            self._source.types[value].dtype is DType.FLOAT32 and value not in self._source.constants
        )

    def _is_pieces(self, group: Group) -> bool:
        return ops.get(group.nodes[0].op).kind is OpKind.PIECES

    def _may_be_narrow(self, value: str, maker: Group, readers: list[Group]) -> bool:
        if not self._is_value(value) or self._source.returns(value) or maker.is_native:
            return False
        if self._exceeds(maker):
            return False
        if any(
            node.op in ("bitcast", "field") for group in (maker, *readers) for node in group.nodes
        ):
            return False
        return not any(group.is_native or self._jumps(group) for group in readers)

    def _exceeds(self, group: Group) -> bool:
        """Whether a kernel reads or pads with a constant that the 16-bit type cannot represent.

        For example, masks add -1e9, which would be stored as an infinity. Constant factors of
        products are not considered. `group` has the nodes of the kernel.
        """
        for node in group.nodes:
            factors = node.inputs[: FACTORS.get(node.op, 0)]  # these must not overflow
            arrays = [
                self._source.constants[v]
                for v in node.inputs
                if v not in factors and v in self._source.constants
            ]
            number = node.attr("value") if node.op == "pad" else None
            if isinstance(number, float):
                arrays.append(np.array(number, np.float32))
            floats = (array for array in arrays if array.dtype == np.float32)
            if any(self._lost(array).any() for array in floats):
                return True
        return False

    def _lost(self, array: np.ndarray) -> np.ndarray:
        """Return a mask of the elements that are finite, but infinite in the 16-bit type."""
        with np.errstate(over="ignore"):
            rounded = from_memory(to_memory(array, self._dtype), self._dtype)
        return np.asarray(np.isfinite(array) & ~np.isfinite(rounded))

    def _jumps(self, group: Group) -> bool:
        """Whether a small change of a kernel's operands may cause a large change of its result.

        This holds for rounding, comparisons and conversions from floats to other types. `group` has
        the nodes of the kernel.
        """
        types = self._source.types
        for node in group.nodes:
            floats = any(types[v].dtype.is_float for v in node.inputs)
            if floats and (node.op in _JUMPS or not types[node.output].dtype.is_float):
                return True
        return False

    def _multiplies(self, group: Group, value: str) -> bool:
        """Whether a value is a factor of the product that a kernel computes.

        `group` has the nodes of the kernel. They may move the value's elements before the product.
        """
        product = _product(group)
        if product is None:
            return False
        made = {node.output: node for node in group.nodes}
        for factor in product.inputs[: FACTORS[product.op]]:
            while factor in made:
                factor = made[factor].inputs[0]
            if factor == value:
                return True
        return False

    # ---- rewriting of the graph

    def _rewrite(self, group: Group) -> None:
        """Add the nodes of one kernel to the new graph, with conversions where they are necessary.

        A node may compute in float32 although its operands or its result are stored in 16 bits.
        """
        rounded, wide = self._rounded_value(group), dict[str, str]()
        for node in group.nodes:
            if self._repeats(node):
                self._again[node.output] = self._stored[node.inputs[0]]
                continue
            factors, elements = FACTORS.get(node.op, 0), moved(node)
            few = factors and (self._chooses or self._waits_for_memory(node))
            if few and self._are_narrow(node.inputs[:factors]):
                attrs = {**dict(node.attrs), "accumulator": DType.FLOAT32.value}
                inputs = self._inputs(node, factors, wide)
                self._add(replace(node, inputs=inputs, attrs=tuple(sorted(attrs.items()))), wide)
            elif elements and self._are_narrow(node.inputs[:elements]):
                name = self._name_of(node.output)
                inputs = self._inputs(node, elements, wide)
                self._edit.put(replace(node, name=name, inputs=inputs, outputs=(name,)))
                if self._source.returns(node.output):
                    self._edit.convert(name, node.output)
                    wide[node.output] = node.output
            else:
                self._add(replace(node, inputs=self._inputs(node, 0, wide)), wide)
            if node.output == rounded and rounded not in self._stored:
                self._edit.convert(rounded, self._name_of(rounded))

    def _repeats(self, node: Node) -> bool:
        """Whether a node casts a value to the 16-bit type in which the value is already stored."""
        rounds = node.op == "cast" and self._source.types[node.output].dtype is self._dtype
        return rounds and node.inputs[0] in self._stored and not self._source.returns(node.output)

    def _rounded_value(self, group: Group) -> str | None:
        """Return the value to convert to 16 bits: one of the values that a kernel computes.

        This is usually the output of the kernel. If data movements such as transposes end the
        kernel, it is the value before them. They then move 16-bit elements. The result is None if
        the output stays float32.
        """
        if group.output not in self._crossing:
            return None
        made = {node.output: node for node in group.nodes}
        value = group.output
        while moved(made[value]) == 1 and made[value].inputs[0] in made:
            value = made[value].inputs[0]
        return value

    def _are_narrow(self, values: tuple[str, ...]) -> bool:
        """Whether a node can read all these operands in the 16-bit type.

        At least one is stored in that type. The others may be constants, which are converted.
        """
        constants = self._source.constants
        types = self._source.types
        return (
            all(types[v].dtype is DType.FLOAT32 for v in values)
            and all(v in self._stored or v in constants for v in values)
            and any(v not in constants for v in values)
            and (self._chooses or all(v not in constants or self._holds(v) for v in values))
        )

    def _waits_for_memory(self, node: Node) -> bool:
        """Whether a product has so few rows that memory bandwidth limits it.

        Reading the second factor then takes most of the time.
        """
        if node.op == "conv":
            return False
        types = self._source.types
        shape, other = types[node.output].shape, types[node.inputs[1]].shape
        rows = prod(shape[:-1]) if len(other) == 2 else prod(shape[-2:-1])
        return typical(rows) <= _FEW_ROWS

    def _holds(self, value: str) -> bool:
        """Whether the 16-bit type represents all elements of a constant exactly."""
        array = self._source.constants[value]
        with np.errstate(over="ignore"):
            rounded = from_memory(to_memory(array, self._dtype), self._dtype)
        return bool(np.array_equal(array, rounded.astype(np.float32), equal_nan=True))

    def _inputs(self, node: Node, narrow: int, wide: dict[str, str]) -> tuple[str, ...]:
        """The operands of a node in the types in which the node reads them.

        The first `narrow` operands have the 16-bit type, and the others float32. `wide` maps values
        to their float32 versions in the kernel of the node.
        """
        first = (self._as_stored(value) for value in node.inputs[:narrow])
        return (*first, *(self._in_float32(value, wide) for value in node.inputs[narrow:]))

    def _as_stored(self, value: str) -> str:
        """Return the name of a value in the 16-bit type.

        A constant is rounded at its first use, and shared afterwards.
        """
        if value not in self._stored:
            array = self._source.constants[value]
            self._edit.constants[self._name_of(value)] = self._rounded(value, array)
        return self._stored[value]

    def _rounded(self, value: str, array: np.ndarray) -> np.ndarray:
        lost = self._lost(array)
        if lost.any():
            largest = float(np.abs(array[lost]).max())
            raise InvalidModelError(
                f"constant '{value}' holds {largest:.6g}, which is infinite in {self._dtype}: "
                f"compile the model in another precision"
            )
        return to_memory(array, self._dtype)

    def _in_float32(self, value: str, wide: dict[str, str]) -> str:
        """The name of a value in float32.

        A value that is stored in 16 bits is converted once per kernel. `wide` maps the values that
        were converted or computed in this kernel to their float32 versions.
        """
        value = self._again.get(value, value)
        if value not in self._stored or value in self._source.constants:
            return value
        if value not in wide:
            wide[value] = self._edit.in_type(value, DType.FLOAT32)
            self._edit.convert(self._stored[value], wide[value])
        return wide[value]

    def _add(self, node: Node, wide: dict[str, str]) -> None:
        """Add a node whose result is float32, and record the result for later nodes of the kernel.

        The result is added to `wide`, which maps values to their float32 versions in the kernel.
        """
        self._edit.put(node)
        wide[node.output] = node.output

    def _name_of(self, value: str) -> str:
        """Return a new name for the 16-bit version of a float32 value."""
        name = self._stored[value] = self._edit.in_type(value, self._dtype)
        return name


def _product(group: Group) -> Node | None:
    """The node of a kernel that multiplies matrices or convolves, if the kernel has one.

    `group` has the nodes of the kernel.
    """
    return next((node for node in group.nodes if node.op in FACTORS), None)


def moved(node: Node) -> int:
    """Return the number of leading operands whose elements a node only moves.

    The result is 0 for a node that computes with the elements.
    """
    return len(moved_operands(node)) if node.op in _MOVES else 0
