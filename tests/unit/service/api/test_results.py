"""Validation of results: the report of a faulty or lying worker is refused, counts, and is stored
nowhere.

Each lie was accepted once: it became a record, or failed every later job of its workload.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.measured import SPEEDS, honest
from tilewright.compiler.targets.device import find_device
from tilewright.compiler.targets.target import known_targets
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import Blame, Held, LeaseOutcome, NewRequest, RequestState
from tilewright.service.api import worker_traffic
from tilewright.service.api.gate import LARGE_BYTES
from tilewright.service.api.results import ResultRefused, admit
from tilewright.service.api.schemas.workers import MOST_FACTS_BYTES
from tilewright.service.worker.facts import device_facts, registration_facts
from tilewright.tuner.measure.speed import Speed
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.batches import (
    Candidate,
    Case,
    InputSpec,
    MeasureRequest,
    MeasureResult,
    RepeatSettings,
)
from tilewright.tuner.protocol.judge import ImplausibleError, check_result, most_result_bytes
from tilewright.tuner.protocol.measurement import MOST_ERROR, Measurement, Phase, RecordKey, Status
from tilewright.tuner.protocol.run_results import Race, RunResult, RunStatus
from tilewright.tuner.protocol.runs import (
    RACE_PAIRS,
    CheckWork,
    ProfileWork,
    ProgramParts,
    RaceWork,
    RunRequest,
    SpeedsWork,
    Work,
)
from tilewright.tuner.protocol.version import PROTOCOL

TARGET = known_targets()["x86-64-v3"].key

REQUEST = MeasureRequest(
    request_id="a",
    key=RecordKey("w" * 64, TARGET),
    candidates=tuple(
        Candidate(f"t{n}", {}, f"{n}" * 64, {}, f"{n + 5}" * 64, 0.25) for n in range(2)
    ),
    library_digest="a" * 64,
    cases=tuple(Case((InputSpec((2,), "float32", seed),), f"{seed}" * 64) for seed in (7, 8, 9)),
    tolerance=1e-4,
    least_seconds=1e-7,
    incumbent="t0",
    repeat=RepeatSettings(limit_seconds=10.0),
    phase=Phase.FINAL,
)


def good() -> dict[str, Any]:
    """Everything that an honest worker fills in."""
    result = honest(
        REQUEST,
        "w",
        samples_seconds=(2e-6, 1.5e-6),
        max_error=1e-6,
        build_seconds=0.25,
        measure_seconds=0.5,
        device=device_facts(),
        measured_at=1.7e9,
        speed=Speed(1e-3, 1e-3),
    )
    first, (name, second) = result.measurements
    against = Comparison(REQUEST.candidates[0].schedule_digest, (0.9, 0.8))
    second = Measurement.from_json({**second.to_json(), "comparison": against.to_json()})
    return MeasureResult(result.request_id, (first, (name, second)), "w").to_json()


@pytest.fixture
def worker(client: TestClient) -> str:
    body = {"name": "bench", "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
    return str(client.post("/v1/workers", json=body).json()["worker"]["id"])


def lease_of(
    client: TestClient, storage: Storage, worker: str, payload: dict[str, Any]
) -> dict[str, Any]:
    storage.leases.submit([NewRequest(payload["request_id"], TARGET, payload)])
    answer = client.post("/v1/leases/claim", json={"worker_id": worker, "limit": 1})
    (lease,) = answer.json()["leases"]
    return dict(lease)


def report(client: TestClient, worker: str, lease: dict[str, Any], result: Any) -> Any:
    """As a worker sends it: Python writes NaN and Infinity into JSON."""
    body = {"worker_id": worker, "result_key": "k", "result": result}
    headers = {"Content-Type": "application/json"}
    path = f"/v1/leases/{lease['lease_id']}/result"
    return client.post(path, content=json.dumps(body), headers=headers)


def changed(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(result: dict[str, Any]) -> None:
        place: Any = result
        for key in path[:-1]:
            place = place[key]
        if to is KeyError:
            del place[path[-1]]
        else:
            place[path[-1]] = to

    return change


def of_first(field: str, to: Any) -> Any:
    return pytest.param(
        changed("measurements", 0, "measurement", field, to=to),
        f"measurements.0.measurement.{field}",
        id=f"{field}={str(to)[:30]}",
    )


LIES = [
    *(of_first("samples_seconds", [2e-6, lie]) for lie in (1e-12, -1.0, 0.0, 20.1, 1e300)),
    *(of_first("samples_seconds", [lie]) for lie in (float("nan"), float("inf"), "1e-6", True)),
    *(of_first("samples_seconds", lie) for lie in ([], [1e-6] * 10_001, None, {"0": 1e-6}, 1e-6)),
    *(of_first("checks", lie) for lie in (10**30, 2, 4, -1, 3.0, "3", True)),
    *(of_first("seeds", lie) for lie in ([10**30, 8, 9], [7, 8], [9, 8, 7], "789")),
    *(of_first("error", lie) for lie in ({"a": 1}, None, "x" * 4001)),
    *(of_first("status", lie) for lie in ("fine", "build_error", "cancelled", "worker_lost", 1)),
    *(of_first("max_error", lie) for lie in (1e-3, -1e-9, None, float("nan"), "0")),
    *(of_first("tolerance", lie) for lie in (1.0, float("inf"))),
    of_first("object_digest", "6" * 64),
    of_first("reference_digest", "8" * 64),
    of_first("build_seconds", -1.0),
    of_first("measure_seconds", float("nan")),
    of_first("measured_at", 1e300),
    of_first("measured_at", KeyError),
    of_first("worker", ["w"]),
    of_first("surprise", "x"),
    *(of_first("device", lie) for lie in ({"model": "x"}, [], {"model": "x" * (30 << 20)})),
    (changed("measurements", 0, "measurement", "device", "features", to=[["a"]]), "device"),
    (changed("measurements", 0, "measurement", "device", "memory_bytes", to=10**30), "device"),
    (changed("measurements", 0, "measurement", "speed", "memory_ratio", to=-1.0), "memory_ratio"),
    (changed("measurements", 0, "measurement", "speed", to="fast"), "speed"),
    (changed("measurements", 1, "measurement", "comparison", "ratios", to=[0.0]), "ratios"),
    (changed("measurements", 1, "measurement", "comparison", "ratios", to=[]), "ratios"),
    (changed("measurements", 1, "measurement", "comparison", "ratios", to=[0.9] * 7), "ratios"),
    (changed("measurements", 1, "measurement", "comparison", "against", to="1" * 64), "against"),
    (changed("request_id", to="b"), "request_id"),
    (changed("protocol", to=10**30), "protocol"),
    (changed("measurements", to=[]), "measurements"),
    (changed("measurements", 0, "trial_id", to="t1"), "measurements"),
    (changed("measurements", 0, "trial_id", to=7), "trial_id"),
    (changed("measurements", to=KeyError), "measurements"),
    (lambda result: result["measurements"].reverse(), "measurements"),
    (lambda result: result["measurements"].append(result["measurements"][0]), "measurements"),
    (lambda result: result.clear(), ""),
]


def judge(request: MeasureRequest | RunRequest, result: dict[str, Any]) -> dict[str, Any]:
    """The stored form of a result that arrived as JSON, of Python's kind, which has NaN."""
    held = Held("l" * 32, request.request_id, request.to_json())
    return dict(admit(held, "w", json.loads(json.dumps(result))))


