"""The function that `torch.compile` calls in place of a captured graph; it runs a compiled model.

Weights are constants of the model. The first call compiles the graph with the weights of that call.
A later call compiles the graph again if it passes other weight tensors (as for a layer that a
network repeats), or if weights were modified in place. Operators that cannot be compiled run in
PyTorch, and the parts of the graph between them are compiled.
"""

from __future__ import annotations

import logging
import re
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from tilewright.compiler.bindings.torch.element_types import as_numpy
from tilewright.compiler.bindings.torch.options import BackendOptions
from tilewright.compiler.bindings.torch.positions import are_within
from tilewright.compiler.bindings.torch.subgraphs import split_graph
from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError
from tilewright.compiler.bindings.torch.translation import (
    Translated,
    operator_name,
    translate,
    used_as_tables,
)
from tilewright.compiler.bindings.torch.views import split_views
from tilewright.compiler.errors import CompilerError, ModelWarning
from tilewright.compiler.specialise.store import CompilationCache, user_cache_folder

if TYPE_CHECKING:
    from tilewright.compiler.options import CompileOptions
    from tilewright.compiler.runtime.model import Model

log = logging.getLogger("tilewright.torch")

ALIGNMENT = 64
"""Minimum alignment, in bytes, of an input that is read without a copy."""

MOST_PROGRAMS = 64
"""Maximum number of compiled programs per graph, which differ in their weights. Beyond it, the
least recently used program is evicted."""

MOST_CHANGES = 8
"""Maximum number of recompilations after in-place writes to a graph's weights. After more of them,
PyTorch runs the graph."""


MOST_NAMED = 3
"""Maximum number of unsupported operators that a warning lists by name."""

_NODE_NAME = re.compile(r"'([^'./]+)(?:\.\d+)?[/']")
"""The name of a node in a message of the compiler: '`name`', '`name`.2', '`name`/inner'."""


