"""The messages of the worker protocol have the same fields in Python, C and JavaScript.

Python's dataclasses define them. C and JavaScript repeat the names by hand; numbers and words are
generated from Python.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from tilewright.compiler.runtime.json_form import JsonForm
from tilewright.compiler.runtime.speeds import Speeds
from tilewright.tuner.measure import plain_form
from tilewright.tuner.measure.speed import Speed
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.batches import (
    Candidate,
    Case,
    MeasureRequest,
    MeasureResult,
    RepeatSettings,
)
from tilewright.tuner.protocol.generate import HEADER, MODULE, SHARED, macro
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, TimesAt
from tilewright.tuner.protocol.run_results import RunResult
from tilewright.tuner.protocol.runs import (
    CheckWork,
    Part,
    ProfileWork,
    ProgramParts,
    RaceWork,
    RunRequest,
    SpeedsWork,
)
from tilewright.tuner.protocol.standard_input import AgentMessage, HarnessMessage

ROOT = Path(__file__).parents[4]

REQUESTS = (
    *(MeasureRequest, Candidate, Case, RepeatSettings, RecordKey),
    *(RunRequest, ProgramParts, Part, CheckWork, RaceWork, ProfileWork, SpeedsWork),
)
RESULTS = (MeasureResult, Measurement, TimesAt, Comparison, Speed, RunResult, Speeds)

AGENT = {"do", "worker", "request", "requests", "times", "blob", "bytes", "plain"}
"""Fields of the lines that an agent writes to a harness, around requests and blobs."""


def harness() -> str:
    (header,) = [
        path
        for package in ("service", "tuner")
        for path in (ROOT / package).rglob("harness.h")
        if "build" not in path.parts
    ]
    files = (path for path in sorted(header.parent.glob("*.[ch]")) if path.name != HEADER.name)
    return "\n".join(path.read_text() for path in files)


def browser() -> str:
    files = ROOT.glob("service/browser/*.mjs")
    return "\n".join(path.read_text() for path in files if path.name != MODULE.name)


def fields(kind: type) -> set[str]:
    """The names in the JSON form of a message."""
    form: Any = getattr(kind, "json_form", JsonForm())
    names = {form.names.get(each.name, each.name) for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return names | {*form.constants} | {*form.derived}


def in_c_source(name: str, source: str) -> bool:
    """Whether C writes a name, whole or put together from a word and an ending."""
    word, _, ending = name.partition("_")
    composed = f"%s_{ending}" in source and f'"{word}"' in source
    return composed or re.search(rf'"{name}\\?"', source) is not None


def plan_fields() -> set[str]:
    """The names in the plan that accompanies a request for a device without NumPy."""
    tree = ast.parse(Path(plain_form.__file__).read_text())
    keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
    return {key.value for key in keys if isinstance(key, ast.Constant)}


@pytest.mark.parametrize("source", [harness, browser])
def test_shared_definitions_are_not_repeated_by_hand(source: Any) -> None:
    names = "|".join(name for names in SHARED.values() for name in names)
    assert re.findall(rf"\b(?:#define (?:{names})\b|(?:{names}) =(?!=))", source()) == []
    assert re.search(r"\bPROTOCOL\b", source()), "they are used"


@pytest.mark.parametrize("kind", RESULTS)
def test_c_and_javascript_write_every_field_of_a_result(kind: type) -> None:
    c, javascript = harness(), browser()
    in_c = {name for name in fields(kind) if in_c_source(name, c)}
    assert in_c == fields(kind)
    in_javascript = {n for n in fields(kind) if re.search(rf"\b{n}\b\s*[:,}}]", javascript)}
    assert in_javascript == fields(kind)


def test_c_reads_only_fields_that_messages_have() -> None:
    c = harness()
    read = set(re.findall(r'json_get\w*\([^"]*?"(\w+)"', c))
    written = set(re.findall(r'\\"(\w+)\\":', c))
    known = {name for kind in REQUESTS for name in fields(kind)} | plan_fields() | AGENT
    known.add("model")  # of the device's facts, which it writes itself
    assert {"cases", "reference_digest", "factors", "vector_bytes"} <= read, "they are found"
    assert read - known - written == set()


def test_kinds_of_messages_on_standard_input_are_not_repeated_by_hand() -> None:
    folder = HEADER.parent
    c = re.sub(r"/\*.*?\*/", "", (folder / "serve.c").read_text(), flags=re.DOTALL)
    for kind in (AgentMessage, HarnessMessage):
        for each in kind:
            assert not re.search(rf'"{each}\\?"', c), each
            assert macro(kind.__name__, each.name) in c
    assert macro("FailureCause", "SERVICE") in c and macro("FailureCause", "WORKER") in c
    tree = ast.parse((folder / "driver.py").read_text())
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not texts & {*AgentMessage, *HarnessMessage}
