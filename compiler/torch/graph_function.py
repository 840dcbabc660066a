"""A graph of PyTorch as a function of tensors that runs a compiled model.

The weights are constants of the model. It is compiled when the function is first called, with the
tensors that are given then, and again for other tensors in their places (a layer that a network has
many times), or after they were written to.
"""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from compiler.errors import CompilerError, ModelWarning
from compiler.kept_models import KeptModels, own_folder
from compiler.torch.element_types import as_numpy
from compiler.torch.options import BackendOptions
from compiler.torch.positions import are_within
from compiler.torch.symbolic import NotTranslatedError
from compiler.torch.translation import Translated, translate, used_as_tables
from compiler.torch.views import split_views

if TYPE_CHECKING:
    from compiler.kept_models import Compiled
    from compiler.options import CompileOptions

log = logging.getLogger("tilewright.torch")

ALIGNMENT = 64
"""Where inputs are read without a copy."""

MOST_PROGRAMS = 64
"""With different weights; the one used longest ago goes first."""

MOST_CHANGES = 8
"""How often weights may be written to before it is no longer worth compiling them in."""


@dataclass(slots=True)
class _Program:
    """A compiled model, and the weights that it was compiled with.

    Attributes:
        weights: the position of each with a reference, its address and its count of changes.
    """

    compiled: Compiled
    translated: Translated
    weights: tuple[tuple[int, Any, int, int], ...]

    def has(self, arguments: list[Any]) -> bool:
        """Whether these are the weights, as they were then."""
        for position, tensor, address, version in self.weights:
            given = arguments[position]
            same = tensor() is given and given._version == version
            if not same or given.data_ptr() != address:
                return False
        return True

    def serves(self, arguments: list[Any]) -> bool:
        """Whether positions among the arguments are such as PyTorch takes."""
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


class GraphFunction:
    """What dynamo calls for a graph: a list of tensors and numbers -> a list of them.

    Runs the graph as PyTorch does, operator by operator, if it cannot be compiled; a warning names
    the operator then. May be called from several threads at once.

    Args:
        graph: of ATen operators, in which no value is written to.
        weights: the positions of arguments that rarely change.
        ranges: bounds of PyTorch's symbols.
        options: how it is compiled.
    """

    _boxed_call = True  # dynamo hands over a list, which is emptied to free what is in it

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
        self._lock = threading.RLock()
        nodes = [] if self._computing is None else self._computing.find_nodes(op="placeholder")
        self._tables = {p for p, node in enumerate(nodes) if p in weights and used_as_tables(node)}

    @property
    def is_compiled(self) -> bool:
        """Whether the last call ran a compiled model."""
        return self._current is not None and not self._eager

    def __call__(self, given: list[Any]) -> Any:
        arguments = list(given)
        given.clear()
        if self._computing is None:
            return self._graph(*arguments)
        program = self._current
        if program is None or self._eager or not program.has(arguments):
            program = self._found(arguments)
        if program is None or not program.serves(arguments):
            return self._graph(*arguments)
        try:
            found = program.run(arguments)
            return found if self._views is None else self._views(*arguments, *found)
        except Exception as error:  # noqa: BLE001 - what PyTorch can run is no error of the caller
            self._give_up(error)
            return self._graph(*arguments)

    def _found(self, arguments: list[Any]) -> _Program | None:
        """The program for these weights, compiled if it must be; None if PyTorch runs them."""
        with self._lock:
            if self._eager:
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
            keep = own_folder() if self._options.keep else None
            tuned = self._tuned_before(translated, options)
            compiled = tuned or KeptModels(keep).compile(translated.model, options)
        except Exception as error:  # noqa: BLE001 - see above
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

    def _give_up(self, error: Exception) -> None:
        """Leave the graph to PyTorch from now on, and say why; of a defect the log says where."""
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
        """Whether a weight is compiled in. One that is looked up in is read where it lies, and so
        is one that does not count how often it is written to."""
        if weight.is_inference():
            return False
        is_read_in_place = weight.is_contiguous() and weight.data_ptr() % ALIGNMENT == 0
        return not (position in self._tables and is_read_in_place)

    def _tuned_before(self, translated: Translated, options: CompileOptions) -> Compiled | None:
        """What the tuner has kept of this model, if it keeps anything."""
        kept = getattr(self._options.tuner, "kept", None)
        if kept is None or not self._options.keep:
            return None
        found: Compiled | None = kept(translated.model, options)
        return found

    def _tuned(self, program: _Program) -> None:
        """Tune a program's model, and let what comes of it serve."""
        assert self._options.tuner is not None
        options = self._options.compile_options(program.translated.ranges)
        tuned = self._options.tuner(program.translated.model, options)
        if tuned is not None:
            program.compiled = tuned


def _check_tensor(given: Any) -> None:
    """Raises NotTranslatedError for a tensor that is no block of numbers on the CPU."""
    if not isinstance(given, torch.Tensor):
        return
    if type(given) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise NotTranslatedError(f"an argument is a {type(given).__name__}")
    if given.device.type != "cpu" or given.layout is not torch.strided:
        raise NotTranslatedError(f"an argument is on {given.device}, {given.layout}")
