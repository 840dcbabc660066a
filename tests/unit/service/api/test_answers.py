"""Lookups that were answered before: the same bytes, without the framework, and never old ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api.test_record_cache import TARGET, record
from tests.unit.service.api_calls import upload
from tests.unit.service.conftest import with_scopes
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.app import create_app
from tilewright.service.api.conditional import JsonAnswer
from tilewright.service.api.routes import schedules
from tilewright.service.settings import Settings

WORKLOAD = "a" * 64
SINGLE = f"/v1/schedules?workload={WORKLOAD}&target={TARGET}"
BULK = {"workloads": [WORKLOAD, "b" * 64], "target": TARGET}


class Made:
    """How many answers the framework's routes made."""

    count = 0


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    counted = Made()

    class Counting(JsonAnswer):
        @classmethod
        def plain(cls, content: bytes) -> JsonAnswer:
            counted.count += 1
            return JsonAnswer.plain(content)

        @classmethod
        def tagged(cls, content: bytes) -> JsonAnswer:
            counted.count += 1
            return JsonAnswer.tagged(content)

    monkeypatch.setattr(schedules, "JsonAnswer", Counting)
    yield counted


def ask(client: TestClient, which: str, **headers: str) -> Any:
    if which == "single":
        return client.get(SINGLE, headers=headers)
    return client.post("/v1/schedules/lookup", json=BULK, headers=headers)


@pytest.mark.parametrize("which", ["single", "bulk"])
def test_a_question_is_worked_on_once(
    client: TestClient, storage: Storage, made: Made, which: str
) -> None:
    storage.records.add_record(record(WORKLOAD))
    first = ask(client, which)
    assert first.status_code == 200 and made.count == 1
    storage.tokens.create("other", [Scope.READ])  # no lookup is answered otherwise after that
    again = ask(client, which)
    assert again.content == first.content and made.count == 1
    del first.headers["x-request-id"], again.headers["x-request-id"]
    assert again.headers == first.headers
    storage.records.add_record(record("c" * 64))  # nor after that
    assert ask(client, which).content == first.content and made.count == 1
    storage.records.add_record(record(WORKLOAD, 5e-6))
    changed = ask(client, which)
    assert changed.content != first.content and made.count == 2


def test_a_known_answer_is_304_for_who_has_it(
    client: TestClient, storage: Storage, made: Made
) -> None:
    storage.records.add_record(record(WORKLOAD))
    tag = ask(client, "single").headers["ETag"]
    unchanged = ask(client, "single", **{"If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert ask(client, "single", **{"If-None-Match": '"other"'}).status_code == 200
    assert made.count == 1


@pytest.mark.parametrize("which", ["single", "bulk"])
def test_what_is_known_is_told_to_nobody_without_a_token(
    client: TestClient, storage: Storage, which: str
) -> None:
    storage.records.add_record(record(WORKLOAD))
    assert ask(client, which).status_code == 200
    for header in ({"Authorization": "Bearer x"}, with_scopes(storage, Scope.MEASURE)):
        assert ask(client, which, **header).status_code in (401, 403)


def test_another_question_is_another_answer(client: TestClient, storage: Storage) -> None:
    """In any byte, and by the kind of its body."""
    storage.records.add_record(record(WORKLOAD))
    assert ask(client, "bulk").json()["threads"] == 1
    other = client.post("/v1/schedules/lookup", json={**BULK, "threads": 2}).json()
    assert (other["threads"], other["known"]) == (2, 0)
    assert ask(client, "single").status_code == 200
    assert client.get(SINGLE + "&threads=2").status_code == 404
    body = client.build_request("POST", "/v1/schedules/lookup", json=BULK).content
    plain = {"Content-Type": "text/plain"}
    refused = client.post("/v1/schedules/lookup", content=body, headers=plain)
    assert refused.status_code == 422


def test_what_is_refused_is_not_kept(client: TestClient, storage: Storage, made: Made) -> None:
    assert ask(client, "single").status_code == 404
    storage.records.add_record(record(WORKLOAD))
    assert ask(client, "single").status_code == 200


def test_what_a_workers_name_means_is_asked_each_time(
    client: TestClient, storage: Storage, made: Made
) -> None:
    """The worker may be another one tomorrow."""
    storage.records.add_record(record(WORKLOAD))
    storage.workers.register("pi", [TARGET], {})
    for path in (SINGLE.replace(TARGET, "pi"), SINGLE.replace(TARGET, "x86-64-v3")):
        for _ in range(2):
            assert client.get(path).status_code == 200
    assert made.count == 3, "a described target is the same one for ever"
    for target, answers in (("pi", 2), ("x86-64-v3", 1)):
        made.count = 0
        for _ in range(2):
            body = {**BULK, "target": target}
            assert client.post("/v1/schedules/lookup", json=body).json()["known"] == 1
        assert made.count == answers


def test_a_lookup_by_model_is_of_the_model_and_the_records(
    client: TestClient, storage: Storage, made: Made
) -> None:
    body: dict[str, Any] = {"model": upload(client), "dims": {"batch": 2}}
    body["target"] = "x86-64-v3"

    def known() -> int:
        answer = client.post("/v1/schedules/lookup", json=body)
        assert answer.status_code == 200
        return int(answer.json()["known"])

    assert known() == known() == 0 and made.count == 1
    entry = client.post("/v1/schedules/lookup", json=body).json()["schedules"][0]
    storage.records.add_record(record(entry["workload_key"]))
    assert known() == known() == 1 and made.count == 2


def test_what_is_kept_is_bounded(client: TestClient, storage: Storage, made: Made) -> None:
    storage.records.add_record(record(WORKLOAD))
    bytes_of_one = len(ask(client, "single").content)
    answers = client.app.state.answers  # type: ignore[attr-defined]
    answers._kept.limit = 2 * bytes_of_one + 1000
    for _ in range(2):
        for number in range(4):
            client.get(f"{SINGLE}&numerics=fast&unknown={number}")
    assert len(answers._kept) == 2
    assert 2 * bytes_of_one < answers._kept.size <= answers._kept.limit
    storage.records.add_record(record(WORKLOAD, 5e-6))
    assert client.get(SINGLE.replace(WORKLOAD, "b" * 64)).status_code == 404
    assert (len(answers._kept), answers._kept.size) == (0, 0)


def test_replicas_hear_of_each_others_records(
    settings: Settings, storage: Storage, owner: str
) -> None:
    header = {"Authorization": f"Bearer {owner}"}
    with TestClient(create_app(settings, storage)) as one, TestClient(create_app(settings)) as two:
        for client in (one, two):
            client.headers.update(header)
        for seconds in (1e-5, 9e-6, 8e-6):
            storage.records.add_record(record(WORKLOAD, seconds))
            for client in (one, two, one, two):
                assert ask(client, "single").json()["run_seconds"] == seconds
