from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import pytest
import typer

from tests.command_tree import COMMANDS
from tests.unit.service.tuners import model_bytes
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.memo import forget
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.builder import build_program
from tilewright.compiler.schedule import select
from tilewright.compiler.schedule import templates as schedule_templates
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.templates import contraction, templates
from tilewright.compiler.targets.host import host_target, resolve_target
from tilewright.service.api.planning_child import WorkloadsQuestion
from tilewright.service.api.schemas.jobs import JobRequest
from tilewright.service.api.schemas.lookups import LookupRequest
from tilewright.service.api.schemas.options import ModeRequest
from tilewright.service.cli.options import DEFAULTS, with_options
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.service.options import ModeOptions, UserOption, option_words

TARGET = resolve_target("x86-64-v3")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"numerics": "exact"}, "numerics is 'exact', expected fast, strict or loose"),
        ({"precision": "int8"}, "precision is 'int8', expected float32, bfloat16 or float16"),
        ({"threads": 0}, "expected 1 to 256 threads, got 0"),
    ],
)
def test_an_impossible_value_is_refused_when_the_mode_is_made(
    wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        Mode(TARGET, **wrong)
    with pytest.raises(InvalidArgumentError, match=said):
        replace(Mode(TARGET), **wrong)


def test_the_default_is_this_machine() -> None:
    assert Mode().target == host_target()


def test_a_record_key_holds_target_threads_and_numerics() -> None:
    mode = Mode(TARGET, 2, "strict", "bfloat16", in_place=False)
    assert mode.key == (TARGET.key, 2, "strict")


@pytest.mark.parametrize(
    "other",
    [
        {"target": resolve_target("x86-64-v4")},
        {"threads": 2},
        {"numerics": "loose"},
        {"precision": "float16"},
        {"in_place": False},
    ],
)
def test_modes_that_differ_have_different_json_that_reads_back(other: dict[str, Any]) -> None:
    mode = Mode(TARGET)
    assert set(mode.to_json()) == {"target", "threads", "numerics", "precision", "in_place"}
    changed = replace(mode, **other)
    assert changed.to_json() != mode.to_json()
    assert Mode.from_json(changed.to_json()) == changed


@dataclass(frozen=True, slots=True)
class Wider(Mode):
    """A mode with one more option."""

    unrolled: bool = False


def test_a_new_option_reaches_templates_and_caches_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From a job's options to the templates, and into the keys of caches: no code on the way names
    the fields of a mode."""
    offered, lowered = set[Mode](), set[Mode]()
    gemm = contraction.TEMPLATE

    def knobs(found: Any, mode: Mode) -> Any:
        offered.add(mode)
        return gemm.knobs(found, mode)

    def lower(found: Any, schedule: Schedule, mode: Mode) -> Any:
        lowered.add(mode)
        return gemm.lower(found, schedule, mode)

    recording = replace(gemm, knobs=knobs, lower=lower)
    every = tuple(recording if each is gemm else each for each in templates())
    for module in (select, schedule_templates):
        monkeypatch.setattr(module, "templates", lambda: every)
    forget()
    options = {"precision": "bfloat16", "unrolled": True}
    spec = JobSpec.of_options(ModelRequest(model_bytes(), Wider(TARGET)), options)
    planned = plan_model(spec.request)
    (task,) = tasks_of(planned)
    build_program(planned.plan, None, planned.mode)
    forget()
    wanted = Wider(TARGET, precision="bfloat16", unrolled=True)
    assert offered == lowered == {wanted}
    assert task.mode == spec.mode == planned.mode == wanted
    assert planned.mode.to_json() == {
        **Mode(TARGET, precision="bfloat16").to_json(),
        "unrolled": True,
    }
    assert Wider.from_json(planned.mode.to_json()) == wanted, "builders of candidates read it"
    asks = [WorkloadsQuestion("d", each, {}).key() for each in (wanted, spec.mode, Mode(TARGET))]
    assert asks[0] == asks[1] != asks[2]


@dataclass(frozen=True, slots=True)
class WiderOptions(ModeOptions):
    """The options of such a mode."""

    unrolled: Annotated[bool, UserOption("Unroll", "--unrolled")] = False


def test_a_new_option_reaches_a_command_by_itself() -> None:
    seen: list[Mode] = []

    def command(model: str, mode: WiderOptions = WiderOptions(), verbose: bool = False) -> None:
        assert (model, verbose) == ("m", True)
        seen.append(Wider(TARGET, **mode.to_json()))

    own = typer.Typer()
    own.command()(with_options(command))
    words = ["m", "--threads", "2", "--precision", "bfloat16", "--unrolled", "--verbose"]
    own(words, standalone_mode=False)
    assert seen == [Wider(TARGET, 2, precision="bfloat16", unrolled=True)]


def test_requests_and_command_lines_state_every_field_of_a_mode() -> None:
    stated = {each.name for each in fields(Mode)} - {"target", "in_place"}
    assert {each.name for each in fields(ModeOptions)} == ModeRequest.model_fields.keys() == stated
    mode = Mode(TARGET, 2, "strict", "bfloat16")
    given = {name: value for name, value in mode.to_json().items() if name in stated}
    bodies = (JobRequest(model="0" * 64, **given), LookupRequest(model="0" * 64, **given))
    assert [body.mode(TARGET) for body in bodies] == [mode, mode]
    assert DEFAULTS.mode(TARGET, in_place=False) == Mode(TARGET, in_place=False)
    assert option_words(ModeOptions.of(mode)) == [
        *("--threads", "2", "--numerics", "strict", "--precision", "bfloat16")
    ]


def test_a_command_that_states_a_part_of_a_mode_states_all_of_it() -> None:
    """Except `show graph`, which runs nothing, and `quantize`, which times its result."""
    stated = {f"--{each.name}" for each in fields(ModeOptions)}
    commands = {}
    for name, command in COMMANDS.items():
        found = {option for each in command.params for option in each.opts} & stated
        if found:
            commands[name] = found
    assert commands.pop("show graph") == stated - {"--threads"}
    assert commands.pop("quantize") == {"--threads"}
    assert len(commands) >= 8 and all(found == stated for found in commands.values()), commands
