"""Stages in artifacts: which program runs behind which cut, as JSON, checked, and loaded.

A tree of cuts, whose programs are the numbers of those in the artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import OpenPorts
from tilewright.compiler.runtime.program import Port, Program
from tilewright.compiler.runtime.stages import (
    Crossing,
    DataCut,
    DataStage,
    Facts,
    Reads,
    StagedExecutable,
)
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.sizes.ranges import parse_range

ValueKind = tuple[DType, int, bool]
"""Of a value: its type, its rank, and whether it is text."""


def stages_to_json(cut: DataCut[int]) -> dict[str, Any]:
    """What `stages_from_json` reads."""
    return {
        "reads": [
            {
                "name": c.name,
                "label": c.label,
                "dtype": c.dtype.value,
                "dims": list(c.dims),
                "deciding": c.deciding,
                "text": c.text,
            }
            for c in cut.reads.crossings
        ],
        "ranges": _ranges_to_json(tuple(cut.reads.ranges.values())),
        "ends": dict(cut.ends),
        "reason": cut.reason,
        "stages": [
            {
                "sizes": [list(pair) for pair in facts.sizes],
                "known": [[name, data.hex(), list(shape)] for name, data, shape in facts.known],
                "open": _ranges_to_json(facts.open),
                "program": stage.program,
                "makes": list(stage.makes),
                "behind": None if stage.behind is None else stages_to_json(stage.behind),
            }
            for facts, stage in cut.made.items()
        ],
    }


def stages_from_json(data: Mapping[str, Any]) -> DataCut[int]:
    """Read what `stages_to_json` gives; whatever malformed data raise comes through."""
    crossings = tuple(
        Crossing(
            str(each["name"]),
            str(each["label"]),
            DType(each["dtype"]),
            tuple(dim if isinstance(dim, str) else _number(dim) for dim in each["dims"]),
            bool(each["deciding"]),
            bool(each["text"]),
        )
        for each in data["reads"]
    )
    ranges = {d.name: d for d in _ranges_from_json(data["ranges"])}
    ends = {str(name): [_number(end) for end in found] for name, found in data["ends"].items()}
    cut = DataCut[int](Reads(crossings, ranges), ends, reason=str(data["reason"]))
    for each in data["stages"]:
        facts = Facts(
            tuple((str(name), _integer(size)) for name, size in each["sizes"]),
            tuple(
                (str(name), bytes.fromhex(found), tuple(_number(n) for n in shape))
                for name, found, shape in each["known"]
            ),
            _ranges_from_json(each["open"]),
        )
        behind = None if each["behind"] is None else stages_from_json(each["behind"])
        program = None if each["program"] is None else _number(each["program"])
        cut.made[facts] = DataStage(program, tuple(map(str, each["makes"])), behind)
    return cut


def _integer(value: Any) -> int:
    """What the data decide may be any integer, also one that is no size."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is no integer")
    return value


def _number(value: Any) -> int:
    if _integer(value) < 0:
        raise ValueError(f"{value!r} is no size and no number of a program")
    return int(value)


def _ranges_to_json(dimensions: Sequence[Dimension]) -> list[list[str]]:
    return [[dimension.name, dimension.range_text] for dimension in dimensions]


def _ranges_from_json(data: Sequence[Sequence[str]]) -> tuple[Dimension, ...]:
    return tuple(parse_range(str(name), text) for name, text in data)


def check_stages(first: DataCut[int], programs: Sequence[Program], ports: OpenPorts) -> None:
    """Check that every way through the stages makes what is read, and all outputs at its end.

    Raises:
        ValueError: naming what does not fit.
    """
    stated = {crossing.name: crossing.dims for crossing in first.reads.crossings}
    if list(stated) != list(ports.inputs) or stated != dict(ports.inputs):
        raise ValueError("the first stage reads something else than the inputs")
    inputs = {c.name: (c.dtype, len(c.dims), c.text) for c in first.reads.crossings}
    _check_cut(first, inputs, programs, tuple(ports.outputs))


def _check_cut(
    cut: DataCut[int],
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


def _check_inputs(program: Program, reads: Reads, facts: Facts) -> None:
    """Raises ValueError unless a program takes no more than what is read behind its cut."""
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
class _LoadedCut(DataCut[Executable]):
    """A cut whose programs load when a run first needs them."""

    listed: Mapping[Facts, DataStage[int]] = field(default_factory=dict)


def load_stages(
    first: DataCut[int], ports: OpenPorts, load: Callable[[int], Executable]
) -> StagedExecutable:
    """The stages as an executable; `load` gives a program by its number."""

    def loaded(cut: DataCut[int]) -> _LoadedCut:
        return _LoadedCut(cut.reads, cut.ends, reason=cut.reason, listed=cut.made)

    def make(
        cut: DataCut[Executable], facts: Facts, values: Mapping[str, Array]
    ) -> DataStage[Executable]:
        assert isinstance(cut, _LoadedCut)
        found = cut.listed.get(facts)
        if found is None:
            raise InvalidInputError(
                f"the artifact has no program for what the data decide: {facts.text}"
            )
        program = None if found.program is None else load(found.program)
        behind = None if found.behind is None else loaded(found.behind)
        stage = cut.made[facts] = DataStage(program, found.makes, behind)
        return stage

    return StagedExecutable(ports, loaded(first), make)
