"""Translation of PyTorch graphs of ATen operators to ONNX models that share the tensors' memory.

Graphs come from `aot_autograd` or `torch.export`. One rule per operator emits ONNX nodes
(`compiler.bindings.torch.rules`). Sizes that are symbolic expressions in PyTorch (`s77 // 2`)
become arithmetic on `Shape`, which the compiler's import of the ONNX model converts back to the
same expressions.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import sympy
import torch
from onnx import TensorProto, helper
from torch import fx
from torch.utils._sympy import functions as torch_sympy
from torch.utils._sympy.value_ranges import bound_sympy

from tilewright.compiler.bindings.torch.element_types import ELEMENT_TYPES, as_numpy, part_type
from tilewright.compiler.bindings.torch.positions import are_within, intersection, source_of
from tilewright.compiler.bindings.torch.results import OutputSpec
from tilewright.compiler.bindings.torch.symbolic import (
    NotTranslatedError,
    Size,
    bounded,
    expression,
    quotient,
)
from tilewright.compiler.bindings.torch.views import is_tensor_valued
from tilewright.compiler.dtypes import DType
from tilewright.compiler.frontend.model_file import ReadModel
from tilewright.compiler.ops.onnx_node import OnnxTensor

OPSET = 22

log = logging.getLogger("tilewright.torch")

Rule: TypeAlias = Callable[..., Any]
"""Translates a node, given a translator, the node and its arguments; returns the name of its value,
or a tuple of names."""


class ComplexPair(NamedTuple):
    """The names of the two ONNX values that hold a complex tensor's real and imaginary parts."""

    real: str
    imaginary: str


@dataclass(frozen=True, slots=True)
class Translated:
    """An ONNX model translated from a graph, and the mapping of its inputs and outputs.

    Attributes:
        model: the ONNX model; its weights share the tensors' memory.
        inputs: for each input of the model, the position of the graph's argument.
        outputs: the specification of each result of the graph.
        ranges: the ranges of those dynamic dimensions that PyTorch bounds from above, by name.
        positions: the bounds that the elements of index arguments must have, by the argument's
            position.
    """

    model: ReadModel
    inputs: tuple[int, ...]
    outputs: tuple[OutputSpec, ...]
    ranges: Mapping[str, range]
    positions: Mapping[int, range]


