"""Compilation on demand of a model's segments, which end where data determine a size.

`compiler.frontend.segments` divides the model. A segment is compiled when a run first needs it;
`compiler.specialise.enumerate` compiles segments ahead of time instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tilewright.compiler.errors import InvalidInputError, InvalidModelError, enough_memory_for
from tilewright.compiler.frontend.model_file import ReadModel, with_tensors
from tilewright.compiler.frontend.onnx_import import ModelImport, importing
from tilewright.compiler.frontend.segments import Continuation, input_live_ins
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import ModelPorts
from tilewright.compiler.runtime.segments import (
    LiveIns,
    ModelSegment,
    SegmentBoundary,
    SegmentGuard,
)
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.specialise.splits import make_segment

P = TypeVar("P")

Compile = Callable[[Graph, bool], P]
"""Compiles a graph. The second argument states whether each combination of sizes has its own
program. Such programs should share their packed weights."""


@dataclass(slots=True, eq=False)
class JitBoundary(SegmentBoundary[P]):
    """A point of a model at which a run selects the next segment, compiled on demand.

    A segment is a part of the model with its own program.

    Attributes:
        rest: the part of the model after the boundary.
        compile: compiles the graph of a segment.
        is_first: whether this is the start of the model, where no segment comes before.
    """

    rest: Continuation | None = None
    compile: Compile[P] | None = None
    is_first: bool = False


class SegmentCompiler(Generic[P]):
    """Compiles the segments of one model: the parts between boundaries where data determine sizes.

    Args:
        compiling: a function that is called once per boundary. It returns the function that
            compiles the segments after this boundary.
    """

    def __init__(self, compiling: Callable[[], Compile[P]]) -> None:
        self._compiling = compiling

    def first(
        self, model: ReadModel, ports: ModelPorts, ranges: Mapping[str, Dimension]
    ) -> JitBoundary[P]:
        """Return the boundary at the start of a model, whose inputs are the model's inputs.

        All segments of the model follow from this boundary: they are compiled when a run needs
        them.

        Args:
            model: the ONNX model as read.
            ports: the model's inputs and outputs, with numbers for dimensions whose size is fixed.
            ranges: the range of each dynamic dimension, by name; a dimension without one is
                unbounded.
        """
        source = with_tensors(model)
        crossings = input_live_ins(source.proto.graph, ports)
        proto = type(source.proto)()
        proto.CopyFrom(source.proto)
        del proto.graph.input[:]
        rest = Continuation(replace(source, proto=proto), LiveIns(crossings, ranges), "")
        return JitBoundary(rest.reads, rest=rest, compile=self._compiling(), is_first=True)

    def make(
        self, cut: SegmentBoundary[P], facts: SegmentGuard, values: Mapping[str, Array]
    ) -> ModelSegment[P] | None:
        """Compile a new segment (a part of the model), and add it to the boundary before it.

        A guard has the sizes and values of runs that a segment must serve. The result is None if no
        program serves all sizes of the guard. The boundary then has new sizes at which ranges are
        split, or a reason why each combination of sizes needs its own program (`cut.reason`). The
        caller tries again with a narrower guard: a part of the range, or the sizes of the run.

        Args:
            cut: the boundary before the segment.
            facts: the guard of the segment.
            values: the inputs of the segment in the run that needs it, by name; empty if no run
                does.

        Raises:
            InvalidInputError: if the model is invalid for values that the run has computed, such as
                a shape that does not match another.
            CompilerError: if the segment does not compile.
        """
        assert isinstance(cut, JitBoundary)
        exact = cut.reads.exact(values) if values else facts
        try:
            return make_segment(cut, facts, exact, lambda: self._compiled(cut, facts, values))
        except InvalidModelError as error:
            if cut.is_first:
                raise
            raise InvalidInputError(f"for the values that the data determine, {error}") from error

    def _compiled(
        self, cut: JitBoundary[P], facts: SegmentGuard, values: Mapping[str, Array]
    ) -> ModelSegment[P]:
        rest, compile_ = cut.rest, cut.compile
        assert rest is not None and compile_ is not None
        model = rest.at(facts, values)
        before = None if cut.is_first else rest

        def stage(found: ModelImport) -> tuple[Graph | None, tuple[str, ...], Continuation | None]:
            return found.stage(before)

        with enough_memory_for("to compile the model"):
            graph, makes, left = importing(model, {d.name: d for d in facts.open}, stage)
            program = None if graph is None else compile_(graph, bool(cut.reason))
            behind = None
            if left is not None:
                behind = JitBoundary(left.reads, rest=left, compile=self._compiling())
            return ModelSegment(program, makes, behind)
