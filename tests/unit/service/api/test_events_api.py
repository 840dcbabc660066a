"""Streams of events over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import onnx_bytes, submit
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import JobProgress


def events_of(text: str) -> list[tuple[str, str, Any]]:
    """(id, event, data) of each server-sent event."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line[1:])
        if "data" in fields:
            found.append((fields["id"], fields["event"], json.loads(fields["data"])))
    return found


def finish(storage: Storage, steps: int = 3) -> None:
    claimed = storage.jobs.claim("t", 60)
    assert claimed is not None
    claim, _ = claimed
    for step in range(steps):
        storage.jobs.progress(claim, JobProgress(phase="tuning", trials_done=step))
    storage.jobs.transition(claim, JobState.FAILED, error="for the test")


def test_a_stream_replays_everything_and_ends_with_the_job(
    client: TestClient, storage: Storage
) -> None:
    job = submit(client)
    finish(storage)
    events = events_of(client.get(f"/v1/jobs/{job['id']}/events").text)
    assert [int(number) for number, _, _ in events] == list(range(1, len(events) + 1))
    progress = [data["data"]["trials_done"] for _, kind, data in events if kind == "progress"]
    assert progress == [0, 1, 2]
    assert (events[-1][1], events[-1][2]["data"]["state"]) == ("state", "failed")


def test_a_curve_has_points_wherever_they_lie_among_other_events(storage: Storage) -> None:
    job = storage.jobs.create(storage.models.add(onnx_bytes(), "tiny").digest, "host", "host-key")
    # the first event carries the state: those of progress all have odd numbers
    storage.events.append(job.id, [("task", {}), ("progress", {})] * 15)
    for most, count in ((100, 15), (5, 5), (4, 4), (2, 2)):
        found = storage.events.spread(job.id, "progress", most)
        assert len(found) == count and found[-1].sequence == 31
    assert storage.events.spread(job.id, "nothing", 5) == []


def test_a_stream_goes_on_after_the_last_event_that_came(
    client: TestClient, storage: Storage
) -> None:
    path = f"/v1/jobs/{submit(client)['id']}/events"
    finish(storage)
    everything = events_of(client.get(path).text)
    rest = client.get(path, headers={"Last-Event-ID": everything[2][0]})
    assert events_of(rest.text) == everything[3:]
    assert events_of(client.get(path, params={"after": 3}).text) == everything[3:]


def test_a_stream_brings_events_as_they_happen(server: Any, storage: Storage) -> None:
    """Over a socket: the test client would wait for the whole stream."""
    import urllib.request

    secret = server.settings.token_file.read_text().strip()
    digest = storage.models.add(onnx_bytes(), "tiny").digest
    job = storage.jobs.create(digest, "host", "host-key")
    request = urllib.request.Request(
        f"{server.url}/v1/jobs/{job.id}/events", headers={"Authorization": f"Bearer {secret}"}
    )
    with urllib.request.urlopen(request, timeout=10) as stream:
        assert b"state" in stream.readline()
        finish(storage)
        rest = stream.read()
    assert b"for the test" in rest or b"failed" in rest


def test_a_stream_ends_with_the_last_event_whenever_it_comes(
    client: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is written just after the stream looked, and more than one look brings."""
    job = submit(client)
    since, looks = type(storage.events).since, []

    def late(store: Any, *arguments: Any, **more: Any) -> Any:
        found = since(store, *arguments, **more)
        looks.append(len(found))
        if looks == [1, 0]:
            finish(storage, steps=700)
        return found

    monkeypatch.setattr(type(storage.events), "since", late)
    events = events_of(client.get(f"/v1/jobs/{job['id']}/events").text)
    assert len(events) == 1 + 1 + 700 + 1
    assert events[-1][2]["data"] == {"state": "failed", "error": "for the test"}
