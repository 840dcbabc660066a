"""The page that compares two jobs kernel by kernel."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.pages import HOSTILE, opened, sign_in
from tilewright.db.storage import Storage
from tilewright.db.stores.tasks import JobTask

SCHEDULE = {"algorithm": "direct", "choices": {"tile_m": 4, "order": HOSTILE}}


@pytest.fixture
def browser(anonymous: TestClient, owner: str) -> TestClient:
    assert sign_in(anonymous, owner).status_code == 303
    return anonymous


FLOPS = 1000.0


def tuned(
    storage: Storage, tasks: dict[str, tuple[str, float]], runs: float = 2.0, **options: Any
) -> str:
    """A job whose tasks have these names, best times and numbers of runs."""
    model = storage.models.add(b"model", HOSTILE)
    job = storage.jobs.create(model.digest, "host", "host-key", options=options)
    claimed = storage.jobs.claim("tuner", 60.0)
    assert claimed is not None
    storage.tasks.put(
        claimed[0],
        [
            JobTask(
                digit * 64,
                name,
                2,
                runs * FLOPS,
                best_seconds=seconds,
                facts={
                    "schedule": {**SCHEDULE, "choices": {"tile_m": int(1e6 * seconds)}},
                    "flops": FLOPS,
                },
            )
            for digit, (name, seconds) in tasks.items()
        ],
    )
    return job.id


def words(browser: TestClient, path: str) -> str:
    """The text of a page that is safe, with a space where an element begins or ends."""
    opened(browser, path)
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", browser.get(path).text)).split())


def test_two_precisions_of_a_model(browser: TestClient, storage: Storage) -> None:
    a = tuned(storage, {"1": ("conv", 4e-6), "2": (HOSTILE, 1e-6), "3": ("pool", 2e-6)})
    b = tuned(
        storage,
        {"4": ("conv", 1e-6), "2": (HOSTILE, 1e-6), "5": ("add", 9e-6)},
        precision="bfloat16",
    )
    path = f"/dashboard/compare?a={a}&b={b}"
    text = words(browser, path)
    assert not re.search(r"<th [^>]*></th>", browser.get(path).text), "every header has a text"
    assert "precision float32 bfloat16" in text
    assert "conv (alike) 2 4.0 1.0 4.00x 6.0 direct tile_m=4>1" in text
    assert f"{HOSTILE} 2 1.0 1.0 1.00x 0.0 the same" in text
    assert "pool - > 2" not in text and "pool 2 > - 2.0 - - - only in A: direct" in text
    assert f"tilewright diff {a} {b} --server http://testserver" in text
    links = [each["href"] for each in opened(browser, path).named("a")]
    assert f"/dashboard/jobs/{a}/tasks/{'1' * 64}" in links
    assert f"/dashboard/jobs/{b}/tasks/{'4' * 64}" in links
    few = words(browser, f"{path}&rows=1")
    assert "Show more of 4 kernels" in few and "only in A" not in few


def test_kernels_of_open_sizes_count_at_their_share_of_the_runs(
    browser: TestClient, storage: Storage
) -> None:
    a, b = (tuned(storage, {"1": ("conv", t)}, runs=0.25) for t in (4e-3, 2e-3))
    text = words(browser, f"/dashboard/compare?a={a}&b={b}")
    assert "A run of A 1.000 ms A run of B 0.500 ms" in text
    assert "conv 2 4,000.0 2,000.0 2.00x 500.0" in text


def test_what_there_is_to_choose_from(browser: TestClient, storage: Storage) -> None:
    assert "Choose two jobs" in opened(browser, "/dashboard/compare").text
    jobs = [tuned(storage, {}) for _ in range(2)]
    storage.jobs.create(storage.models.add(b"other", "other").digest, "host", "host-key")
    seen = opened(browser, f"/dashboard/compare?b={jobs[0]}")
    offered = [each.get("value") for each in seen.named("option")]
    assert set(offered[1:3]) == set(jobs), "those of the same model first"
    chosen = [each["value"] for each in seen.named("option") if "selected" in each]
    assert chosen == [jobs[0]]
    none = opened(browser, f"/dashboard/compare?a={jobs[0]}&b={jobs[0]}")
    assert "Neither job has tasks yet" in none.text
    for wrong, status in (("none", 404), ("x" * 65, 422), (HOSTILE, 404)):
        answer = browser.get("/dashboard/compare", params={"a": wrong, "b": jobs[0]})
        assert answer.status_code == status and "<img src=x" not in answer.text
