"""The losses that a chaos run reports, and those that it must not report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chaos_checks import check
from tests.databases import lay_database
from tests.unit.service.jobs.test_remote_runner import make, runner, work
from tilewright.db.storage import Storage
from tilewright.service.jobs.evidence.weak_records import AGAIN
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    lay_database(tmp_path)
    opened = open_storage(Settings(data_folder=tmp_path))
    yield opened
    opened.close()


def test_what_is_measured_again_without_a_job_is_not_lost(storage: Storage) -> None:
    remote = runner(storage, f"{AGAIN}1")
    remote.submit(*make("known"))
    remote.poll(0.0)
    assert work(storage) == ["known"]
    (worker,) = storage.workers.list()
    assert check(storage, [], {worker.id: Counter(["known"])}, set()).wrong == []
    ((name, why),) = [
        wrong.split(", ", 1)
        for wrong in check(storage, [], {worker.id: Counter(["known", "gone"])}, set()).wrong
    ]
    assert name == "request gone" and "was lost" in why
