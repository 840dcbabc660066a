"""A service with prepared answers, for tests of the requests and output of commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2

NOW = 1_795_348_800.0
"""When everything is printed."""

JOB, BOARD, TWIN, TOKEN = ("1" * 32, "b" * 32, "b0" * 16, "7" * 32)
KEY, OTHER_KEY, TARGET_KEY, MODEL = ("a" * 64, "e" * 64, "c" * 64, "d" * 64)
LONG = "[red] as long as no line" + " is long" * 20
"""Nothing in it is markup, and no sentence of it is wrapped."""

SCHEDULE = {"algorithm": "direct", "choices": {"tile_m": 4, "parallel": 1}}
COMPARISON = {"ratio": 0.9, "low": 0.85, "high": 0.95}
COMMON = {"threads": 2, "numerics": "fast"}


def job(state: str = "succeeded", **changes: Any) -> dict[str, Any]:
    """A job as it travels."""
    return {
        "id": JOB,
        "state": state,
        "final": True,
        "model": MODEL,
        "model_name": "net.onnx",
        "target": "x86-64-v3",
        "target_key": TARGET_KEY,
        "options": {},
        "progress": {
            "phase": "done",
            "tasks_total": 5,
            "tasks_done": 4,
            "trials_budget": 100,
            "trials_done": 90,
            "trials_failed": 3,
            "default_seconds": 0.0041,
            "best_seconds": 0.0032,
        },
        "failures": {"crash": 2, "build_error": 1},
        "error": None,
        "result": None,
        "artifact": None,
        "tuner": "t",
        "created_at": NOW - 3725,
        "started_at": NOW - 3605,
        "finished_at": NOW - 3.0,
        **COMMON,
        **changes,
    }


def task(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "job_id": JOB,
        "workload_key": KEY,
        "name": name,
        "count": 1,
        "weight": 1.0,
        "status": "tuned",
        "default_seconds": 4e-4,
        "best_seconds": 2e-4,
        "trials": 30,
        "facts": {},
        **changes,
    }


TASKS = [
    task("cheap", facts={"origins": {"bayesian": 6, "": 1}, "best_origin": "bayesian"}),
    task(
        "dear [bold]",
        count=12,
        facts={
            "flops": 2e6,
            "executed_flops": 1e6,
            "schedule": SCHEDULE,
            "comparison": COMPARISON,
            "origins": {"bayesian": 5, "default": 1},
            "best_origin": "default",
        },
    ),
    task("known", status="cached", facts={"comparison": None, "flops": 0.0}),
    task("as known", best_seconds=2.5e-4, trials=0, facts={"relative": KEY}),
    task("not yet", default_seconds=None, best_seconds=None, trials=0),
    task("by default", best_seconds=None, trials=1, facts={"schedule": {"algorithm": "map"}}),
]

VERDICT = {
    "served": "partly",
    "outcome": "faster",
    "comparison": COMPARISON,
    "dropped": ["a", "b"],
    "reason": "two tasks are slower in the model",
    "device": "board",
    "attestation": "once",
}

RESULT = {
    "ended": "gain",
    "forecast": {"gain": 0.004, "seconds": 60.0, "trials": 100, "model_seconds": 1.0},
    "forecast_error": {"expected": 0.012, "gained": 0.01},
    "device": {"name": "board", "facts": {"model": "Cortex"}},
    "largest_error": 2e-6,
    "unverified": ["y"],
    "workloads": 5,
    "workloads_known": 4,
    "workloads_related": 1,
    "end_to_end": VERDICT,
}


def worker(name: str, worker_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": worker_id,
        "name": name,
        "target_keys": [TARGET_KEY],
        "targets": ["x86-64-v3"],
        "device": {},
        "protocol": 4,
        "health": "healthy",
        "last_heartbeat": NOW,
        "draining": False,
        "in_hand": 2,
        "leases_lost": 0,
        "created_at": NOW,
        **changes,
    }


def speed(disturbed: bool, throttled: bool) -> dict[str, Any]:
    return {
        "arithmetic_seconds": 0.25,
        "memory_seconds": 0.5,
        "arithmetic_ratio": 1.25,
        "memory_ratio": 1.5,
        "disturbed": disturbed,
        "throttled": throttled,
    }


CONDITION = {"temperature_celsius": 61.4, "load": 3.21, "clock_ratio": 0.851, "governor": "save"}

WORKERS = [
    worker("board", BOARD, speed=speed(False, False), condition=CONDITION),
    worker("twin", TWIN, speed=speed(True, False), condition={"load": 0.0}, draining=True),
    worker("twin", "b1" * 16, speed=speed(True, True), health="draining", draining=True),
    worker("gone", "b2" * 16, health="gone", condition={"governor": "save"}),
    worker(
        "ill [red]",
        "b3" * 16,
        health="quarantined",
        trials={"ok": 1200, "run_error": 4, "wrong_answer": 30},
        condition={},
        quarantine={"reason": "5 of its last\n6 leases were lost", "since": NOW, "canary_at": NOW},
    ),
]


def token(name: str, token_id: str, **changes: Any) -> dict[str, Any]:
    never = ("expires_at", "revoked_at", "last_used_at", "previous_until")
    return {
        "id": token_id,
        "name": name,
        "scopes": ["read", "submit"],
        "created_at": NOW - 86400.0,
        **dict.fromkeys(never),
        **changes,
    }


TOKENS = [
    token("owner", TOKEN, last_used_at=NOW - 60),
    token("ci [red]", "8" * 32, expires_at=NOW + 60),
    token("over", "80" * 16, expires_at=NOW),
    token("revoked", "90" * 16, expires_at=NOW + 60, revoked_at=NOW - 3600),
]


def record(seconds: float, **measured: Any) -> dict[str, Any]:
    return {
        "workload_key": KEY,
        "target_key": TARGET_KEY,
        "schedule": SCHEDULE,
        "run_seconds": seconds,
        "attestation": "two-owners",
        "interval": None,
        "measurement": measured,
        "codegen_version": "1",
        "compiler_version": "2",
        **COMMON,
    }


ENTRIES = [
    {"workload_key": KEY, "name": "first [red]", "count": 3, "record": None},
    {
        "workload_key": OTHER_KEY,
        "name": "second",
        "count": 1,
        "record": {
            **record(1.5e-4, max_error=1.2e-7, comparison=COMPARISON),
            "interval": {"low": 1.25e-4, "high": 1.5e-4, "coverage": 0.95},
        },
    },
    {"workload_key": KEY, "name": "third", "count": 1, "record": record(2.5, comparison=None)},
]

ANSWER = {
    "match": "nearest-shape",
    "sentence": f"tuned for a like workload: {LONG}",
    "workload_key": KEY,
    "target_key": TARGET_KEY,
    "schedule": SCHEDULE,
    "run_seconds": 1.5e-4,
    "expected_loss": 0.1,
    "pairs": 7,
    "distance": 0.5,
    "record": None,
    **COMMON,
}

AUDIT = [
    {
        "serial": 7,
        "at": NOW - 120,
        "actor": TOKEN,
        "actor_name": "owner",
        "origin": "192.0.2.7",
        "action": "token.revoked",
        "subject": "8" * 32,
        "detail": {"name": "ci"},
    }
]

EVENTS = [
    {"state": "waiting_for_worker", "reason": f"no worker is alive: {LONG}"},
    {"state": "running"},
    {**job()["progress"], "forecast_gain": 0.05, "seconds_left": 90.0, "workers": 0},
    {**job()["progress"], "candidates_per_second": 12.34, "workers": 1},
    {**job()["progress"], "phase": "", "candidates_per_second": 12.34, "workers": 1},
]


def canned(**jobs: Any) -> dict[str, Any]:
    """Answers by method and path; `jobs` are changes of the job."""
    stream = ""
    for number, data in enumerate(EVENTS, 1):
        kind = "state" if "state" in data else "progress"
        event = {"sequence": number, "kind": kind, "created_at": NOW, "data": data}
        stream += f"id: {number}\nevent: {kind}\ndata: {json.dumps(event)}\n\n"
    lookup = {"target_key": TARGET_KEY, "known": 2, "schedules": ENTRIES, **COMMON}
    named = {"digest": MODEL, "name": "m", "bytes": 3, "created_at": NOW}
    made = {**TOKENS[1], "secret": "tw_secret"}
    return {
        "POST /v1/models": named,
        "GET /v1/jobs": [
            job(),
            job(**{"id": "2" * 32, "state": "waiting_for_worker", "target": "a [b]", **jobs}),
        ],
        "POST /v1/jobs": job(**jobs),
        f"GET /v1/jobs/{JOB}": job(**jobs),
        f"GET /v1/jobs/{JOB}/tasks": TASKS,
        f"GET /v1/jobs/{JOB}/events": stream,
        f"POST /v1/jobs/{JOB}:cancel": job("cancelled"),
        f"POST /v1/jobs/{JOB}:pause": job("paused"),
        f"POST /v1/jobs/{JOB}:resume": job("queued"),
        "GET /v1/workers": WORKERS,
        f"POST /v1/workers/{BOARD}/drain": {**WORKERS[0], "name": LONG},
        f"POST /v1/workers/{TWIN}/drain": {**WORKERS[1], "name": LONG, "in_hand": 0},
        "GET /v1/tokens": TOKENS,
        "POST /v1/tokens": made,
        "POST /v1/tokens/888/rotate": made,
        "DELETE /v1/tokens/909": {**TOKENS[3], "name": LONG},
        "GET /v1/audit": AUDIT,
        "POST /v1/schedules/lookup": lookup,
        "GET /v1/schedules:explain": ANSWER,
    }


class Canned(httpx2.BaseTransport):
    """Gives `answers`, and records the requests."""

    def __init__(self, answers: dict[str, Any], say: Callable[[str], None]) -> None:
        self._answers = answers
        self._say = say

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        asked = f"{request.method} {request.url.path}"
        self._say(f"> {request.method} {request.url.raw_path.decode()}")
        shown = ("authorization", "content-type", "content-length", "last-event-id")
        for name in shown:
            if name in request.headers:
                self._say(f">   {name}: {request.headers[name]}")
        body = request.read()
        if body:
            text = request.headers["content-type"] == "application/json"
            self._say(f">   {body.decode() if text else body}")
        found = self._answers.get(asked)
        if found is None:
            problem = {"type": "t", "title": "Not found", "status": 404, "detail": f"no {asked}"}
            return httpx2.Response(404, json=problem)
        if isinstance(found, str):
            headers = {"Content-Type": "text/event-stream"}
            return httpx2.Response(200, text=found, headers=headers)
        return httpx2.Response(200, json=found)
