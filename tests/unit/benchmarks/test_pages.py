"""The requests of `benchmarks.pages`: against a small one of its databases, without a socket."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from benchmarks import pages, pages_database
from benchmarks.pages_database import Known, Size, fill
from benchmarks.service_load_server import settings_of
from tests.databases import lay_database
from tilewright.service.api.app import create_app
from tilewright.service.dashboard.session import COOKIE
from tilewright.service.storage import open_storage

SMALL = Size(trials=400, records=30, jobs=50, workers=3, requests=5, tokens=2, audit=2)


def test_every_route_is_asked_or_named() -> None:
    known = Known(*"abcdefghijk")
    asked, left = pages.places(known)
    assert set(left) == set(pages.NOT_ASKED), "a route has a parameter that no value is known of"
    assert set(pages.NOT_ASKED) < set(pages.routes()) and set(pages.QUERIES) < set(pages.routes())
    assert len(asked) > 60 and len(set(asked)) == len(asked)


def test_what_is_asked_of_the_database_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_database, "TEMPLATES", 20)
    monkeypatch.setattr(pages_database, "COST_MODELS", 2)
    lay_database(tmp_path)
    url = f"sqlite:///{tmp_path}/tilewright.db"
    known = fill(url, tmp_path, SMALL)
    settings = settings_of(url, tmp_path)
    storage = open_storage(settings)
    counts = storage.records.count_trials(known.job_id)
    assert sum(counts.values()) == SMALL.trials // 10
    assert len(storage.jobs.list(limit=1000)) == SMALL.jobs
    with TestClient(create_app(settings, storage)) as client:
        client.headers["Authorization"] = f"Bearer {known.token}"
        client.cookies.set(COOKIE, known.token)
        for place in pages.places(known)[0]:
            # a model is planned or a kernel compiled for these, which takes seconds
            if re.search("/(graph|code|predictions)", place):
                continue
            answer = client.get(place, follow_redirects=False)
            assert answer.status_code < 400, (place, answer.text)
    storage.close()