@pytest.mark.parametrize(("lie", "field"), LIES)
def test_a_result_that_cannot_be_is_refused(
    lie: Callable[[dict[str, Any]], None], field: str
) -> None:
    result = copy.deepcopy(good())
    lie(result)
    with pytest.raises(ResultRefused) as refusal:
        judge(REQUEST, result)
    assert field in refusal.value.field and refusal.value.field in str(refusal.value)
    assert len(str(refusal.value)) <= 1000


@pytest.mark.parametrize("lie", [float("nan"), -1.0, 1e-12])
def test_a_refused_result_counts_against_its_worker_and_the_request_goes_on(
    client: TestClient, storage: Storage, worker: str, lie: float
) -> None:
    lease = lease_of(client, storage, worker, REQUEST.to_json())
    result = good()
    result["measurements"][0]["measurement"]["samples_seconds"] = [lie]
    answer = report(client, worker, lease, result)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["type"] == "urn:tilewright:problem:refused-result"
    assert problem["field"].startswith("measurements.0.measurement.samples_seconds")
    status = storage.leases.status(["a"])["a"]
    assert (status.state, status.result) == (RequestState.QUEUED, None)
    (row,) = storage.leases.history("a")
    assert (row.outcome, row.blame) == (LeaseOutcome.REFUSED, Blame.WORKER)
    # nothing that comes later under this lease is taken, not even the truth
    assert report(client, worker, lease, good()).status_code == 409