@dataclass(slots=True)
class _Program:
    """A compiled model, and the weights that are compiled into it as constants.

    Attributes:
        compiled: the model.
        translated: the ONNX model from which it was compiled.
        weights: for each weight, its position among the arguments, a weak reference to the tensor,
            its address, and its version counter at compilation.
    """

    compiled: Model
    translated: Translated
    weights: tuple[tuple[int, Any, int, int], ...]

    def has(self, arguments: list[Any]) -> bool:
        """Return whether a call passes this program's weight tensors, unmodified since compilation.

        `arguments` are all arguments of the call; only the weights among them are compared.
        """
        for position, tensor, address, version in self.weights:
            given = arguments[position]
            same = tensor() is given and given._version == version
            if not same or given.data_ptr() != address:
                return False
        return True

    def serves(self, arguments: list[Any]) -> bool:
        """Return whether no argument has an index out of bounds, so that this program may run.

        `arguments` are all arguments of the call; only tensors whose elements are used as indices
        are checked. If the result is false, PyTorch runs the graph.
        """
        return all(
            are_within(arguments[place], bounds)
            for place, bounds in self.translated.positions.items()
        )

    def run(self, arguments: list[Any]) -> list[Any]:
        arrays = []
        for position in self.translated.inputs:
            given = arguments[position]
            tensor = isinstance(given, torch.Tensor)
            arrays.append(as_numpy(given) if tensor else np.array(given, np.int64))
        found = self.compiled.run(arrays)
        return [spec.taken(found) for spec in self.translated.outputs]


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a graph that runs in several parts, by PyTorch or by a compiled program.

    Attributes:
        run: a function that runs the step. It takes the values of the nodes `inputs` as a list, and
            returns the values of the nodes `outputs`.
        inputs: the nodes whose values the step reads.
        outputs: the nodes whose values the step computes.
    """

    run: Callable[[list[Any]], Sequence[Any]]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


class _Pieces:
    """Callable that runs a graph step by step, partly in PyTorch and partly compiled.

    A value is freed after the last step that reads it.
    """

    def __init__(self, graph: fx.Graph, steps: Sequence[_Step]) -> None:
        (output,) = graph.find_nodes(op="output")
        self._arguments = graph.find_nodes(op="placeholder")
        self._steps = steps
        self._results: list[Any] = output.args[0]
        last = {node: number for number, step in enumerate(steps) for node in step.inputs}
        kept = {node for node in self._results if isinstance(node, fx.Node)}
        self._freed = [
            [node for node in step.inputs if last[node] == number and node not in kept]
            for number, step in enumerate(steps)
        ]

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        known = dict(zip(self._arguments, arguments, strict=True))
        for step, freed in zip(self._steps, self._freed, strict=True):
            given = [known[node] for node in step.inputs]
            for node in freed:
                del known[node]
            known.update(zip(step.outputs, step.run(given), strict=True))
        return [known[each] if isinstance(each, fx.Node) else each for each in self._results]


def _run_by_pytorch(module: fx.GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    return lambda given: module(*given)


class GraphFunction:
    """The function that dynamo calls for a captured graph, with a list of tensors and numbers.

    It returns the graph's results as a list. Operators that cannot be compiled run in PyTorch, and
    a warning names them; the other parts of the graph are compiled. Several threads may call the
    function at the same time.

    Args:
        graph: a graph of ATen operators without in-place operators.
        weights: the positions of the arguments that are weights. Most weights become constants of
            the model.
        ranges: bounds of PyTorch's symbolic sizes.
        options: options of the backend, such as threads and precision.
    """

    _boxed_call = True  # dynamo passes a list, which is emptied to free its items

    def __init__(
        self,
        graph: fx.GraphModule,
        weights: Collection[int],
        ranges: Mapping[Any, Any],
        options: BackendOptions,
    ) -> None:
        self._graph = graph
        self._computing, self._views = split_views(graph)
        self._weights = frozenset(weights)
        self._ranges = dict(ranges)
        self._options = options
        self._programs: OrderedDict[tuple[int, ...], _Program] = OrderedDict()
        self._current: _Program | None = None
        self._changes = 0
        self._eager = False
        self._pieces: _Pieces | None = None
        self._lock = threading.RLock()
        nodes = [] if self._computing is None else self._computing.find_nodes(op="placeholder")
        self._constants = {node for p, node in enumerate(nodes) if p in self._weights}
        self._tables = {
            p for p, node in enumerate(nodes) if node in self._constants and used_as_tables(node)
        }

    @property
    def computes(self) -> bool:
        """Whether the graph computes values; false if it only creates views of its arguments."""
        return self._computing is not None

    def __call__(self, given: list[Any]) -> Any:
        arguments = list(given)
        given.clear()
        if self._computing is None:
            return self._graph(*arguments)
        program = self._current
        if program is None or self._eager or not program.has(arguments):
            program = self._found(arguments)
        if self._pieces is not None:
            found = self._pieces(arguments)
            return found if self._views is None else self._views(*arguments, *found)
        if program is None or not program.serves(arguments):
            return self._graph(*arguments)
        try:
            found = program.run(arguments)
            return found if self._views is None else self._views(*arguments, *found)
        except Exception as error:  # noqa: BLE001 - PyTorch can still run the graph: a warning suffices
            self._give_up(error)
            return self._graph(*arguments)

    def _found(self, arguments: list[Any]) -> _Program | None:
        """Return the compiled program for the weights in `arguments`; compile it if necessary.

        Return None if PyTorch must run the graph, or at least those of its operators that cannot be
        compiled.
        """
        with self._lock:
            if self._eager or self._pieces is not None:
                return None
            weights = {p: arguments[p] for p in sorted(self._weights)}
            key = tuple(map(id, weights.values()))
            program = self._programs.get(key)
            if program is None or not program.has(arguments):
                self._changes += program is not None
                program = self._made(weights, arguments)
                if program is None:
                    return None
                self._programs[key] = program
                if len(self._programs) > MOST_PROGRAMS:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
            self._current = program
            return program

    def _made(self, weights: Mapping[int, torch.Tensor], arguments: list[Any]) -> _Program | None:
        try:
            if self._changes > MOST_CHANGES:
                raise NotTranslatedError(f"its weights were written to {self._changes} times")
            for each in arguments:
                _check_tensor(each)
            constants = {p: each for p, each in weights.items() if self._is_constant(p, each)}
            translated = translate(
                self._computing,
                constants,
                lambda name: getattr(self._graph, name),
                ranges=self._ranges,
            )
            options = self._options.compile_options(translated.ranges)
            keep = user_cache_folder() if self._options.keep else None
            tuned = self._tuned_before(translated, options)
            compiled = tuned or CompilationCache(keep).compile(translated.model, options)
        except Exception as error:  # noqa: BLE001 - see above
            if not self._cut_around(self._refused(error)):
                self._give_up(error)
            return None
        known = tuple(
            (p, weakref.ref(each), each.data_ptr(), each._version) for p, each in constants.items()
        )
        program = _Program(compiled, translated, known)
        if self._options.tuner is not None and tuned is None:
            threading.Thread(
                target=self._tuned, args=(program,), name="tilewright-tuner", daemon=True
            ).start()
        return program

    def _refused(self, error: Exception) -> Mapping[fx.Node, str]:
        """Return the nodes that an error names as not supported, with the reasons."""
        if isinstance(error, NotTranslatedError):
            return error.refused
        if self._computing is None or not isinstance(error, CompilerError):
            return {}
        nodes = {node.name: node for node in self._computing.nodes if node.op == "call_function"}
        named = [nodes[name] for name in _NODE_NAME.findall(str(error)) if name in nodes]
        return {node: f"{operator_name(node.target)}: {error}" for node in named[:1]}

    def _cut_around(self, refused: Mapping[fx.Node, str]) -> bool:
        """Run the nodes in `refused` by PyTorch from now on, and compile the graph's other parts.

        Return false, and change nothing, if no compiled part would compute anything.
        """
        if not refused or self._computing is None:
            return False
        steps: list[_Step] = []
        for piece in split_graph(self._graph, self._computing, refused, self._constants):
            function: Callable[[list[Any]], Sequence[Any]] = _run_by_pytorch(piece.module)
            if not piece.is_refused:
                weights = [k for k, each in enumerate(piece.inputs) if each in self._constants]
                function = GraphFunction(piece.module, weights, self._ranges, self._options)
            steps.append(_Step(function, piece.inputs, piece.outputs))
        if not any(isinstance(each.run, GraphFunction) and each.run.computes for each in steps):
            return False
        self._pieces = _Pieces(self._computing, steps)
        operators = {node: why for node, why in refused.items() if node.op == "call_function"}
        reasons = list(dict.fromkeys(operators.values()))
        if not reasons:  # no node computes with the arguments that the compiler does not support
            return True
        others = f" (and {len(reasons) - MOST_NAMED} others)" if len(reasons) > MOST_NAMED else ""
        warnings.warn(
            "operators of a graph run in PyTorch's eager mode, since they cannot be compiled; the "
            f"rest of it is compiled: {'; '.join(reasons[:MOST_NAMED])}{others}",
            ModelWarning,
            stacklevel=2,
        )
        return True

    def _give_up(self, error: Exception) -> None:
        """Run the whole graph in PyTorch from now on, and warn with the reason.

        If the error is not a `CompilerError`, it is a defect, and its traceback is logged.
        """
        with self._lock:
            self._eager = True
            self._current = None
            self._programs.clear()
        why = str(error)
        if not isinstance(error, CompilerError):
            log.error("a graph failed", exc_info=error)
            why = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"a graph runs in PyTorch's eager mode, since it cannot be compiled: {why}",
            ModelWarning,
            stacklevel=2,
        )

    def _is_constant(self, position: int, weight: torch.Tensor) -> bool:
        """Return whether a weight becomes a constant of the compiled model.

        Other weights become inputs of the model, which each call passes. There are two kinds:

        - Embedding tables that are contiguous and aligned. A program can read them in place.
        - Inference tensors. They have no version counter, so a modification would not be noticed.
        """
        if weight.is_inference():
            return False
        is_read_in_place = weight.is_contiguous() and weight.data_ptr() % ALIGNMENT == 0
        return not (position in self._tables and is_read_in_place)

    def _tuned_before(self, translated: Translated, options: CompileOptions) -> Model | None:
        """Return the tuned model that the tuner stored in an earlier process, or None."""
        kept = getattr(self._options.tuner, "kept", None)
        if kept is None or not self._options.keep:
            return None
        found: Model | None = kept(translated.model, options)
        return found

    def _tuned(self, program: _Program) -> None:
        """Tune a program's model, and replace the untuned model when the tuner returns a result."""
        assert self._options.tuner is not None
        options = self._options.compile_options(program.translated.ranges)
        tuned = self._options.tuner(program.translated.model, options)
        if tuned is not None:
            program.compiled = tuned


def _check_tensor(given: Any) -> None:
    """Check that a tensor argument is a plain dense tensor in the CPU's memory.

    Raises:
        NotTranslatedError: if it is not.
    """
    if not isinstance(given, torch.Tensor):
        return
    if type(given) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise NotTranslatedError(f"an argument is a {type(given).__name__}")
    if given.device.type != "cpu" or given.layout is not torch.strided:
        raise NotTranslatedError(f"an argument is on {given.device}, {given.layout}")
