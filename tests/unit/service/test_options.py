"""The options of a job are defined in one file, from which everything else is generated."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tilewright.service.api.schemas.jobs import JobRequest
from tilewright.service.cli import run
from tilewright.service.option_texts import OptionError
from tilewright.service.options import (
    JobOptions,
    ModeOptions,
    QueueOptions,
    checked,
    option_fields,
    option_words,
    stated_words,
)

ADDED = """\
import importlib.util, sys
from pathlib import Path

# `service.options` with one more field, before anything imports it
name = "tilewright.service.options"
spec = importlib.util.find_spec(name)
text, place = Path(spec.origin).read_text(), "    unconstrained: Annotated["
assert text.count(place) == 1
option = 'UserOption("Sign of the job", "--horoscope")'
field = f"    horoscope: Annotated[int, Between(0, 12), {option}] = 3\\n"
sys.modules[name] = module = importlib.util.module_from_spec(spec)
exec(compile(text.replace(place, field + place), spec.origin, "exec"), module.__dict__)

from tests.command_tree import COMMANDS
from pydantic import ValidationError
from tilewright.service.api.schemas.jobs import JobRequest, JobView
from tilewright.service.cli import run
from tilewright.service.dashboard.commands import job_commands
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan.planning import ModelRequest

for words in ("tune", "job submit"):
    (found,) = [each for each in COMMANDS[words].params if "--horoscope" in each.opts]
    assert (found.help, found.default) == ("Sign of the job", 3)
    assert run([*words.split(), "nothing.onnx", "--horoscope", "13"]) == 2, "wrong usage"
    assert run([*words.split(), "nothing.onnx", "--horoscope", "12"]) == 1, "no such file"

assert JobRequest.model_json_schema()["properties"]["horoscope"] == {
    "title": "Horoscope", "description": "Sign of the job", "type": "integer",
    "default": 3, "minimum": 0, "maximum": 12,
}
try:
    JobRequest(model="0" * 64, horoscope=13)
except ValidationError:
    pass
else:
    raise AssertionError("13 is outside the bounds")

stored = JobRequest(model="0" * 64, horoscope=7).stored()
assert stored["horoscope"] == 7
assert JobSpec.of_options(ModelRequest(b""), stored).options.horoscope == 7

job = JobView.model_construct(
    id="1f0e", model_name="m.onnx", target="host", threads=1, numerics="fast", priority=0,
    wait_seconds=None, artifact=None, options=stored,
)
(same,) = [text for what, text in job_commands(job, "http://s") if what.startswith("tune")]
assert same == "tilewright job submit m.onnx --target host --horoscope 7 --server http://s"
print("reached")
"""


def test_options_load_neither_numpy_nor_pydantic() -> None:
    """The help of every command needs them."""
    code = "import sys, tilewright.service.options; print({'numpy', 'pydantic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_new_option_is_added_in_one_file() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADDED], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "reached\n"), done.stderr


STATED = (
    ModeOptions(threads=2, numerics="strict", precision="bfloat16"),
    JobOptions(
        trials=7,
        seconds=11.5,
        seed=13,
        stop_gain=0.25,
        target_ms=1.5,
        strategy="random",
        unconstrained=True,
        dims={"m": 8, "n": (4, "1..64@32:0.5,7")},
        values={"sr": 16000, "gain": 0.5},
        pad=True,
        weight_limit=1 << 20,
    ),
    QueueOptions(priority=-3, wait_seconds=60.0),
)


@pytest.mark.parametrize("options", STATED, ids=lambda each: type(each).__name__)
def test_words_and_json_state_every_option(options: Any) -> None:
    written = options.to_json()
    assert type(options).from_json(written) == options
    unstated = [
        each.name
        for each in option_fields(type(options))
        if each.option.flag and written[each.name] == each.default
    ]
    assert not unstated, "this test states all of them"
    words = option_words(options)
    assert words == stated_words(written)
    flags = {each.option.flag for each in option_fields(type(options))} - {""}
    assert {word for word in words if word.startswith("--")} == flags
    assert option_words(type(options)()) == []


def test_a_request_has_the_options_it_was_given() -> None:
    mode, job, queue = STATED
    stated = {**mode.to_json(), **job.to_json(), **queue.to_json()}
    request = JobRequest.model_validate({"model": "0" * 64, **stated})
    assert (request.mode_options, request.job_options, request.queue_options) == STATED
    assert request.stored() == {
        name: value
        for name, value in {**mode.to_json(), **job.to_json()}.items()
        if name not in ("threads", "numerics", "samples")
    }


def test_values_outside_their_bounds_name_the_flag() -> None:
    for wrong, message in (
        ({"stop_gain": 0.995}, r"^--stop-gain: expected a number from 0 to 0.99, got 0.995$"),
        ({"dims": {"n": ()}}, "^--dim: 0 items, expected at least 1$"),
        ({"values": {"": "x"}}, "^--value: expected an integer or a number"),
    ):
        with pytest.raises(OptionError, match=message):
            checked(replace(JobOptions(), **wrong))
    with pytest.raises(OptionError, match="no such option: horoscope"):
        stated_words({"trials": 3, "horoscope": 7})
    with pytest.raises(OptionError, match="trials: expected an integer from 0"):
        stated_words({"trials": -3})


def test_a_wrong_option_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model at all")
    assert run(["tune", str(tmp_path / "model.onnx"), "--stop-gain", "99.5%"]) == 1
    assert "--stop-gain: expected a number from 0 to 0.99" in capsys.readouterr().err