def test_an_honest_result_is_stored_under_the_name_of_its_worker(
    client: TestClient, storage: Storage, worker: str
) -> None:
    lease = lease_of(client, storage, worker, REQUEST.to_json())
    assert report(client, worker, lease, good()).json() == {"completion": "accepted"}
    stored = MeasureResult.from_json(storage.leases.status(["a"])["a"].result or {})
    said = MeasureResult.from_json(good())
    assert stored.worker == worker and {m.worker for _, m in stored.measurements} == {worker}
    assert stored.measurements[1][1].comparison == said.measurements[1][1].comparison
    assert stored.measurements[0][1].samples_seconds == (2e-6, 1.5e-6)


@pytest.mark.parametrize("status", ["crash", "run_error", "run_timeout", "wrong_answer"])
def test_a_candidate_that_failed_is_an_honest_result(status: str) -> None:
    result = good()
    failed = {"status": status, "error": "x", "samples_seconds": [], "checks": 1, "max_error": None}
    result["measurements"][0]["measurement"].update(failed)
    assert judge(REQUEST, result) == {**result, "worker": "w"}


PROGRAM = ProgramParts("c" * 64, "", 0, ())


def run_request(work: Work, *blobs: str) -> RunRequest:
    programs = () if isinstance(work, SpeedsWork) else (PROGRAM,)
    names = dict.fromkeys((*blobs, *(p.program for p in programs)), 8)
    return RunRequest("a", "", 1, programs, (0,), work, names, 0, 60.0)


CHECK = run_request(CheckWork(0, 1, {"y": "e" * 64}, ("y",)), "e" * 64)
RACE = run_request(RaceWork(((0,), (0,))))
SPEED = run_request(SpeedsWork("d" * 64, 32, (0,), 0, ("int8",)), "d" * 64)

