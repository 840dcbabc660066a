"""The segments of a model in an artifact: JSON form, validation and loading.

A model that computes some sizes from data is divided into segments, each computed by a program. The
segments form a tree. Each `SegmentBoundary` has the segments that may follow it, and each segment
has the boundary that follows it. Programs are given by their index in the artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.codec import decode, encode
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.json_form import JsonForm, Via
from tilewright.compiler.runtime.kernel import Natural
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import ModelPorts
from tilewright.compiler.runtime.program import Port, Program
from tilewright.compiler.runtime.segments import (
    LiveIn,
    LiveIns,
    ModelSegment,
    SegmentBoundary,
    SegmentGuard,
)
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.sizes.ranges import parse_range

ValueKind = tuple[DType, int, bool]
"""The element type of a value, its rank, and whether it represents text."""


_Ranges = Annotated[
    tuple[Dimension, ...],
    Via(
        tuple[tuple[str, str], ...],
        lambda data, _: tuple(parse_range(name, text) for name, text in data),
        lambda dimensions: [(each.name, each.range_text) for each in dimensions],
    ),
]
_Hexadecimal = Annotated[bytes, Via(str, lambda text, _: bytes.fromhex(text), bytes.hex)]


@dataclass(frozen=True, slots=True)
class _StoredSegment:
    """The JSON form of a segment (a part of a model with its own program) and its guard.

    A guard is the condition on sizes and values under which a run may use the segment. `sizes`,
    `known` and `open` are the fields of the guard (`SegmentGuard`). The other fields are those of
    the segment (`ModelSegment`).
    """

    sizes: tuple[tuple[str, int], ...]
    known: tuple[tuple[str, _Hexadecimal, tuple[Natural, ...]], ...]
    open: _Ranges
    program: Natural | None
    makes: tuple[str, ...]
    behind: _StoredBoundary | None


@dataclass(frozen=True, slots=True)
class _StoredBoundary:
    """The JSON form of a `SegmentBoundary` with all segments that may follow it."""

    json_form: ClassVar[JsonForm] = JsonForm("stages")

    reads: tuple[LiveIn, ...]
    ranges: _Ranges
    ends: Mapping[str, tuple[Natural, ...]]
    reason: str
    stages: tuple[_StoredSegment, ...]


def segments_to_json(cut: SegmentBoundary[int]) -> dict[str, Any]:
    """Convert the segments of a model to JSON data.

    A model that computes some sizes from data is divided into segments, each with a program. At
    each boundary between segments, a run selects the next segment. `cut` is the boundary before the
    first segment. `segments_from_json` reads the result.
    """
    written: dict[str, Any] = encode(_stored(cut))
    return written


def _stored(cut: SegmentBoundary[int]) -> _StoredBoundary:
    stages = tuple(
        _StoredSegment(
            facts.sizes,
            facts.known,
            facts.open,
            stage.program,
            stage.makes,
            None if stage.behind is None else _stored(stage.behind),
        )
        for facts, stage in cut.made.items()
    )
    ends = {name: tuple(found) for name, found in cut.ends.items()}
    ranges = tuple(cut.reads.ranges.values())
    return _StoredBoundary(cut.reads.crossings, ranges, ends, cut.reason, stages)


def segments_from_json(data: object) -> SegmentBoundary[int]:
    """Convert the output of `segments_to_json` back to a tree of segments.

    Raises:
        ValueError: if a field is malformed; the message names it.
    """
    return _cut(decode(_StoredBoundary, data))


def _cut(stored: _StoredBoundary) -> SegmentBoundary[int]:
    reads = LiveIns(stored.reads, {each.name: each for each in stored.ranges})
    ends = {name: list(found) for name, found in stored.ends.items()}
    made = {
        SegmentGuard(each.sizes, each.known, each.open): ModelSegment(
            each.program, each.makes, None if each.behind is None else _cut(each.behind)
        )
        for each in stored.stages
    }
    return SegmentBoundary(reads, ends=ends, made=made, reason=stored.reason)


def check_segments(
    first: SegmentBoundary[int], programs: Sequence[Program], ports: ModelPorts
) -> None:
    """Check that each path through a tree of segments computes every value that is read later.

    A segment is a part of a model with its own program. A path must also compute all outputs of the
    model.

    Args:
        first: the boundary before the first node of the model.
        programs: the programs of the artifact, to which the segments refer by index.
        ports: the inputs and outputs of the model.

    Raises:
        ValueError: if a value is missing, or its type differs from the expected one.
    """
    stated = {crossing.name: crossing.dims for crossing in first.reads.crossings}
    if list(stated) != list(ports.inputs) or stated != dict(ports.inputs):
        raise ValueError("the first stage reads something else than the inputs")
    inputs = {c.name: (c.dtype, len(c.dims), c.text) for c in first.reads.crossings}
    _check_cut(first, inputs, programs, tuple(ports.outputs))


def _check_cut(
    cut: SegmentBoundary[int],
    known: Mapping[str, ValueKind | None],
    programs: Sequence[Program],
    outputs: Sequence[str],
) -> None:
    if len({crossing.name for crossing in cut.reads.crossings}) < len(cut.reads.crossings):
        raise ValueError("a value is read twice behind one cut")
    labels = [crossing.label for crossing in cut.reads.crossings if crossing.deciding]
    if len(set(labels)) < len(labels):
        raise ValueError("two values that decide sizes have one label")
    for crossing in cut.reads.crossings:
        kind = crossing.dtype, len(crossing.dims), crossing.text
        if crossing.name not in known:
            raise ValueError(f"nothing makes '{crossing.name}', which is read behind a cut")
        if known[crossing.name] != kind:
            raise ValueError(
                f"'{crossing.name}' is made as {_kind_text(known[crossing.name])}, and read as "
                f"{_kind_text(kind)}"
            )
    if not cut.made:
        raise ValueError("a cut has no stage behind it")
    for facts, stage in cut.made.items():
        made = dict(known)
        if stage.program is not None:
            if stage.program >= len(programs):
                raise ValueError(f"a stage names program {stage.program} of {len(programs)}")
            program = programs[stage.program]
            _check_inputs(program, cut.reads, facts)
            results = program.results
            if len(stage.makes) != len(results):
                raise ValueError(
                    f"a stage makes {len(stage.makes)} values, and its program {len(results)}"
                )
            for name, result in zip(stage.makes, results, strict=True):
                made[name] = None if result.is_list else _kind(program.outputs[result.places[0]])
        elif stage.makes:
            raise ValueError("a stage without a program makes values")
        if stage.behind is not None:
            _check_cut(stage.behind, made, programs, outputs)
            continue
        for name in outputs:
            if name not in made:
                raise ValueError(f"a way through the stages does not make output '{name}'")


def _check_inputs(program: Program, reads: LiveIns, facts: SegmentGuard) -> None:
    """Raise ValueError if a program needs an input that is not computed before it.

    A model is divided into parts at boundaries, and the program computes one part. Each input of
    the program must be a value of `reads`, with the same element type and rank.

    Args:
        program: the program.
        reads: the values that are available at the boundary before the program.
        facts: the guard of the program: the condition under which a run may use it.
    """
    names = [dimension.name for dimension in facts.open]
    given: dict[str, ValueKind] = {}
    for crossing in reads.crossings:
        if not crossing.deciding:
            given[crossing.name] = crossing.dtype, len(crossing.dims), crossing.text
        elif opened := sum(name.startswith(f"{crossing.label}_") for name in names):
            given[crossing.sizes_input] = DType.INT8, opened + 1, False
    for port in program.inputs:
        if port.name not in given:
            raise ValueError(f"a stage's program reads '{port.name}', which its cut does not")
        if given[port.name] != _kind(port):
            raise ValueError(
                f"'{port.name}' is read as {_kind_text(given[port.name])}, and a program takes "
                f"{_kind_text(_kind(port))}"
            )


def _kind(port: Port) -> ValueKind:
    return port.dtype, len(port.shape), port.labels is not None


def _kind_text(kind: ValueKind | None) -> str:
    if kind is None:
        return "a list"
    dtype, rank, text = kind
    return f"{'text' if text else dtype} of {rank} dimensions"


@dataclass(slots=True, eq=False)
class _LoadedBoundary(SegmentBoundary[Executable]):
    """A boundary between parts of a model that was loaded from an artifact.

    It stores the segments that may follow. A segment is a part of the model with its own program.
    The program is loaded on first use. `listed` has the artifact's segments by guard, the condition
    under which a run may use the segment.
    """

    listed: Mapping[SegmentGuard, ModelSegment[int]] = field(default_factory=dict)

    @staticmethod
    def of(cut: SegmentBoundary[int]) -> _LoadedBoundary:
        return _LoadedBoundary(
            cut.reads, cut.ends, reason=cut.reason, served=tuple(cut.made), listed=cut.made
        )


def load_segments(
    first: SegmentBoundary[int], ports: ModelPorts, load: Callable[[int], Executable]
) -> GuardedModel:
    """Return a model whose programs are loaded from an artifact on first use.

    The model computes some sizes from data, so that a run uses several programs in order. The
    programs form a tree: each boundary has the programs that may follow it.

    Args:
        first: the boundary at the start of the model, the root of the tree.
        ports: the inputs and outputs of the model.
        load: a function that loads a program, given its index in the artifact.
    """

    def make(
        cut: SegmentBoundary[Executable], facts: SegmentGuard, values: Mapping[str, Array]
    ) -> ModelSegment[Executable]:
        assert isinstance(cut, _LoadedBoundary)
        found = cut.listed[facts]
        program = None if found.program is None else load(found.program)
        behind = None if found.behind is None else _LoadedBoundary.of(found.behind)
        stage = cut.made[facts] = ModelSegment(program, found.makes, behind)
        return stage

    return GuardedModel(ports, _LoadedBoundary.of(first), make)
