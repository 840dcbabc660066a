"""A token sees only the jobs and models of its owner."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api.test_record_cache import TARGET, record
from tests.unit.service.api_calls import onnx_bytes, problem
from tests.unit.service.dashboard.test_pages import KEY, trial
from tests.unit.service.jobs.test_given_files import npz, rows
from tests.unit.service.pages import ORIGIN, opened, sign_in
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.service.cli import run as run_cli

WORKLOAD = "ab" * 32

JOB_PARTS = (
    *("", "/tasks", "/log", "/curve", "/events", "/graph", "/artifact"),
    *(f"/tasks/{WORKLOAD}/{part}" for part in ("nest", "code", "predictions")),
)


def header(storage: Storage, name: str, *scopes: Scope, **more: Any) -> dict[str, str]:
    secret, _ = storage.tokens.create(name, scopes, **more)
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def ada(anonymous: TestClient, storage: Storage) -> dict[str, Any]:
    """A job of Ada's; her model is called `ada.onnx`."""
    return job_of("ada", anonymous, storage)


def job_of(owner: str, anonymous: TestClient, storage: Storage) -> dict[str, Any]:
    """A job of an owner, who uploads the same bytes as all others and names them."""
    anonymous.headers.update(header(storage, owner, Scope.SUBMIT, Scope.READ))
    answer = anonymous.post("/v1/models", params={"name": f"{owner}.onnx"}, content=onnx_bytes())
    assert answer.status_code == 201, "new to this owner"
    made = anonymous.post("/v1/jobs", json={"model": answer.json()["digest"], "dims": {"batch": 2}})
    assert made.status_code == 201, made.text
    job: dict[str, Any] = made.json()
    return job


def test_jobs_and_models_of_others_do_not_exist(
    anonymous: TestClient, storage: Storage, ada: dict[str, Any]
) -> None:
    anonymous.headers.update(header(storage, "bob", Scope.SUBMIT, Scope.READ))
    job, model = f"/v1/jobs/{ada['id']}", f"/v1/models/{ada['model']}"
    refused = 404, "not-found", f"job '{ada['id']}' does not exist"
    for part in JOB_PARTS:
        assert problem(anonymous.get(job + part)) == refused, part
    for path in (model, f"{model}/content"):
        assert problem(anonymous.get(path))[2] == f"model '{ada['model']}' does not exist"
    for change in ("cancel", "pause", "resume"):
        assert problem(anonymous.post(f"{job}:{change}")) == refused
    assert problem(anonymous.get(job[:-20]))[0] == 404, "nor does the beginning of the id"
    for query in ("tasks", "trials"):
        assert problem(anonymous.get(f"/v1/{query}", params={"job": ada["id"]}))[0] == 404
    assert problem(anonymous.post("/v1/jobs", json={"model": ada["model"]}))[0] == 404
    for path in ("jobs", "models", "tasks"):
        assert anonymous.get(f"/v1/{path}").json() == []
    assert storage.jobs.get(ada["id"]).state.value == ada["state"]


def test_pages_show_an_owner_no_job_of_others(
    anonymous: TestClient, storage: Storage, ada: dict[str, Any]
) -> None:
    secret, _ = storage.tokens.create("bob", [Scope.SUBMIT, Scope.READ])
    sign_in(anonymous, secret)
    for path in ("jobs", "compare"):
        page = opened(anonymous, f"/dashboard/{path}")
        assert not {ada["id"], "ada.onnx"} & set(page.text.split())
        assert not [a for _, a in page.found if ada["id"] in str(a)]
    job = f"/dashboard/jobs/{ada['id']}"
    task = f"/tasks/{WORKLOAD}"
    graph = ("/graph", "/graph/drawing", "/graph/steps/0")
    tasks = (task, f"{task}/code", f"{task}/predictions")
    for part in ("", "/parts", "/events", "/artifact", *graph, *tasks):
        answer = anonymous.get(job + part)
        assert answer.status_code == 404, part
        assert f"job '{ada['id']}' does not exist" in unescape(answer.text), part
    assert anonymous.get("/dashboard/compare", params={"a": ada["id"]}).status_code == 404
    for change in ("cancel", "pause", "resume"):
        assert anonymous.post(f"{job}/{change}", headers=ORIGIN).status_code == 404
    assert storage.jobs.get(ada["id"]).state.value == ada["state"]


def test_a_lookup_by_model_is_the_owners(
    anonymous: TestClient, storage: Storage, ada: dict[str, Any]
) -> None:
    """Also where the same question of the owner's was answered before."""
    question = {"model": ada["model"], "target": TARGET, "dims": {"batch": 2}}
    asked = anonymous.post("/v1/schedules/lookup", json=question)
    assert asked.status_code == 200 and asked.json()["schedules"], asked.text
    anonymous.headers.update(header(storage, "bob", Scope.READ))
    assert problem(anonymous.post("/v1/schedules/lookup", json=question))[0] == 404