HONEST = {
    "check": (CHECK, RunResult("a", RunStatus.OK, errors={"y": 0.1}, fetched={"y": b"x"})),
    "race": (RACE, RunResult("a", RunStatus.OK, race=Race(1e-3, (Comparison("1", (0.9,)),)))),
    "speeds": (SPEED, RunResult("a", RunStatus.OK, speeds=SPEEDS)),
    "refused": (RACE, RunResult("a", RunStatus.REFUSED, "no room")),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_run_is_taken(name: str) -> None:
    request, result = HONEST[name]
    assert judge(request, result.to_json()) == replace(result, worker="w").to_json()


@pytest.mark.parametrize(
    ("name", "lie", "field"),
    [
        ("check", changed("errors", to={}), "errors"),
        ("check", changed("errors", "y", to=-1.0), "errors"),
        ("check", changed("errors", "y", to="0"), "errors.y"),
        ("check", changed("errors", "z", to=0.0), "errors"),
        ("check", changed("fetched", to={}), "fetched"),
        ("check", changed("fetched", "y", to={"a": 1}), "fetched.y"),
        ("check", changed("fetched", "y", to="no base64!"), "fetched.y"),
        ("check", changed("request_id", to="b"), "request_id"),
        ("check", changed("status", to="crashed"), "errors"),
        ("race", changed("race", to=None), "race"),
        ("race", changed("race", "incumbent_seconds", to=1e-12), "race.incumbent_seconds"),
        ("race", changed("race", "incumbent_seconds", to=1000.0), "race.incumbent_seconds"),
        ("race", changed("race", "comparisons", to=[]), "race.comparisons"),
        ("race", changed("race", "comparisons", to=[["1", [0.0]]]), "race.comparisons"),
        ("race", changed("race", "comparisons", to=[["1", [float("nan")]]]), "race.comparisons"),
        ("race", changed("race", "comparisons", to=[[[0.9], "1"]]), "race.comparisons"),
        ("race", changed("race", "comparisons", to=[["1", []]]), "race.comparisons"),
        ("race", changed("race", "comparisons", to=[["1", [0.9] * 18]]), "race.comparisons"),
        ("race", changed("seconds", to=[1.0]), "seconds"),
        ("speeds", changed("speeds", to=None), "speeds"),
        ("speeds", changed("speeds", "flops_per_second", to=0.0), "speeds"),
        ("speeds", changed("speeds", "flops_per_second", to=1e17), "speeds"),
        ("speeds", changed("speeds", "levels", to=[["memory", 0, -1.0]]), "speeds"),
        ("speeds", changed("speeds", "levels", to=[["memory", 10**30, 1.0]]), "speeds.levels.0"),
        ("speeds", changed("speeds", "levels", to=[["memory", -1, 1.0]]), "speeds.levels.0"),
        ("speeds", changed("speeds", "levels", to=[]), "speeds.levels"),
        ("speeds", changed("speeds", "dots", to={"int8": 0.0}), "speeds"),
        ("speeds", changed("speeds", "dots", to={"int8": 1e17}), "speeds"),
        ("speeds", changed("speeds", "dots", to={"bfloat16": 1e11}), "speeds"),
    ],
)
def test_a_run_that_cannot_be_is_refused(
    name: str, lie: Callable[[dict[str, Any]], None], field: str
) -> None:
    request, honest_result = HONEST[name]
    result = copy.deepcopy(honest_result.to_json())
    lie(result)
    with pytest.raises(ResultRefused) as refusal:
        judge(request, result)
    assert field in refusal.value.field


def test_a_result_of_another_kind_of_request_is_implausible() -> None:
    measured, run = MeasureResult.from_json(good()), RunResult("a", RunStatus.REFUSED, "no room")
    for request, result in ((REQUEST, run), (RACE, measured)):
        with pytest.raises(ImplausibleError, match="another kind of request"):
            check_result(request, result)


def test_a_lie_about_a_lost_lease_is_no_late_result(
    client: TestClient, storage: Storage, worker: str
) -> None:
    lease = lease_of(client, storage, worker, REQUEST.to_json())
    storage.leases.cancel(request_ids=["a"])
    result = good()
    result["measurements"][0]["measurement"]["samples_seconds"] = [-1.0]
    assert report(client, worker, lease, result).status_code == 409
    assert report(client, worker, lease, good()).json() == {"completion": "late"}


# ---- how large a result can be


def padded(result: dict[str, Any], size_bytes: int) -> dict[str, Any]:
    return {**result, "padding": "x" * size_bytes}


@pytest.mark.parametrize("told", [True, False])
def test_a_result_that_is_larger_than_its_request_allows_is_not_read(
    client: TestClient,
    storage: Storage,
    worker: str,
    monkeypatch: pytest.MonkeyPatch,
    told: bool,
) -> None:
    """Reading JSON blocks all other requests; without a length, reading stops at the first byte too
    many."""
    lease = lease_of(client, storage, worker, REQUEST.to_json())
    most = most_result_bytes(REQUEST)
    read: list[int] = []
    admitted = worker_traffic.admit

    def counted(*arguments: Any) -> Any:
        read.append(1)
        return admitted(*arguments)

    monkeypatch.setattr(worker_traffic, "admit", counted)
    body = {"worker_id": worker, "result_key": "k"}
    path = f"/v1/leases/{lease['lease_id']}/result"

    def send(result: dict[str, Any]) -> Any:
        data = json.dumps({**body, "result": result}).encode()
        content: Any = data if told else iter([data[:1000], data[1000:]])
        return client.post(path, content=content, headers={"Content-Type": "application/json"})

    answer = send(padded(good(), most))
    assert answer.status_code == 413 and f"larger than {most} bytes" in answer.json()["detail"]
    assert not read and storage.leases.status(["a"])["a"].state is RequestState.LEASED
    answer = send(padded(good(), LARGE_BYTES))
    assert answer.status_code == 422 and len(read) == 1, "one that may be so large is judged"


def test_a_large_result_of_nobodys_lease_is_not_read(client: TestClient, worker: str) -> None:
    answer = report(client, worker, {"lease_id": "0" * 32}, padded(good(), LARGE_BYTES))
    assert answer.status_code == 404 and answer.json()["detail"].startswith("lease '000")


def test_a_large_result_of_an_older_releases_request_is_not_read(
    client: TestClient, storage: Storage, worker: str
) -> None:
    lease = lease_of(client, storage, worker, {**REQUEST.to_json(), "protocol": 0})
    assert report(client, worker, lease, padded(good(), LARGE_BYTES)).status_code == 413


def test_the_largest_honest_results_fit() -> None:
    """Every text as long as it may be, every time there is, outputs up to the last byte."""
    request = replace(REQUEST, repeat=RepeatSettings(samples=3000))
    result = good()
    for one in result["measurements"]:
        measurement = one["measurement"]
        measurement["error"] = "\u4e00" * MOST_ERROR
        measurement["samples_seconds"] = [1.2345678901234567e-06] * 3000
        ratios = [0.12345678901234567] * 3000
        measurement["comparison"] = {**Comparison("0" * 64, (0.9,)).to_json(), "ratios": ratios}
    assert len(json.dumps(result)) <= most_result_bytes(request)
    few = most_result_bytes(replace(request, candidates=request.candidates[:1]))
    assert few < most_result_bytes(request), "fewer trials, fewer bytes"

    output = b"\xff" * 100_001
    check = replace(CHECK, memory_bytes=len(output))
    fetched = RunResult("a", RunStatus.OK, errors={"y": 0.1}, fetched={"y": output})
    assert len(json.dumps(fetched.to_json())) <= most_result_bytes(check) < 4 * len(output)
    assert most_result_bytes(CHECK) < most_result_bytes(check)

    steps = 10_000
    program = {"c" * 64: steps * len('{"kernel": 0, "in": [0]}')}
    profile = replace(run_request(ProfileWork(0, 5)), blobs=program)
    timed = RunResult("a", RunStatus.OK, seconds=(1.2345678901234567e-06,) * steps)
    assert len(json.dumps(timed.to_json())) <= most_result_bytes(profile)
    for honest_request, honest_result in HONEST.values():
        assert len(json.dumps(honest_result.to_json())) <= most_result_bytes(honest_request)


# ---- facts of a device


def test_facts_that_no_device_has_are_refused(client: TestClient, worker: str) -> None:
    lies: list[dict[str, Any]] = [
        {"features": [["a", ["b"]]]},
        {"features": {"a": 1}},
        {"model": "x" * (30 << 20)},
        {"features": ["x" * 400 for _ in range(1000)]},
        {"memory_bytes": 10**30},
        {"memory_bytes": -1},
        {"cores": 2.5},
        {"caches": [{"level": 1}]},
        {"surprise": 1},
        {"model": None},
    ]
    for lie in lies:
        device = {**registration_facts(), **lie}
        new = {"name": "w", "protocol": PROTOCOL, "device": device}
        for targets in ([], ["x86-64-v3"]):
            answer = client.post("/v1/workers", json={**new, "targets": targets})
            assert answer.status_code in (413, 422), answer.text
        beat = client.post(f"/v1/workers/{worker}/heartbeat", json={"device": device})
        assert beat.status_code in (413, 422)
    (listed,) = client.get("/v1/workers").json()
    assert listed["device"] == {}


def test_the_facts_of_a_device_fit(client: TestClient, worker: str) -> None:
    facts = find_device().to_json()
    assert len(json.dumps(facts)) < MOST_FACTS_BYTES / 4
    assert client.post(f"/v1/workers/{worker}/heartbeat", json={"device": facts}).is_success
    assert client.get("/v1/workers").json()[0]["device"] == facts


def test_what_is_stored_and_cannot_be_is_no_success() -> None:
    """An earlier release stored such times: neither a cost model nor a logarithm uses them."""
    for lie in (float("nan"), float("inf"), 0.0, -1.0):
        stored = Measurement(Status.OK, samples_seconds=(1e-6, lie), checks=3)
        assert not stored.ok and not stored.certified
        assert stored.run_seconds is None and stored.interval is None


def test_as_many_ratios_of_a_race_are_accepted_as_a_harness_reports() -> None:
    most = replace(HONEST["race"][1], race=Race(1e-3, (Comparison("1", (0.9,) * RACE_PAIRS),)))
    assert judge(RACE, most.to_json())["race"] == most.to_json()["race"]
