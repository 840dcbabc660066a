"""Blobs over HTTP: the possible effects of an upload, and ranges."""

from __future__ import annotations

import random

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import onnx_bytes, problem, submit
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage


def test_the_bytes_of_an_artifact_uploaded_as_a_model_leave_the_artifact(
    client: TestClient, storage: Storage
) -> None:
    """They are not a model and are refused; the refusal deletes nothing that was there before."""
    job = submit(client)
    claimed = storage.jobs.claim("tuner", 30.0)
    assert claimed is not None
    claim, _ = claimed
    digest = storage.blobs.put(b"a tar file, and no model")
    storage.jobs.transition(claim, JobState.VERIFYING)
    storage.jobs.transition(claim, JobState.SUCCEEDED, artifact_digest=digest)
    refused = client.post("/v1/models", content=b"a tar file, and no model")
    assert problem(refused)[:2] == (422, "invalid-model")
    answer = client.get(f"/v1/jobs/{job['id']}/artifact")
    assert (answer.status_code, answer.content) == (200, b"a tar file, and no model")


DATA = random.Random(0).randbytes(100_000)


@pytest.mark.parametrize(
    ("asked", "status", "part", "content_range"),
    [
        ("bytes=0-", 206, DATA, "bytes 0-99999/100000"),
        ("bytes=99999-", 206, DATA[-1:], "bytes 99999-99999/100000"),
        ("bytes=10-19", 206, DATA[10:20], "bytes 10-19/100000"),
        ("bytes=10-999999999999", 206, DATA[10:], "bytes 10-99999/100000"),
        ("bytes=-7", 206, DATA[-7:], "bytes 99993-99999/100000"),
        ("bytes=-999999", 206, DATA, "bytes 0-99999/100000"),
        ("bytes=100000-", 416, None, "bytes */100000"),
        ("bytes=-0", 416, None, "bytes */100000"),
        ("bytes=9-3", 200, DATA, None),
        ("bytes=1-2,5-6", 200, DATA, None),
        ("bytes=-", 200, DATA, None),
        ("lines=1-2", 200, DATA, None),
        ("bytes=" + "9" * 30 + "-", 200, DATA, None),
    ],
)
def test_ranges(
    client: TestClient,
    storage: Storage,
    asked: str,
    status: int,
    part: bytes | None,
    content_range: str | None,
) -> None:
    digest = storage.blobs.put(DATA)
    answer = client.get(f"/v1/blobs/{digest}", headers={"Range": asked})
    assert answer.status_code == status
    assert answer.headers.get("content-range") == content_range
    if part is not None:
        assert answer.content == part
        assert answer.headers["content-length"] == str(len(part))
    else:
        assert problem(answer)[1] == "range-not-satisfiable"


def test_a_range_of_other_bytes_is_not_given(client: TestClient, storage: Storage) -> None:
    digest = storage.blobs.put(DATA)
    for tag, status in ((f'"{digest}"', 206), ('"of another file"', 200)):
        headers = {"Range": "bytes=5-", "If-Range": tag}
        assert client.get(f"/v1/blobs/{digest}", headers=headers).status_code == status


def test_the_names_of_files_are_told_as_they_are(client: TestClient) -> None:
    made = client.post("/v1/models", params={"name": 'né"t;.onnx'}, content=onnx_bytes())
    answer = client.get(f"/v1/models/{made.json()['digest']}/content")
    assert answer.content == onnx_bytes()
    said = answer.headers["content-disposition"]
    assert said == "attachment; filename*=utf-8''n%C3%A9%22t%3B.onnx"
