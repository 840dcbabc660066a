"""Content that a client already has is not sent to it again."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import onnx_bytes, upload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.storage import Storage
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord

KEY = RecordKey("a" * 64, "b" * 64, 1, "fast")


def paths(client: TestClient, storage: Storage) -> list[str]:
    """Of a schedule, its record, and its workload."""
    measurement = Measurement(Status.OK, samples_seconds=(1e-3, 2e-3), worker="w")
    storage.records.add_record(TuningRecord(KEY, Schedule("gemm", (("n", 1),)), measurement, "t"))
    storage.workloads.put_workloads({KEY.workload_key: "text"})
    (stored,) = client.get("/v1/records").json()
    query = f"workload={KEY.workload_key}&target={KEY.target_key}"
    return [
        f"/v1/schedules?{query}",
        f"/v1/records/{stored['id']}",
        f"/v1/workloads/{KEY.workload_key}",
    ]


def test_a_known_answer_is_304(client: TestClient, storage: Storage) -> None:
    for path in paths(client, storage):
        first = client.get(path)
        tag = first.headers["ETag"]
        assert first.status_code == 200 and first.json()
        for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = client.get(path, headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b""), (path, known)
            assert again.headers["ETag"] == tag
        for other in ('"other"', tag.strip('"'), "", f"{tag[:-2]}"):
            assert client.get(path, headers={"If-None-Match": other}).content == first.content


def test_a_record_that_changes_has_another_tag(client: TestClient, storage: Storage) -> None:
    _, path, _ = paths(client, storage)
    tag = client.get(path).headers["ETag"]
    storage.ledger.withdraw("a bad device", record_ids=[path.rpartition("/")[2]])
    changed = client.get(path, headers={"If-None-Match": tag})
    assert changed.status_code == 200 and changed.json()["state"] == "withdrawn"
    assert changed.headers["ETag"] != tag


def test_what_is_gone_is_404_whatever_the_client_has(client: TestClient, storage: Storage) -> None:
    schedule, path, _ = paths(client, storage)
    tag = client.get(schedule).headers["ETag"]
    storage.ledger.withdraw("a bad device", record_ids=[path.rpartition("/")[2]])
    for known in (tag, "*"):
        assert client.get(schedule, headers={"If-None-Match": known}).status_code == 404


@pytest.mark.parametrize("known", ['"{}"', 'W/"{}"', "*"])
def test_a_file_that_the_client_has_is_304(client: TestClient, known: str) -> None:
    digest = upload(client)
    path = f"/v1/models/{digest}/content"
    again = client.get(path, headers={"If-None-Match": known.format(digest)})
    assert (again.status_code, again.content) == (304, b"")
    other = client.get(path, headers={"If-None-Match": '"other"'})
    assert other.content == onnx_bytes()
