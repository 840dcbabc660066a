"""Stages of models that are cut where the data decide a size (`compiler.frontend.stages`).

A stage is made when a run first needs it, or all that can be foreseen are made at once
(`compiler.specialise.enumerate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tilewright.compiler.errors import (
    CompilerError,
    InvalidInputError,
    InvalidModelError,
    OutOfMemoryError,
    enough_memory_for,
)
from tilewright.compiler.frontend.model_file import ReadModel, with_tensors
from tilewright.compiler.frontend.onnx_import import ModelImport, importing
from tilewright.compiler.frontend.stages import Rest, input_crossings
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.profile import agreeing_size
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import OpenPorts
from tilewright.compiler.runtime.stages import DataCut, DataStage, Facts, Reads
from tilewright.compiler.sizes import Dimension, OpenSizeError, dimensions, is_open
from tilewright.compiler.sizes.ranges import narrowed, turning_point

P = TypeVar("P")

Compile = Callable[[Graph, bool], P]
"""Compiles a graph. The second argument says whether each size has a program like this one, so that
they should have packed weights in common."""

PROGRAMS_LIMIT = 64
"""Programs that are kept behind one cut; the oldest gives way."""

ENDS_LIMIT = 8
"""A dimension's range is parted at so many sizes at most."""


@dataclass(slots=True, eq=False)
class RestCut(DataCut[P]):
    """A cut, with what is left of the model and what compiles it. The model itself has no `before`:
    nothing was computed for it yet."""

    rest: Rest | None = None
    compile: Compile[P] | None = None
    is_first: bool = False


class Stager(Generic[P]):
    """Makes the stages of one model.

    Args:
        compiling: gives what compiles the graphs of one cut.
    """

    def __init__(self, compiling: Callable[[], Compile[P]]) -> None:
        self._compiling = compiling

    def first(
        self, model: ReadModel, ports: OpenPorts, ranges: Mapping[str, Dimension]
    ) -> RestCut[P]:
        """A model as what is left of itself: its inputs are what it reads.

        Args:
            model: what was read of it.
            ports: its inputs and outputs, without the dimensions that the caller gives a size.
            ranges: the sizes that open dimensions may have, by name; those without one may have
                any.
        """
        source = with_tensors(model)
        crossings = input_crossings(source.proto.graph, ports)
        proto = type(source.proto)()
        proto.CopyFrom(source.proto)
        del proto.graph.input[:]
        rest = Rest(replace(source, proto=proto), Reads(crossings, ranges), "")
        return RestCut(rest.reads, rest=rest, compile=self._compiling(), is_first=True)

    def make(
        self, cut: DataCut[P], facts: Facts, values: Mapping[str, Array]
    ) -> DataStage[P] | None:
        """A new stage; None if none serves these ranges: there are new ends, or a reason.

        Raises:
            InvalidInputError: if the model contradicts itself for what the data decide.
            CompilerError: if the stage does not compile.
        """
        assert isinstance(cut, RestCut)
        try:
            stage = self._compiled(cut, facts, values)
        except OutOfMemoryError:
            raise
        except OpenSizeError as error:
            if not _part(cut, facts, error):
                cut.reason = str(error)
            return None
        except CompilerError as error:
            if facts.open:
                cut.reason = str(error)
                return None
            if isinstance(error, InvalidModelError) and not cut.is_first:
                raise InvalidInputError(f"for what the data decide, {error}") from error
            raise
        while len(cut.made) >= PROGRAMS_LIMIT:
            del cut.made[next(iter(cut.made))]
        cut.made[facts] = stage
        return stage

    def _compiled(self, cut: RestCut[P], facts: Facts, values: Mapping[str, Array]) -> DataStage[P]:
        rest, compile_ = cut.rest, cut.compile
        assert rest is not None and compile_ is not None
        model = rest.at(facts, values)
        before = None if cut.is_first else rest

        def stage(found: ModelImport) -> tuple[Graph | None, tuple[str, ...], Rest | None]:
            return found.stage(before)

        with enough_memory_for("to compile the model"):
            graph, makes, left = importing(model, {d.name: d for d in facts.open}, stage)
            program = None if graph is None else compile_(graph, bool(cut.reason))
            behind = None
            if left is not None:
                behind = RestCut(left.reads, rest=left, compile=self._compiling())
            return DataStage(program, makes, behind)


def _part(cut: RestCut[P], facts: Facts, error: OpenSizeError) -> bool:
    """Add ends to a cut where a question about its ranges has another answer; False if there are
    none."""
    added = False
    for name, end in _ends(cut, facts, error):
        ends = cut.ends.setdefault(name, [])
        if end not in ends and len(ends) < ENDS_LIMIT:
            ends.append(end)
            added = True
    return added


def _ends(cut: RestCut[P], facts: Facts, error: OpenSizeError) -> Iterator[tuple[str, int]]:
    """Where the answer to a question changes: dimensions, and the first size of each new part.

    What depends on several sizes together, such as a product that is to fit into 32 bits, has the
    same answer up to an end of all of them. Behind such ends it is asked again, and then each size
    has a program of its own: a first range that serves most runs is enough.
    """
    ranges = {d.name: d for d in facts.open}
    if point := turning_point(error.undecided):
        yield point[0].name, point[1]
    elif is_open(error.undecided) and not cut.made:
        for name, narrower in (narrowed(ranges, error) or {}).items():
            if narrower.high is not None and narrower.multiple == ranges[name].multiple == 1:
                yield name, narrower.high + 1
    elif len(dimensions(error.unequal)) == 1 and not error.may_differ:
        least = {name: max(d.low, 1) for name, d in ranges.items() if d.multiple == 1}
        name, size = agreeing_size(error, least) or ("", 0)
        if name in least:
            yield from ((name, end) for end in (size, size + 1) if end > least[name])