def operator_name(target: Any) -> str:
    """Return the name of a node's target operator, such as `aten.add.Tensor`."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else f"{target!r}"


@cache
def rules() -> Mapping[Any, Rule]:
    """Return the translation rule of each ATen operator, from all files in
    `bindings/torch/rules`."""
    package = import_module("tilewright.compiler.bindings.torch.rules")
    found: dict[Any, Rule] = {}
    for each in iter_modules(package.__path__):
        found.update(import_module(f"{package.__name__}.{each.name}").RULES)
    return found


@cache
def complex_rules() -> Mapping[Any, Rule]:
    """Return the translation rules for nodes with a complex argument or result, by operator.

    The rules represent complex values as `ComplexPair`s.
    """
    found: Mapping[Any, Rule] = import_module(
        "tilewright.compiler.bindings.torch.rules.complex"
    ).COMPLEX_RULES
    return found


def translate(
    graph: fx.Graph,
    constants: Mapping[int, torch.Tensor],
    attributes: Callable[[str], torch.Tensor],
    names: Mapping[int, str] | None = None,
    output_names: Sequence[str] | None = None,
    ranges: Mapping[Any, Any] | None = None,
    *,
    is_exported: bool = False,
) -> Translated:
    """Translate a graph of ATen operators to an ONNX model.

    Args:
        graph: the graph; `meta["val"]` of each node is its fake tensor.
        constants: the tensors of arguments that are weights, by position.
        attributes: returns the tensor of a `get_attr` node, given its target.
        names: the names of the other arguments, by position; numbered by default.
        output_names: names of the output tensors.
        ranges: bounds of PyTorch's symbols (`ShapeEnv.var_to_range`).
        is_exported: whether the model will run without PyTorch, so that every operator must be
            translated.

    Raises:
        NotTranslatedError: if an operator has no rule. The message names one such operator; the
            error's attribute `refused` has all of them.
    """
    translator = Translator(constants, attributes, is_exported)
    return translator.run(graph, names or {}, output_names, ranges or {})


@dataclass(slots=True)
class Translator:
    """The state of a graph's translation, through which rules emit ONNX nodes and query values.

    `constants`, `attributes` and `is_exported` are the arguments of `translate`.
    """

    constants: Mapping[int, torch.Tensor]
    attributes: Callable[[str], torch.Tensor]
    is_exported: bool = False
    opset: int = OPSET
    """ONNX opset of the model. Rules raise it if they emit operators of a later opset."""
    nodes: list[Any] = field(default_factory=list)
    lifted: set[fx.Node] = field(default_factory=set)
    """Matrix products whose ONNX value has separate leading dimensions, although a view joins these
    dimensions in PyTorch."""
    _values: dict[fx.Node, Any] = field(default_factory=dict)
    _tensors: dict[str, OnnxTensor] = field(default_factory=dict)
    _types: dict[str, int] = field(default_factory=dict)
    _known: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    _symbols: dict[Any, tuple[str, int] | str] = field(default_factory=dict)
    """The source of each size symbol's value: the name and dimension of an input, or the name of an
    integer input."""
    _sizes: dict[Any, str] = field(default_factory=dict)
    _ranges: Mapping[Any, Any] = field(default_factory=dict)
    """Bounds of PyTorch's size symbols (`ShapeEnv.var_to_range`)."""
    _places: Mapping[fx.Node, int] = field(default_factory=dict)
    _positions: dict[int, range] = field(default_factory=dict)
    """Positions of the arguments that are used as indices -> the bounds of their elements."""
    _refused: dict[fx.Node, str] = field(default_factory=dict)
    """Nodes that cannot be translated, with the reasons."""
    _taken: int | None = None
    """The part of a complex value that `value` returns: 0 for the real part, 1 for the imaginary
    part, None for both."""
    _at: str = ""
    """Name of the node that is translated. Its ONNX nodes get this name, which then appears in the
    compiler's error messages."""

    def run(
        self,
        graph: fx.Graph,
        names: Mapping[int, str],
        output_names: Sequence[str] | None,
        ranges: Mapping[Any, Any],
    ) -> Translated:
        self._ranges = ranges
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._places = {node: position for position, node in enumerate(placeholders)}
        infos, taken, dynamic_dims = self._inputs(placeholders, names)
        outputs: tuple[OutputSpec, ...] = ()
        results: list[Any] = []
        for node in graph.nodes:
            if node.op == "get_attr":
                self._constant(node, self.attributes(node.target))
            elif node.op == "call_function":
                self._values[node] = self._call(node)
            elif node.op == "output" and not self._refused:
                outputs, results = self._outputs(node.args[0], output_names)
        if self._refused:
            raise NotTranslatedError(next(iter(self._refused.values())), self._refused)
        initializers = [
            TensorProto(name=name, dims=each.array.shape, data_type=self._types[name])
            for name, each in self._tensors.items()
        ]
        graph_proto = helper.make_graph(self.nodes, "torch", infos, results, initializers)
        opset = helper.make_opsetid("", self.opset)
        model = helper.make_model(graph_proto, opset_imports=[opset], producer_name="tilewright")
        model.ir_version = 10
        read = ReadModel(model, tensors=self._tensors)
        bounds = bounded(dynamic_dims, ranges)
        return Translated(read, taken, outputs, bounds, dict(self._positions))

    # methods that emit nodes

    def op(self, kind: str, *inputs: str | None, **attributes: Any) -> str:
        """Add an ONNX node of operator `kind` with one output, and return the output's name."""
        return self.several(kind, *inputs, count=1, **attributes)[0]

    def several(
        self, kind: str, *inputs: str | None, count: int, **attributes: Any
    ) -> tuple[str, ...]:
        """Add an ONNX node of operator `kind` with `count` outputs, and return their names."""
        results = tuple(f"v{len(self.nodes)}_{k}" for k in range(count))
        given = {name: value for name, value in attributes.items() if value is not None}
        operands = [name or "" for name in inputs]
        self.nodes.append(helper.make_node(kind, operands, results, self._at, **given))
        return results

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Add a small constant of a PyTorch type (int64 by default), and return its name."""
        kind = ELEMENT_TYPES[dtype or torch.int64]
        if kind[1] is DType.BFLOAT16:
            return self.tensor(torch.tensor(value, dtype=dtype))
        try:
            array = np.asarray(value, kind[1].numpy)
        except (OverflowError, ValueError) as error:
            raise NotTranslatedError(f"{value} as {dtype or torch.int64}") from error
        return self._small(array, *kind)

    def _small(self, array: np.ndarray, element_type: int, dtype: DType) -> str:
        key = str(dtype), array.shape, array.tobytes()
        if key not in self._known:
            self._known[key] = self._add(array, element_type, dtype)
        return self._known[key]

    def tensor(self, tensor: torch.Tensor) -> str:
        """Add a tensor as a constant of the ONNX model, and return its name.

        The constant shares the tensor's memory; a non-contiguous tensor is copied.

        Raises:
            NotTranslatedError: if ONNX lacks the tensor's type.
        """
        kind = ELEMENT_TYPES.get(tensor.dtype)
        if kind is None:
            raise NotTranslatedError(f"a constant of {tensor.dtype}")
        return self._add(as_numpy(tensor.contiguous()), *kind)

    def _add(self, array: np.ndarray, element_type: int, dtype: DType) -> str:
        name = f"c{len(self._tensors)}"
        self._tensors[name] = OnnxTensor(array, dtype)
        self._types[name] = element_type
        return name

    @contextmanager
    def taking(self, part: int) -> Iterator[None]:
        """Context manager in which `value` returns one part of complex values.

        `part` is 0 for the real or 1 for the imaginary part; the imaginary part of a real value is
        0.
        """
        self._taken = part
        try:
            yield
        finally:
            self._taken = None

    def pair_of(self, name: str) -> ComplexPair:
        """Split a real value whose last dimension is (real part, imaginary part) into two
        values."""
        parts = [self.op("Gather", name, self.constant(part), axis=-1) for part in (0, 1)]
        return ComplexPair(*parts)

    def joined(self, pair: ComplexPair) -> str:
        """Emit a complex value as a real one with a new last dimension (real part, imaginary
        part)."""
        last = self.constant([-1])
        return self.op("Concat", *(self.op("Unsqueeze", each, last) for each in pair), axis=-1)

    # methods that rules query

    def value(self, given: Any, dtype: Any = None) -> str:
        """Return the name of an argument's ONNX value, cast to `dtype` unless that is None.

        The argument is a node, or a number, which becomes a constant.
        """
        if isinstance(given, fx.Node):
            if not isinstance(given.meta.get("val"), torch.Tensor):
                number = self.number(given)
                return number if dtype in (None, torch.int64) else self.cast(number, dtype)
            found = self._values[given]
            if self._taken is not None and isinstance(found, ComplexPair):
                found = found[self._taken]
            elif self._taken and (dtype or self.dtype(given)).is_floating_point:
                zero = self.constant(0, dtype or self.dtype(given))
                return self.op("Expand", zero, self.numbers(self.shape(given)))
            if not isinstance(found, str):
                raise NotTranslatedError(f"several values of '{given.name}' as one")
            return found if dtype is None or dtype == self.dtype(given) else self.cast(found, dtype)
        return self.constant(given, dtype)

    def cast(self, name: str, dtype: Any) -> str:
        """Cast a value to another type, and return the name of the result."""
        if dtype not in ELEMENT_TYPES:
            raise NotTranslatedError(f"a value of {dtype}")
        found = self.op("Cast", name, to=ELEMENT_TYPES[dtype][0])
        return found

    @staticmethod
    def dtype(node: fx.Node) -> Any:
        """Return the PyTorch type of a node's value; for a list of tensors, of the first tensor.

        For complex values, it is the type of the real part.
        """
        value = node.meta["val"]
        return part_type((value[0] if isinstance(value, tuple | list) else value).dtype)

    @staticmethod
    def shape(node: fx.Node) -> tuple[Size, ...]:
        """Return the shape of a node's value; for a list of tensors, of the first tensor."""
        value = node.meta["val"]
        value = value[0] if isinstance(value, tuple | list) else value
        return tuple(expression(size) for size in value.shape)

    def number(self, size: Any) -> str:
        """Emit a size as an int64 of rank 0, and return its name."""
        known = expression(size)
        return self.constant(known) if isinstance(known, int) else self._computed(known)

    def numbers(self, sizes: Sequence[Any]) -> str:
        """Emit sizes as an int64 vector, and return its name."""
        known = [expression(size) for size in sizes]
        if all(isinstance(each, int) for each in known):
            return self.constant(np.array(known, np.int64))
        parts = [
            self.constant([each])
            if isinstance(each, int)
            else self.op("Reshape", self._computed(each), self.constant([1]))
            for each in known
        ]
        found = self.op("Concat", *parts, axis=0)
        return found

    def reshaped(self, name: str, old: Sequence[Size], new: Sequence[Size]) -> str:
        """Emit a reshape of the value `name` from shape `old` to shape `new`, and return the
        result's name.

        The target shape is a constant if possible, by means of ONNX's special values: 0 for an
        unchanged dynamic size, and -1 for one other dynamic size. Otherwise, it is computed at run
        time.
        """
        if tuple(old) == tuple(new):
            return name
        target: list[Size] = list(new)
        if not any(size == 0 for size in (*old, *new)):
            for position, size in enumerate(new):
                same = position < len(old) and old[position] == size
                if same and not isinstance(size, int):
                    target[position] = 0
            unknown = [k for k, size in enumerate(target) if not isinstance(size, int)]
            if len(unknown) == 1:
                target[unknown[0]] = -1
            if all(isinstance(size, int) for size in target):
                found = self.op("Reshape", name, self.constant(target))
                return found
        found = self.op("Reshape", name, self.numbers(new), allowzero=1)
        return found

    def looked_up(self, index: fx.Node, size: Size, *, from_end: bool = False) -> None:
        """Declare that the elements of `index` must be indices of a dimension of extent `size`.

        If `index` is an argument of the graph, or an argument after operators such as `view`, its
        elements are checked before each call. A call with an index out of bounds runs in PyTorch,
        which raises an error. Indices that the graph computes, and indices of a dynamic dimension,
        are not checked. With `from_end`, indices from -size to -1 are valid as well.

        Raises:
            NotTranslatedError: if a constant index is out of bounds.
        """
        place = self._places.get(source_of(index))
        if place is None or not isinstance(size, int):
            return
        bounds = range(-size if from_end else 0, size)
        if place not in self.constants:
            self._positions[place] = intersection(self._positions.get(place, bounds), bounds)
        elif not are_within(self.constants[place], bounds):
            raise NotTranslatedError(f"positions beyond {size}")

    # methods called once per graph

    def _inputs(
        self, placeholders: Sequence[fx.Node], names: Mapping[int, str]
    ) -> tuple[list[Any], tuple[int, ...], dict[str, Any]]:
        """Convert the graph's arguments to inputs of the model; weights become constants.

        Return the inputs; for each input, the position of its argument in the graph; and the
        symbolic size of each dynamic dimension, by the dimension's name.
        """
        infos: list[Any] = []
        taken: list[int] = []
        dynamic_dims: dict[Any, str] = {}
        numbers: list[tuple[int, fx.Node]] = []
        for position, node in enumerate(placeholders):
            value = node.meta.get("val")
            if position in self.constants:
                self._constant(node, self.constants[position])
                continue
            if isinstance(value, torch.SymInt):
                numbers.append((position, node))
                continue
            if not isinstance(value, torch.Tensor):
                if isinstance(value, torch.SymFloat):
                    self._refused[node] = "a number that is not an integer as an argument"
                continue  # a plain number, which is also stored in the nodes
            kind = ELEMENT_TYPES.get(part_type(value.dtype))
            if kind is None:
                self._refused[node] = f"an argument of {value.dtype}"
                continue
            name = names.get(position, f"input_{len(taken)}")
            dims: list[int | str] = []
            for dim, size in enumerate(self.shape(node)):
                if isinstance(size, int):
                    dims.append(size)
                    continue
                if isinstance(size, sympy.Symbol):
                    self._symbols.setdefault(size, (name, dim))
                dims.append(dynamic_dims.setdefault(size, f"size_{len(dynamic_dims)}"))
            if value.dtype.is_complex:
                dims.append(2)
            infos.append(helper.make_tensor_value_info(name, kind[0], dims))
            self._values[node] = self.pair_of(name) if value.dtype.is_complex else name
            taken.append(position)
        for position, node in numbers:
            symbol = expression(node)
            if isinstance(symbol, int) or symbol in self._symbols:
                continue
            if not isinstance(symbol, sympy.Symbol):
                raise NotTranslatedError(f"the number {symbol} as an argument")
            name = names.get(position, f"input_{len(taken)}")
            infos.append(helper.make_tensor_value_info(name, TensorProto.INT64, []))
            self._symbols[symbol] = name
            taken.append(position)
        return infos, tuple(taken), {name: size for size, name in dynamic_dims.items()}

    def _constant(self, node: fx.Node, given: Any) -> None:
        """Make a tensor the constant value of a node.

        If ONNX lacks the tensor's type, the node is recorded as not translatable.
        """
        if isinstance(given, torch.Tensor) and given.is_complex():
            real, imaginary = torch.view_as_real(given.detach().resolve_conj()).unbind(-1)
            self._values[node] = ComplexPair(self.tensor(real), self.tensor(imaginary))
        elif isinstance(given, torch.Tensor) and given.dtype in ELEMENT_TYPES:
            self._values[node] = self.tensor(given)
        else:
            kind = given.dtype if isinstance(given, torch.Tensor) else type(given).__name__
            self._refused[node] = f"a constant of {kind}"

    def _call(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            return self._part(node, *node.args)
        if not is_tensor_valued(node):
            return None  # a size: its users evaluate its expression
        rule, name = rules().get(node.target), operator_name(node.target)
        self._at = node.name
        try:
            if self._is_complex(node):
                rule = complex_rules().get(node.target)
            if rule is None:
                raise NotTranslatedError("it has no rule")
            return rule(self, node, *node.args, **node.kwargs)
        except NotTranslatedError as error:
            return self._refuse(node, f"{name}: {error}")
        except (
            Exception
        ) as error:  # a defect of the rule, not of the user's model: PyTorch can run the operator
            log.exception("the rule of %s failed on %s", name, node.format_node())
            said = f"its rule failed: {type(error).__name__}: {error}"
            return self._refuse(node, f"{name}: {said}")

    def _is_complex(self, node: fx.Node) -> bool:
        """Return whether an argument or result of a node is complex.

        Raises:
            NotTranslatedError: if ONNX lacks the type of an argument or result, or if a complex one
                occurs and the operator has no rule for complex numbers.
        """
        for each in node.all_input_nodes:
            if each.op != "call_function" and each in self._refused:
                raise NotTranslatedError(self._refused[each])
        found = False
        operands = [("an argument", each) for each in node.all_input_nodes]
        for role, each in (*operands, ("a result", node)):
            value = each.meta.get("val")
            for part in value if isinstance(value, tuple | list) else (value,):
                if not isinstance(part, torch.Tensor):
                    continue
                known = part_type(part.dtype) in ELEMENT_TYPES
                if not known or (part.is_complex() and node.target not in complex_rules()):
                    raise NotTranslatedError(f"{role} of {part.dtype}")
                found = found or part.is_complex()
        return found

    def _refuse(self, node: fx.Node, why: str) -> Any:
        """Record that a node cannot be translated, and return placeholder names for its values.

        The translation then continues, so that one error can report all such nodes.
        """
        self._refused[node] = why
        value = node.meta["val"]
        return (node.name,) * len(value) if isinstance(value, tuple | list) else node.name

    def _part(self, node: fx.Node, whole: Any, index: Any) -> str:
        """Return the name of one result of a node with several results.

        `node` is the `getitem` node that selects result `index` of the node `whole`.
        """
        found = self._values[whole]
        if isinstance(found, str):
            found = (found,)
        if index >= len(found):
            self._refuse(whole, f"{operator_name(whole.target)}: its result {index}")
            return str(node.name)
        part: str = found[index]
        return part

    def _outputs(
        self, given: Sequence[Any], names: Sequence[str] | None
    ) -> tuple[tuple[OutputSpec, ...], list[Any]]:
        specs: list[OutputSpec] = []
        infos: list[Any] = []

        def add(value: str, element_type: int, rank: int) -> int:
            number = len(infos)
            name = names[number] if names else f"output_{number}"
            self.nodes.append(helper.make_node("Identity", [value], [name]))
            dims = [f"{name}_{k}" for k in range(rank)]
            infos.append(helper.make_tensor_value_info(name, element_type, dims))
            return number

        for each in given:
            if not isinstance(each, fx.Node):
                specs.append(OutputSpec(given=each))
                continue
            value = each.meta["val"]
            if isinstance(value, torch.Tensor):
                kind = ELEMENT_TYPES.get(part_type(value.dtype))
                if kind is None:
                    raise NotTranslatedError(f"a result of {value.dtype}")
                if value.is_complex():
                    position = add(self.joined(self._values[each]), kind[0], value.ndim + 1)
                else:
                    position = add(self.value(each), kind[0], value.ndim)
                specs.append(OutputSpec.of(position, value))
            elif isinstance(known := expression(each), int):
                specs.append(OutputSpec(given=known))
            else:
                specs.append(OutputSpec(add(self._computed(known), TensorProto.INT64, 0)))
        if not infos:
            raise NotTranslatedError("a graph that returns no tensor")
        return tuple(specs), infos

    def _computed(self, size: sympy.Expr) -> str:
        """Emit the computation of a symbolic size, and return the name of its value, an int64 of
        rank 0.

        Raises:
            NotTranslatedError: if the size depends on data, or its expression has an unknown
                function.
        """
        if size in self._sizes:
            return self._sizes[size]
        if isinstance(size, sympy.Integer):
            return self.constant(int(size))
        if isinstance(size, sympy.Symbol):
            place = self._symbols.get(size)
            if place is None:
                raise NotTranslatedError(f"a size that depends on the data ({size})")
            if isinstance(place, str):
                found = place
            else:
                shape = self.op("Shape", place[0])
                found = self.op("Gather", shape, self.constant(place[1]), axis=0)
        elif isinstance(size, torch_sympy.FloorDiv):
            found = self._floor(*size.args)
        elif isinstance(size, torch_sympy.FloorToInt):
            found = self._floor(*quotient(size.args[0]))
        elif isinstance(size, torch_sympy.CeilToInt):
            above, below = quotient(size.args[0])
            found = self.op("Neg", self._floor(-above, below))
        elif (kind := _EXPRESSIONS.get(type(size))) is not None:
            first, *rest = (self._computed(argument) for argument in size.args)
            found = first
            for other in rest:
                found = kind(self, found, other)
        elif isinstance(size, sympy.Pow) and isinstance(size.exp, sympy.Integer) and size.exp > 0:
            base = found = self._computed(size.base)
            for _ in range(int(size.exp) - 1):
                found = self.op("Mul", found, base)
        else:
            raise NotTranslatedError(f"the size {size}")
        self._sizes[size] = found
        return found

    def _floor(self, size: sympy.Expr, by: sympy.Expr) -> str:
        """Emit the quotient `size / by` rounded down, as in `-(-n // 2)`.

        ONNX's integer division rounds towards zero, so negative values need a correction.
        """
        first, second = self._computed(size), self._computed(by)
        if any(bound_sympy(each, dict(self._ranges)).lower < 0 for each in (size, by)):
            first = self.op("Sub", first, self.op("Mod", first, second))
        return self.op("Div", first, second)


def _emits(kind: str) -> Callable[[Translator, str, str], str]:
    return lambda translator, left, right: translator.op(kind, left, right)


_EXPRESSIONS: Mapping[Any, Callable[[Translator, str, str], str]] = {
    sympy.Add: _emits("Add"),
    sympy.Mul: _emits("Mul"),
    torch_sympy.CleanDiv: _emits("Div"),
    torch_sympy.Mod: _emits("Mod"),
    torch_sympy.PythonMod: _emits("Mod"),
    torch_sympy.Max: _emits("Max"),
    torch_sympy.Min: _emits("Min"),
}


def used_as_tables(node: fx.Node) -> bool:
    """Return whether a weight is used only as the table of embedding lookups."""
    return bool(node.users) and all(
        user.target is torch.ops.aten.embedding.default and user.args[0] is node
        for user in node.users
    )
