"""Lists over HTTP, and the rows that a job leaves: tasks, trials, workloads, targets, devices."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import problem, submit
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.db.stores.audit import Action
from tilewright.db.stores.tasks import JobTask, TaskStatus
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.app import create_app
from tilewright.service.client import Client
from tilewright.service.settings import Settings
from tilewright.tuner.protocol.measurement import (
    Measurement,
    RecordKey,
    Status,
    Trial,
    TuningRecord,
)

TOKEN = "X-Next-Page-Token"
KEY = RecordKey("1" * 64, "2" * 64, 1, "fast")


def follow(client: TestClient, path: str, limit: int) -> list[list[Any]]:
    """The pages of a list, by their links."""
    pages, url = [], f"{path}{'&' if '?' in path else '?'}limit={limit}"
    while url:
        answer = client.get(url)
        assert answer.status_code == 200, answer.text
        pages.append(answer.json())
        assert (TOKEN in answer.headers) == ("next" in answer.links)
        url = answer.links["next"]["url"] if answer.links else ""
    return pages


def test_jobs_come_page_by_page(client: TestClient) -> None:
    made = [submit(client, seed=seed)["id"] for seed in range(5)]
    pages = follow(client, "/v1/jobs", 2)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [job["id"] for page in pages for job in page] == made[::-1]
    filtered = follow(client, "/v1/jobs?state=queued", 3)
    assert [len(page) for page in filtered] == [3, 2]
    assert "state=queued" in client.get("/v1/jobs?state=queued&limit=1").headers["Link"]


SUMMARIES = {"/v1/records:coverage"}
"""As long as there are operators and targets: not rows that a busy service adds by the million."""


def lists(client: TestClient) -> list[str]:
    paths = client.get("/openapi.json").json()["paths"]
    return [
        path
        for path, verbs in paths.items()
        if path not in SUMMARIES
        and verbs.get("get", {})
        .get("responses", {})
        .get("200", {})
        .get("content", {})
        .get("application/json", {})
        .get("schema", {})
        .get("type")
        == "array"
    ]


def test_every_list_has_pages(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    found = lists(client)
    assert len(found) >= 12
    for path in found:
        names = {each["name"] for each in paths[path]["get"]["parameters"]}
        assert {"limit", "page_token"} <= names, path


LISTS = {
    "/v1/audit": 3,
    "/v1/cost-models": 3,
    "/v1/jobs": 3,
    "/v1/jobs/{job_id}/log": 3,
    "/v1/jobs/{job_id}/tasks": 3,
    "/v1/models": 3,
    "/v1/records": 3,
    "/v1/targets": 3,
    "/v1/tasks": 3,
    "/v1/tokens": 4,
    "/v1/trials?job=j": 3,
    "/v1/workers": 3,
    "/v1/workloads": 3,
}
"""Every list, and the number of rows that `fill` puts into it; the owner has a token, too."""


def fill(storage: Storage) -> str:
    """Three of everything; returns the id of the job that has tasks."""
    measured = Measurement(Status.OK, samples_seconds=(1e-3,), worker="w")
    for number in range(3):
        digit = str(number)
        model = storage.models.add(digit.encode(), f"m{number}")
        storage.jobs.create(model.digest, "host", "host-key")
        storage.workers.register(f"w{number}", [], {})
        storage.tokens.create(f"t{number}", [Scope.READ])
        storage.workloads.put_workloads({digit * 64: f"workload {number}"})
        storage.workloads.put_target(digit * 64, f"target {number}", {})
        schedule = Schedule.of("gemm", n=number)
        record = TuningRecord(RecordKey(digit * 64, "2" * 64), schedule, measured, digit, "4", "0")
        storage.records.add_record(record)
        storage.audit.add(Action.JOB_CANCELLED, digit, actor="", actor_name="", origin="")
        figures = {"feature_version": 1, "rows": 7, "tasks": 3, "trials": 5}
        scores = {"pairwise": 0.9}
        storage.cost_models.add(
            "2" * 64, b"model", objective="rank", scores=scores, chance=scores, **figures
        )
    storage.records.add_trials([trial(number) for number in range(3)])
    found = storage.jobs.claim("tuner", 30)
    assert found is not None
    storage.tasks.put(found[0], [JobTask(digit * 64, digit, 1, 1.0) for digit in "123"])
    return found[0].job_id


def test_every_list_goes_on_from_page_to_page(client: TestClient, storage: Storage) -> None:
    """No entry twice, none left out, and no page is longer than requested."""
    job_id = fill(storage)
    assert {path.partition("?")[0] for path in LISTS} == set(lists(client))
    for path, count in LISTS.items():
        pages = follow(client, path.replace("{job_id}", job_id), 2)
        assert [len(page) for page in pages] == [2, 2] if count == 4 else [2, 1], path
        whole = client.get(path.replace("{job_id}", job_id)).json()
        together = [one for page in pages for one in page]
        for one in (*whole, *together):
            one.pop("last_used_at", None)  # it is used by these questions
        assert together == whole, path


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "\u00e9",
        "%FF",
        base64.urlsafe_b64encode(b"[]").decode(),
        base64.urlsafe_b64encode(b"[" * 2000).decode(),
        base64.urlsafe_b64encode(json.dumps({"a": 1}).encode()).decode(),
        base64.urlsafe_b64encode(json.dumps(["jobs", 1.0, "x"]).encode()).decode(),
    ],
)
def test_a_wrong_token_is_refused(client: TestClient, token: str) -> None:
    for path in ("/v1/jobs", "/v1/tokens", "/v1/audit"):
        answer = client.get(path, params={"page_token": token})
        assert problem(answer)[:2] == (422, "invalid-page-token")


def test_a_token_is_of_one_list_and_its_filters(client: TestClient) -> None:
    for seed in range(2):
        submit(client, seed=seed)
    token = client.get("/v1/jobs", params={"limit": 1}).headers[TOKEN]
    assert len(client.get("/v1/jobs", params={"page_token": token}).json()) == 1
    for other in ("/v1/models", "/v1/jobs?state=queued"):
        answer = client.get(f"{other}{'&' if '?' in other else '?'}page_token={token}")
        assert problem(answer)[:2] == (422, "invalid-page-token")


@pytest.mark.parametrize("position", [[1e400, "a"], [10**400, "a"], [1.0], [None, {}], ["a", "b"]])
def test_a_position_that_was_made_up_is_refused(client: TestClient, position: list[Any]) -> None:
    """A forged position can lead only to another page."""
    for seed in range(2):
        submit(client, seed=seed)
    token = client.get("/v1/jobs", params={"limit": 1}).headers[TOKEN]
    name, *_ = json.loads(base64.urlsafe_b64decode(token + "=="))
    forged = base64.urlsafe_b64encode(json.dumps([name, *position]).encode()).decode()
    answer = client.get("/v1/jobs", params={"page_token": forged})
    assert problem(answer)[:2] == (422, "invalid-page-token")


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", ""])
def test_limits_are_bounded(client: TestClient, limit: str) -> None:
    assert client.get("/v1/workers", params={"limit": limit}).status_code == 422


def test_the_client_gets_the_whole_list(
    settings: Settings, storage: Storage, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.service.client.blocking.connection.PAGE", 2)
    for number in range(5):
        storage.workers.register(f"w{number}", [], {})
        storage.tokens.create(f"t{number}", [Scope.READ])
    with (
        TestClient(create_app(settings, storage)) as web,
        Client("http://service", owner, transport=web._transport) as client,  # type: ignore[arg-type]
    ):
        assert [worker.name for worker in client.workers()] == [f"w{n}" for n in range(5)]
        assert len(client.tokens()) == 6
        assert client.audit(3, None, None) == []
        for seed in range(4):
            submit_to(web, owner, seed)
        assert len(client.jobs(limit=3)) == 3


def submit_to(web: TestClient, owner: str, seed: int) -> None:
    web.headers["Authorization"] = f"Bearer {owner}"
    submit(web, seed=seed)


# ---- the rows that a job leaves


def trial(number: int, status: Status = Status.OK, job: str = "j", origin: str = "seed") -> Trial:
    samples = (1e-3,) if status is Status.OK else ()
    return Trial(
        f"{number:032x}",
        KEY,
        Schedule("gemm", (("n", number),)),
        Measurement(status, samples_seconds=samples, worker="w"),
        job_id=job,
        origin=origin,
    )


def test_trials_of_a_job_or_of_a_workload(client: TestClient, storage: Storage) -> None:
    storage.records.add_trials(
        [trial(1), trial(2, Status.CRASH, origin="default"), trial(3), trial(4, job="other")]
    )
    assert problem(client.get("/v1/trials"))[:2] == (422, "invalid-request")

    def ids(**wanted: str) -> list[int]:
        found = client.get("/v1/trials", params=wanted).json()
        return [int(one["id"], 16) for one in found]

    assert ids(job="j") == [3, 2, 1]
    assert ids(workload=KEY.workload_key) == [4, 3, 2, 1]
    assert ids(job="j", status="crash") == ids(job="j", origin="default") == [2]
    assert ids(job="j", worker="nobody") == ids(workload="3" * 64) == []
    assert ids(job="j", target=KEY.target_key) == [3, 2, 1]
    assert ids(job="j", target="3" * 64) == []
    (crash,) = client.get("/v1/trials", params={"job": "j", "status": "crash"}).json()
    assert (crash["run_seconds"], crash["origin"], crash["job_id"]) == (None, "default", "j")
    pages = follow(client, "/v1/trials?job=j", 2)
    assert [len(page) for page in pages] == [2, 1]


def test_withdrawn_trials_are_shown_as_such(client: TestClient, storage: Storage) -> None:
    storage.records.add_trials([trial(1)])
    storage.ledger.withdraw("a bad device", workers=["w"])
    (shown,) = client.get("/v1/trials", params={"job": "j"}).json()
    assert shown["withdrawn"] is True


def test_tasks_of_all_jobs(client: TestClient, storage: Storage) -> None:
    jobs = [submit(client, seed=seed)["id"] for seed in range(2)]
    for status, key in ((TaskStatus.TUNED, "1" * 64), (TaskStatus.FAILED, "2" * 64)):
        claimed = storage.jobs.claim("tuner", 30)
        assert claimed is not None
        tasks = [JobTask(key, "a", 1, 1.0, status), JobTask("3" * 64, "b", 2, 1.0)]
        storage.tasks.put(claimed[0], tasks)

    def found(**wanted: str) -> list[tuple[str, str]]:
        answer = client.get("/v1/tasks", params=wanted).json()
        return [(task["job_id"], task["name"]) for task in answer]

    assert found() == [(job, name) for job in sorted(jobs) for name in "ab"]
    assert found(job=jobs[0]) == [(jobs[0], "a"), (jobs[0], "b")]
    assert [name for _, name in found(workload="3" * 64)] == ["b", "b"]
    assert len(found(status="failed")) == 1
    assert [len(page) for page in follow(client, "/v1/tasks", 3)] == [3, 1]
    assert [len(page) for page in follow(client, f"/v1/jobs/{jobs[0]}/tasks", 1)] == [1, 1]


def test_workloads_and_targets_are_listed(client: TestClient, storage: Storage) -> None:
    storage.workloads.put_workloads({"a" * 64: "one", "b" * 64: "two"})
    workloads = client.get("/v1/workloads").json()
    assert {(one["key"], one["text"]) for one in workloads} == {
        ("a" * 64, "one"),
        ("b" * 64, "two"),
    }
    target = resolve_target("x86-64-v3")
    storage.workloads.put_target(target.key, target.name, target.to_json())
    (shown,) = client.get("/v1/targets").json()
    assert (shown["key"], shown["name"]) == (target.key, "x86-64-v3")
    assert shown["description"] == target.to_json()
