"""Requests and results of runs as JSON: they read back equal, and absurd values are refused."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.runtime.speeds import Level, Speeds
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.batches import Case, MeasureRequest, MeasureResult
from tilewright.tuner.protocol.blobs import array_to_bytes
from tilewright.tuner.protocol.measurement import RecordKey
from tilewright.tuner.protocol.messages import kind_of, read_request, read_result
from tilewright.tuner.protocol.run_results import Race, RunResult, RunStatus
from tilewright.tuner.protocol.runs import (
    CheckWork,
    Part,
    ProfileWork,
    ProgramParts,
    RaceWork,
    RunRequest,
    SpeedsWork,
    Work,
)
from tilewright.tuner.protocol.version import PROTOCOL, ProtocolError, RequestKind

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
PROGRAM = ProgramParts(A, B, 0, (Part(C, 0, 64, 100), Part(C, 100, 256, 28)))


def request(work: Work, **changes: Any) -> RunRequest:
    blobs = {A: 10, B: 20, C: 128}
    match work:
        case CheckWork(expected=expected):
            blobs |= dict.fromkeys(expected.values(), 30)
        case SpeedsWork(library=library):
            blobs |= {library: 40}
    found = RunRequest("run", "job", 2, (PROGRAM,), (512,), work, blobs, 1 << 20, 60.0)
    return replace(found, **changes)


WORKS: list[Work] = [
    CheckWork(0, 7, {"y": D}, ("y",)),
    RaceWork(((0,), (0, 0))),
    ProfileWork(0, 5),
    SpeedsWork(D, 64, (1 << 15, 1 << 20, 0), 1 << 34, ("int8", "bfloat16")),
]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: type(work).__name__)
def test_a_request_reads_back_equal(work: Work) -> None:
    found = request(work)
    payload = json.loads(json.dumps(found.to_json()))
    assert kind_of(payload) is found.kind is RequestKind.RUN
    assert read_request(payload) == found
    assert set(found.digests) == found.blobs.keys()


def test_inputs_that_are_given_are_blobs_of_a_request() -> None:
    given = replace(PROGRAM, inputs={"x": D})
    found = request(WORKS[2], programs=(given,), blobs={A: 10, B: 20, C: 128, D: 30})
    payload = json.loads(json.dumps(found.to_json()))
    assert read_request(payload) == found
    assert "inputs" not in request(WORKS[2]).to_json()["programs"][0]
    payload["programs"][0]["inputs"]["x"] = "e" * 64
    with pytest.raises(ProtocolError, match="list of blobs"):
        read_request(payload)


def test_batches_of_candidates_are_the_other_kind() -> None:
    batch = MeasureRequest("r", RecordKey("w", "t"), (), B, (Case((), A),), 1e-4)
    assert read_request(json.loads(json.dumps(batch.to_json()))) == batch
    assert kind_of(batch.to_json()) is RequestKind.MEASURE


def test_a_result_is_read_by_its_kind() -> None:
    for result in (RunResult("r", RunStatus.OK), MeasureResult("m", ())):
        found = read_result(json.loads(json.dumps(result.to_json())))
        assert type(found) is type(result) and found == result


@pytest.mark.parametrize("kind", ["shell", "", None, 3, ["run"]])
def test_another_kind_is_refused(kind: Any) -> None:
    message = {**RunResult("r", RunStatus.OK).to_json(), "kind": kind}
    for read in (read_request, read_result):
        with pytest.raises(ProtocolError, match="the kind of the message is"):
            read(message)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("request_id",), "../up"),
        (("threads",), 0),
        (("threads",), 100_000),
        (("threads",), True),
        (("programs", 0, "program"), "../../etc/passwd"),
        (("programs", 0, "library"), "x"),
        (("programs", 0, "block"), 1),
        (("programs", 0, "parts", 0, 0), D),  # not listed
        (("programs", 0, "parts", 0, 1), 1),  # leaves its blob with the next
        (("programs", 0, "parts", 1, 1), 101),
        (("programs", 0, "parts", 0, 2), -1),
        (("programs", 0, "parts", 0, 2), 413),
        (("programs", 0, "parts", 0, 3), 1 << 60),
        (("block_bytes", 0), 1.5),
        (("block_bytes",), {"0": 512}),
        (("work", "do"), "shell"),
        (("work", "program"), 1),
        (("work", "program"), -1),
        (("work", "seed"), 1 << 40),
        (("work", "expected"), {"y": "z"}),
        (("work", "fetch"), [3]),
        (("blobs", A), 1 << 50),
        (("blobs", "e" * 64), 5),
        (("blobs",), {}),
        (("blobs",), []),
        (("memory_bytes",), -1),
        (("memory_bytes",), "1"),
        (("limit_seconds",), 0),
        (("limit_seconds",), math.nan),
        (("limit_seconds",), 1e9),
        (("limit_seconds",), None),
    ],
    ids=str,
)
def test_what_is_absurd_is_refused(path: tuple[Any, ...], value: Any) -> None:
    payload = copy.deepcopy(request(WORKS[0]).to_json())
    place = payload
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    if path == ("programs", 0, "parts", 0, 1):
        payload["programs"][0]["parts"][0][3] = 128
    with pytest.raises(ProtocolError, match="malformed run request"):
        read_request(payload)


@pytest.mark.parametrize(
    "work",
    [
        {"do": "race", "variants": [], "seed": 7},
        {"do": "race", "variants": [[0], []], "seed": 7},
        {"do": "race", "variants": [[0], [1]], "seed": 7},
        {"do": "profile", "program": 0, "samples": 0, "seed": 7},
        {"do": "profile", "program": 0, "samples": 10**9, "seed": 7},
        {"do": "profile", "program": 3, "samples": 1, "seed": 7},
        {"do": "speeds", "library": A, "vector_bytes": 0, "cache_bytes": [], "memory_bytes": 1},
        {"do": "speeds", "library": D, "vector_bytes": 64, "cache_bytes": [], "memory_bytes": 1},
        {"program": 0},
        None,
    ],
    ids=str,
)
def test_work_that_is_none_is_refused(work: Any) -> None:
    payload = {**request(WORKS[2]).to_json(), "work": work}
    with pytest.raises(ProtocolError, match="malformed run request"):
        read_request(payload)


@pytest.mark.parametrize("version", [PROTOCOL - 1, PROTOCOL + 1, None])
def test_another_version_is_refused(version: int | None) -> None:
    with pytest.raises(ProtocolError, match=f"expected {PROTOCOL}: update the older"):
        read_request({**request(WORKS[0]).to_json(), "protocol": version})
    with pytest.raises(ProtocolError, match=f"expected {PROTOCOL}: update the older"):
        RunResult.from_json({**RunResult("r", RunStatus.OK).to_json(), "protocol": version})


def test_a_result_reads_back_equal_in_json_without_infinities() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = RunResult(
        "r",
        RunStatus.OK,
        errors={"y": 0.5, "z": math.inf},
        fetched={"y": array_to_bytes(array)},
        race=Race(1e-3, (Comparison("untuned", (0.5, 2.0)),)),
        seconds=(1e-6, 2e-6),
        speeds=Speeds(1e9, (Level("L1", 1 << 15, 2e9), Level("memory", 0, 1e9))),
        worker="w",
    )
    text = json.dumps(result.to_json(), allow_nan=False)
    found = RunResult.from_json(json.loads(text))
    assert found == result
    np.testing.assert_array_equal(found.arrays()["y"], array)


@pytest.mark.parametrize("names", [["float8"], [7], "int8", {"int8": 1}])
def test_peaks_that_nobody_measures_are_refused(names: Any) -> None:
    payload = request(WORKS[-1]).to_json()
    payload["work"]["dots"] = names
    with pytest.raises(ProtocolError, match="malformed run request"):
        read_request(payload)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"errors": [1]},
        {"errors": {"y": "large"}},
        {"fetched": {"y": "no base64!"}},
        {"race": {"incumbent_seconds": 1.0, "comparisons": [["untuned", []]]}},
        {"race": {"incumbent_seconds": 1.0}},
        {"seconds": ["soon"]},
        {"speeds": {"flops_per_second": 1.0, "levels": [["L1", 5, 1.0]]}},
    ],
    ids=str,
)
def test_a_malformed_result_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="malformed run result"):
        RunResult.from_json({**RunResult("r", RunStatus.OK).to_json(), **change})


def test_an_output_that_is_no_array_is_refused() -> None:
    for data in (b"", b"\x93NUMPY", array_to_bytes(np.zeros(9))[:-1]):
        with pytest.raises(ProtocolError, match="an output of the run is malformed"):
            RunResult("r", RunStatus.OK, fetched={"y": data}).arrays()
