"""The pages of jobs: their display of a job, whoever wrote it, and their actions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import onnx_bytes
from tests.unit.service.pages import HOSTILE, ORIGIN, opened, sign_in
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import JobClaim, JobProgress
from tilewright.db.stores.tasks import JobTask
from tilewright.db.stores.tokens import Scope
from tilewright.service.dashboard.job_pages import MOST_ROWS, ROWS

ENDED = {
    "ended": "trials",
    "device": {"name": HOSTILE, "facts": {"model": HOSTILE}},
    "end_to_end": {
        "served": "tuned", "outcome": "faster", "dropped": [], "reason": HOSTILE, "device": "",
        "comparison": {"ratio": 0.75, "low": 0.7, "high": 0.8},
    },
}  # fmt: skip


@pytest.fixture
def browser(anonymous: TestClient, owner: str) -> TestClient:
    """A client that is signed in."""
    assert sign_in(anonymous, owner).status_code == 303
    return anonymous


@pytest.fixture
def claim(storage: Storage) -> Iterator[JobClaim]:
    """A running job of a model with a hostile name, made by a token with one."""
    _, token = storage.tokens.create(HOSTILE, [Scope.SUBMIT])
    model = storage.models.add(onnx_bytes(), HOSTILE)
    storage.jobs.create(
        model.digest, HOSTILE, "host-key", owner=token.id, options={"trials": 40, "target_ms": 1.5}
    )
    claimed = storage.jobs.claim("tuner", 60.0)
    assert claimed is not None
    yield claimed[0]


def task(number: int, **more: object) -> JobTask:
    values = {"workload_key": f"{number:064x}", "name": f"conv {number}", "count": 2, "weight": 2.0}
    return JobTask(**{**values, **more})  # type: ignore[arg-type]


def test_without_jobs_the_list_says_how_to_make_one(browser: TestClient) -> None:
    text = opened(browser, "/dashboard/jobs").text
    assert "No job yet" in text
    assert "tilewright job submit model.onnx --server http://testserver" in text


def test_a_job_that_nobody_took_yet_has_a_page(browser: TestClient, storage: Storage) -> None:
    model = storage.models.add(onnx_bytes(), "tiny.onnx")
    job = storage.jobs.create(model.digest, "host", "host-key", waits="no worker is alive")
    seen = opened(browser, f"/dashboard/jobs/{job.id}")
    assert "no worker is alive" in seen.text and "There are no tasks yet" in seen.text
    assert "No trial has been measured yet" in seen.text
    assert opened(browser, "/dashboard/jobs").text.count("tiny.onnx") == 1


def test_names_of_strangers_stay_text(
    browser: TestClient, storage: Storage, claim: JobClaim
) -> None:
    storage.tasks.put(claim, [task(1, name=HOSTILE, default_seconds=2e-4, best_seconds=1e-4)])
    storage.jobs.tell(claim, [("task", {"name": HOSTILE, "status": HOSTILE})])
    progress = JobProgress("tuning", 1, 0, 40, 4, 1, 4e-4, 2e-4)
    storage.jobs.progress(claim, progress)
    listed = opened(browser, "/dashboard/jobs")
    shown = opened(browser, f"/dashboard/jobs/{claim.job_id}")
    assert HOSTILE in listed.text and shown.text.count(HOSTILE) > 5
    storage.jobs.transition(claim, JobState.FAILED, error=HOSTILE)
    alerts = opened(browser, f"/dashboard/jobs/{claim.job_id}")
    assert HOSTILE in alerts.text


def test_a_job_shows_its_gain_its_tasks_and_where_its_time_goes(
    browser: TestClient, storage: Storage, claim: JobClaim
) -> None:
    facts = {"bound_seconds": 5e-5}
    tasks = [
        task(1, name="small", default_seconds=1e-5, best_seconds=1e-5),
        task(2, name="large", default_seconds=2e-4, best_seconds=1e-4, facts=facts),
        task(3, name="unknown"),
        task(4, name="absurd", default_seconds=float("inf"), best_seconds=0.0),
    ]
    storage.tasks.put(claim, tasks)
    storage.jobs.progress(claim, JobProgress("tuning", 4, 0, 40, 10, 3, 4.2e-4, 2.2e-4, 75.0, 0.02))
    storage.jobs.progress(claim, JobProgress("tuning", 4, 1, 40, 20, 3, 4.2e-4, 2.1e-4, 60.0, 0.01))
    seen = opened(browser, f"/dashboard/jobs/{claim.job_id}")
    for said in ("0.420 ms", "0.210 ms", "2.00x", "20 of 40", "1:00", "1.0 %", "90.9 %", "50 %"):
        assert said in seen.text, said
    for over, axis in (("trials", "trials"), ("seconds", "time, s")):
        curve = seen.charts()[f"over-{over}"]
        untuned, best, target = curve["series"]
        assert (curve["x"]["label"], curve["y"]["unit"]) == (axis, "ms")
        assert [*untuned["y"], *best["y"]] == pytest.approx([0.42, 0.42, 0.22, 0.21])
        assert (target["name"], set(target["y"])) == ("target", {1.5})
    assert seen.charts()["over-trials"]["series"][1]["x"] == [10, 20]
    names = [link.split(" ")[0] for link in seen.text.split("\n") if "large" in link]
    assert names, "the bars and the table name it"
    part = browser.get(f"/dashboard/jobs/{claim.job_id}/parts").text
    assert "<html" not in part and "20 of 40" in part


def test_until_every_task_was_measured_those_that_were_are_counted(
    browser: TestClient, storage: Storage, claim: JobClaim
) -> None:
    known = {"default_seconds": 2e-3, "best_seconds": 1e-3, "facts": {"forecast_gain": 0.021}}
    storage.tasks.put(claim, [task(1, **known), task(2)])
    storage.jobs.progress(claim, JobProgress(trials_budget=9, trials_done=2))
    path = f"/dashboard/jobs/{claim.job_id}"
    seen = opened(browser, path)
    assert "4.000 ms 1 of 2 tasks" in seen.text and "2.000 ms 1 of 2 tasks" in seen.text
    assert "2.00x" in seen.text and "begins when every task has been measured" in seen.text
    assert "A minute gains" in seen.text and "2.1 %" in seen.text
    assert seen.text.count("100.0 %") == seen.text.count("0.0 %") > 0, "unknown is no share"
    assert not seen.charts()
    storage.jobs.transition(claim, JobState.SUCCEEDED, result=ENDED)
    ended = opened(browser, path).text
    assert "The job ended before every task was measured" in ended and "Took" in ended
    assert "A minute gains" not in ended and "Phase" not in ended


def test_tasks_of_one_name_are_told_apart(
    browser: TestClient, storage: Storage, claim: JobClaim
) -> None:
    twins = [task(n, name="twin", workload_key=f"{n:06x}{n:058x}") for n in (1, 2)]
    storage.tasks.put(claim, [*twins, task(3)])
    seen = opened(browser, f"/dashboard/jobs/{claim.job_id}")
    assert "000001" in seen.text and "000002" in seen.text and "000003" not in seen.text


def test_times_that_are_no_numbers_are_not_known(
    browser: TestClient, storage: Storage, claim: JobClaim
) -> None:
    endless = float("inf")
    facts = {"bound_seconds": endless}
    storage.tasks.put(claim, [task(1, default_seconds=endless, best_seconds=1e-4, facts=facts)])
    progress = JobProgress("tuning", 1, 0, 40, 10, 3, endless, 2e-4, endless)
    storage.jobs.progress(claim, progress)
    storage.jobs.tell(claim, [("task", {"name": "conv 1", "best_seconds": endless})])
    seen = opened(browser, f"/dashboard/jobs/{claim.job_id}")
    best, target = seen.charts()["over-trials"]["series"]
    assert (best["y"], target["name"]) == ([0.2], "target")
    assert "conv 1: done, - us" in seen.text


def test_what_came_of_a_job_is_said(browser: TestClient, storage: Storage, claim: JobClaim) -> None:
    storage.jobs.progress(claim, JobProgress("tuning", 1, 1, 40, 20, 3, 4.2e-4, 2.1e-4))
    storage.jobs.transition(claim, JobState.VERIFYING)
    storage.jobs.transition(claim, JobState.SUCCEEDED, result=ENDED)
    seen = opened(browser, f"/dashboard/jobs/{claim.job_id}")
    assert "the tuned schedules are served; tuned: 1.33x untuned" in seen.text
    assert f"device: {HOSTILE}" in seen.text and "failed" not in seen.text
    *_, low, high = seen.charts()["over-trials"]["series"]
    assert low["mark"] == high["mark"] == "edge"
    assert [low["y"][0], high["y"][0]] == pytest.approx([0.294, 0.336])
    assert not [a for _, a in seen.found if "data-events" in a], "nothing more comes"
    assert "Pause" not in seen.text


def test_large_tables_are_cut_on_the_server(
    browser: TestClient, storage: Storage, claim: JobClaim
) -> None:
    many = [task(n, default_seconds=1e-6 * (n + 1)) for n in range(MOST_ROWS + 1)]
    storage.tasks.put(claim, many)
    path = f"/dashboard/jobs/{claim.job_id}"
    seen = opened(browser, path)
    assert len([a for _, a in seen.found if (a.get("id") or "").startswith("task-")]) == ROWS
    assert f"conv {MOST_ROWS - 1}" in seen.text, "the most expensive of those that were read"
    assert "The job has more tasks" in seen.text
    seen = opened(browser, f"{path}?rows={MOST_ROWS}")
    assert len([a for _, a in seen.found if (a.get("id") or "").startswith("task-")]) == MOST_ROWS
    assert browser.get(f"{path}?rows={MOST_ROWS + 1}").status_code == 422


def test_jobs_are_listed_a_page_at_a_time(browser: TestClient, storage: Storage) -> None:
    model = storage.models.add(onnx_bytes(), "tiny.onnx")
    jobs = {storage.jobs.create(model.digest, "host", "host-key").id for _ in range(5)}
    seen, path = set[str](), "/dashboard/jobs?limit=2&state=queued"
    for _ in range(3):
        page = opened(browser, path)
        links = [str(a["href"]) for a in page.named("a")]
        seen |= {link.rpartition("/")[2] for link in links} & jobs
        older = [str(a["href"]) for a in page.named("a") if a.get("rel") == "next"]
        path = f"/dashboard/jobs{older[0]}" if older else ""
    assert seen == jobs and not path
    assert "No job is paused" in opened(browser, "/dashboard/jobs?state=paused").text
    assert browser.get("/dashboard/jobs?page_token=forged").status_code == 422
    assert opened(browser, f"/dashboard/jobs?state={'x' * 99}").named("tr")


def test_a_job_is_paused_resumed_and_cancelled_by_who_may(
    browser: TestClient, storage: Storage
) -> None:
    model = storage.models.add(onnx_bytes(), "tiny.onnx")
    job = storage.jobs.create(model.digest, "host", "host-key").id
    storage.workers.register("here", ["host-key"], {})
    for change, state in (("pause", "paused"), ("resume", "queued"),
                          ("cancel", "cancelled")):  # fmt: skip
        answer = browser.post(f"/dashboard/jobs/{job}/{change}", headers=ORIGIN)
        assert answer.url.path == f"/dashboard/jobs/{job}" and answer.status_code == 200
        assert storage.jobs.get(job).state.value == state
    assert {str(entry.action) for entry in storage.audit.list()} >= {"job.cancelled"}
    other = storage.jobs.create(model.digest, "host", "host-key", owner="somebody").id
    secret, _ = storage.tokens.create("reader", [Scope.READ], all_owners=True)
    sign_in(browser, secret)
    assert "Pause" not in opened(browser, f"/dashboard/jobs/{other}").text
    answer = browser.post(f"/dashboard/jobs/{other}/cancel", headers=ORIGIN)
    assert answer.status_code == 403 and "has no scope" in answer.text
    assert not storage.jobs.get(other).state.final


def test_the_stream_of_a_page_says_that_it_ends(browser: TestClient, storage: Storage) -> None:
    model = storage.models.add(onnx_bytes(), "tiny.onnx")
    job = storage.jobs.create(model.digest, "host", "host-key").id
    storage.jobs.cancel(job)
    text = browser.get(f"/dashboard/jobs/{job}/events").text
    assert [line for line in text.splitlines() if line.startswith("event:")] == [
        "event: state", "event: state", "event: end",
    ]  # fmt: skip
    again = browser.get(f"/dashboard/jobs/{job}/events", headers={"Last-Event-ID": "1"}).text
    assert again.count("event: state") == 1
    assert browser.get("/dashboard/jobs/none/events").status_code == 404


def test_the_artifact_is_fetched_with_the_cookie(browser: TestClient, storage: Storage) -> None:
    model = storage.models.add(onnx_bytes(), "tiny.onnx")
    job = storage.jobs.create(model.digest, "host", "host-key").id
    answer = browser.get(f"/dashboard/jobs/{job}/artifact")
    assert answer.status_code == 409 and "has no artifact" in answer.text


def test_the_command_that_repeats_a_job_is_safe_to_paste(
    browser: TestClient, storage: Storage
) -> None:
    model = storage.models.add(onnx_bytes(), "-x $(reboot).onnx")
    options = {"trials": 7, "seed": 0, "dims": {"batch;ls": ["1..8@2:0.5,4", 3]}, "pad": True}
    job = storage.jobs.create(model.digest, "host; reboot", "host-key", options=options).id
    text = opened(browser, f"/dashboard/jobs/{job}").text
    assert (
        "tilewright job submit './-x $(reboot).onnx' --target 'host; reboot' "
        "--trials 7 --dim 'batch;ls=3,1..8@2:0.5,4' --pad --server http://testserver"
    ) in text


def test_a_job_with_unknown_options_has_a_page_without_its_command(
    browser: TestClient, storage: Storage
) -> None:
    model = storage.models.add(onnx_bytes(), "tiny.onnx")
    job = storage.jobs.create(model.digest, "host", "host-key", options={"horoscope": 7}).id
    text = opened(browser, f"/dashboard/jobs/{job}").text
    assert "tilewright job watch" in text and "tilewright job submit" not in text
