"""A few requests of each operation, without a token and with each scope: no 5xx, no surprise."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tilewright.db.storage import Storage
from tilewright.service.api.app import create_app
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage

pytest.importorskip("schemathesis")

from benchmarks.rest_fuzz import fuzz


def test_requests_of_every_kind_are_answered(tmp_path: Path) -> None:
    settings = Settings(data_folder=tmp_path, long_poll_seconds=0.1)
    storage = open_storage(settings)
    try:
        found = fuzz(create_app(settings, storage), storage, examples=2)
    finally:
        storage.close()
    assert found.wrong == []
    assert {200, 401, 403, 404, 422} <= found.statuses.keys()


def test_a_server_error_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise RuntimeError("a bug")

    settings = Settings(data_folder=tmp_path, long_poll_seconds=0.1)
    storage: Storage = open_storage(settings)
    monkeypatch.setattr(type(storage.trials), "list", broken)
    try:
        with capture_logs():  # each error with all locals of its stack takes a second to print
            found = fuzz(create_app(settings, storage), storage, examples=10, path="/v1/trials")
    finally:
        storage.close()
    assert found.wrong and all("GET /v1/trials" in line for line in found.wrong)
