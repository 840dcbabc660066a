"""Where a service keeps its blobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.buckets import serve_bucket, use_bucket
from tilewright.service.settings import Settings, default_data_folder
from tilewright.service.storage import open_storage


def test_tests_do_not_use_the_data_folder_of_the_user() -> None:
    default = Settings()
    assert not default.data_folder.is_relative_to(default_data_folder())
    assert (default.database_url, default.blob_url) == ("", "")


def test_the_setting_names_the_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_bucket() as server:
        url = use_bucket(server, monkeypatch)
        settings = Settings(data_folder=tmp_path / "data", database_url="", blob_url=url)
        for _ in range(2):  # one process reads the bytes that another one saved
            storage = open_storage(settings)
            digest = storage.blobs.put(b"in the bucket")
            assert storage.blobs.get(digest) == b"in the bucket"
            storage.close()
    assert [each for each in settings.blob_folder.rglob("*") if each.is_file()] == []