def test_a_job_is_given_samples_of_its_owner_alone(
    anonymous: TestClient, storage: Storage, ada: dict[str, Any]
) -> None:
    file = npz(x=rows(2))
    digest = anonymous.post("/v1/samples", content=file).json()["digest"]
    job_of("bob", anonymous, storage)
    body = {"model": ada["model"], "samples": [digest]}
    for sent in (body, {**body, "samples": [ada["model"]]}):
        status, _, detail = problem(anonymous.post("/v1/jobs", json=sent))
        assert (status, detail) == (404, f"samples '{sent['samples'][0]}' does not exist")
    assert anonymous.post("/v1/samples", content=file).status_code == 201
    made = anonymous.post("/v1/jobs", json=body)
    assert made.status_code == 201, made.text


def test_trials_and_records_are_everybodys_and_name_no_job_of_others(
    anonymous: TestClient, storage: Storage, ada: dict[str, Any]
) -> None:
    jobs = ("run", ada["id"])
    storage.records.add_trials([trial(number, job=job) for number, job in enumerate(jobs)])
    storage.ledger.propose(record(KEY.workload_key), ada["id"])
    stored = storage.ledger.list()[0].id
    lists = f"/v1/trials?workload={KEY.workload_key}", "/v1/records"

    def told(headers: dict[str, str]) -> list[list[str]]:
        found = [anonymous.get(path, headers=headers).json() for path in lists]
        found.append([anonymous.get(f"/v1/records/{stored}", headers=headers).json()])
        return [[one["job_id"] for one in each] for each in found]

    assert told(header(storage, "ada", Scope.READ)) == [[ada["id"], ""], [ada["id"]], [ada["id"]]]
    assert told(header(storage, "bob", Scope.READ)) == [["", ""], [""], [""]]
    assert told(header(storage, "root", Scope.ADMIN))[0] == [ada["id"], "run"]


def test_tokens_of_one_name_are_one_owners_and_admins_see_all(
    anonymous: TestClient, storage: Storage, ada: dict[str, Any]
) -> None:
    for seen in (
        header(storage, "ada", Scope.READ),
        header(storage, "auditor", Scope.READ, all_owners=True),
        header(storage, "root", Scope.ADMIN),
    ):
        assert anonymous.get(f"/v1/jobs/{ada['id']}", headers=seen).json()["owner"] == "ada"
        assert [each["id"] for each in anonymous.get("/v1/jobs", headers=seen).json()] == [
            ada["id"]
        ]
        content = anonymous.get(f"/v1/models/{ada['model']}/content", headers=seen)
        assert content.content == onnx_bytes()
    path = f"/v1/jobs/{ada['id']}"
    auditor = header(storage, "auditor", Scope.SUBMIT, all_owners=True)
    assert problem(anonymous.post(f"{path}:pause", headers=auditor))[0] == 403
    own = header(storage, "ada", Scope.SUBMIT)
    assert anonymous.post(f"{path}:cancel", headers=own).json()["state"] == "cancelled"


def test_a_job_shows_the_name_that_its_owner_gave_the_model(
    anonymous: TestClient, storage: Storage, ada: dict[str, Any]
) -> None:
    """The same bytes have another name for another owner."""
    assert job_of("bob", anonymous, storage)["model_name"] == "bob.onnx"
    every = anonymous.get("/v1/jobs", headers=header(storage, "root", Scope.ADMIN)).json()
    assert {job["owner"]: job["model_name"] for job in every} == {
        "ada": "ada.onnx",
        "bob": "bob.onnx",
    }


def test_the_command_and_the_route_take_the_same_names(
    client: TestClient, storage: Storage
) -> None:
    """A name is an owner: one that resembles another owner's name, or the name of the anonymous
    owner, is refused."""
    for name in ("", "ada ", "a\x1bda", "a" * 201):
        assert run_cli(["token", "create", name, "--scope", "read"]) == 1
        assert client.post("/v1/tokens", json={"name": name, "scopes": ["read"]}).status_code == 422
    assert [token.name for token in storage.tokens.list()] == ["owner"]


def test_the_command_and_the_route_make_tokens_that_see_everybody(
    client: TestClient, storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, sees in (([], "ci"), (["--all-owners"], None)):
        assert run_cli(["token", "create", "ci", "--scope", "read", *options]) == 0
        made = storage.tokens.verify(capsys.readouterr().out.strip())
        assert made is not None and made.sees == sees
    for all_owners in (False, True):
        body = {"name": "x", "scopes": ["read"], "all_owners": all_owners}
        assert client.post("/v1/tokens", json=body).json()["all_owners"] == all_owners
    assert storage.audit.list()[0].detail["all_owners"] is True
