"""Models over HTTP."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import onnx_bytes, problem, upload
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.storage import Storage
from tilewright.db.stores.blob_bytes import Staging
from tilewright.service.api.app import create_app
from tilewright.service.settings import Settings


def test_a_model_is_named_by_its_bytes(client: TestClient) -> None:
    data = onnx_bytes()
    first = client.post("/v1/models", params={"name": "a.onnx"}, content=data)
    second = client.post("/v1/models", params={"name": "b.onnx"}, content=data)
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json() == first.json()  # also its first name
    digest = first.json()["digest"]
    assert client.get(f"/v1/models/{digest}/content").content == data
    assert [model["digest"] for model in client.get("/v1/models").json()] == [digest]


@pytest.mark.parametrize(
    "data", [b"", b"not a model at all", b"\x00\xff" * 500, onnx_bytes()[:-40]]
)
def test_what_is_no_model_is_refused_and_not_kept(
    client: TestClient, storage: Storage, data: bytes
) -> None:
    answer = client.post("/v1/models", params={"name": "bad.onnx"}, content=data)
    status, slug, detail = problem(answer)
    assert (status, slug) == (422, "invalid-model")
    assert "bad.onnx" in detail
    assert list(storage.blobs.digests()) == []


def test_a_model_that_is_too_large_is_refused_with_and_without_a_length(
    settings: Settings, storage: Storage, owner: str
) -> None:
    small = settings.model_copy(update={"max_model_bytes": 1000})
    with TestClient(create_app(small, storage)) as client:
        client.headers["Authorization"] = f"Bearer {owner}"
        told = client.post("/v1/models", content=b"x" * 1001)
        streamed = client.post("/v1/models", content=iter([b"x" * 600, b"x" * 600]))
    for answer in (told, streamed):
        assert problem(answer)[:2] == (413, "too-large")
    assert list(storage.blobs.digests()) == []


def test_a_body_that_is_too_large_is_refused(
    settings: Settings, storage: Storage, owner: str
) -> None:
    small = settings.model_copy(update={"max_body_bytes": 1000})
    with TestClient(create_app(small, storage)) as client:
        client.headers["Authorization"] = f"Bearer {owner}"
        told = client.post("/v1/jobs", json={"model": "x" * 2000})
        streamed = client.post("/v1/jobs", content=iter([b"{" + b" " * 800, b" " * 800]))
    for answer in (told, streamed):
        assert problem(answer)[:2] == (413, "too-large")


def test_a_full_disk_is_507(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("no space is left for blobs", StorageKind.FULL)

    monkeypatch.setattr(Staging, "write", full)
    assert problem(client.post("/v1/models", content=onnx_bytes()))[:2] == (
        507,
        "insufficient-storage",
    )
    assert list(storage.blobs.place.staging.iterdir()) == []


def test_programs_are_told_what_an_upload_is_made_of(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    body = described["paths"]["/v1/models"]["post"]["requestBody"]
    assert body["required"] and list(body["content"]) == ["application/octet-stream"]
    fields = described["components"]["schemas"]["JobRequest"]["properties"]
    assert fields["target"]["default"] == "host" and fields["threads"]["default"] == 1
    tags = {
        tag for path in described["paths"].values() for way in path.values() for tag in way["tags"]
    }
    assert "jobs" in tags and tags == {tag.lower() for tag in tags}


def test_the_data_folder_holds_what_was_uploaded(settings: Settings, client: TestClient) -> None:
    upload(client)
    files = [p for p in Path(settings.blob_folder).rglob("*") if p.is_file()]
    assert len(files) == 1
    assert time.time() - files[0].stat().st_mtime < 60
