"""The page of a task: its knobs, its trials, its failures, and its loop nest."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import problem
from tests.unit.service.pages import HOSTILE, opened, sign_in
from tests.unit.service.tuners import model_bytes
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.db.stores.tasks import JobTask
from tilewright.service.dashboard.interaction_figures import MOST_STRENGTH, interactions
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, Trial

TARGET = resolve_target("x86-64-v3")


@pytest.fixture
def browser(anonymous: TestClient, owner: str) -> TestClient:
    """A client that is signed in."""
    assert sign_in(anonymous, owner).status_code == 303
    return anonymous


def task_of_job(
    storage: Storage, facts: dict[str, Any] | None = None, workload: Workload | None = None
) -> tuple[str, str]:
    """A job with one task of a real workload: the job's id and the workload's key."""
    data = model_bytes()
    if workload is None:
        ((workload, _),) = plan_model(ModelRequest(data, Mode(TARGET))).workloads
    storage.workloads.put_workloads({workload.key: workload.text()})
    storage.workloads.put_target(TARGET.key, TARGET.name, TARGET.to_json())
    model = storage.models.add(data, "tiny")
    job = storage.jobs.create(model.digest, TARGET.name, target_key=TARGET.key)
    claimed = storage.jobs.claim("tuner", 60.0)
    assert claimed is not None
    storage.tasks.put(claimed[0], [JobTask(workload.key, HOSTILE, 1, 1.0, facts=facts)])
    return job.id, workload.key


def trial(number: int, job: str, workload: str, seconds: float | None, **choices: Any) -> Trial:
    if seconds is None:
        measured = Measurement(Status.CRASH, error=HOSTILE)
    else:
        measured = Measurement(Status.OK, samples_seconds=(seconds,))
    key = RecordKey(workload, TARGET.key, 1, "fast")
    schedule = Schedule.of("direct", **choices)
    return Trial(f"t{number}", key, schedule, measured, job_id=job, origin=HOSTILE)


def test_a_task_without_trials_has_a_page(browser: TestClient, storage: Storage) -> None:
    job, workload = task_of_job(storage)
    seen = opened(browser, f"/dashboard/jobs/{job}/tasks/{workload}")
    assert HOSTILE in seen.text and "No knob has trials" in seen.text
    assert "No trial of this task has succeeded" in seen.text
    assert "The fastest trial and the untuned one as code" in seen.text
    assert {each["hx-get"] for each in seen.named("div") if "hx-get" in each} == {
        f"/dashboard/jobs/{job}/tasks/{workload}/{part}" for part in ("code", "predictions")
    }


def test_knobs_are_told_by_what_they_matter(browser: TestClient, storage: Storage) -> None:
    job, workload = task_of_job(storage)
    tried = [(1, 4e-6, 1), (2, 2e-6, 1), (8, 1e-6, 1), (16, 3e-6, 1), (8, 1.1e-6, HOSTILE)]
    trials = [
        trial(n, job, workload, seconds, tile_n=tile, order=order)
        for n, (tile, seconds, order) in enumerate(tried)
    ]
    failed = [trial(n, job, workload, None, tile_n=n) for n in range(90, 93)]
    storage.records.add_trials([*trials, *failed])
    seen = opened(browser, f"/dashboard/jobs/{job}/tasks/{workload}")
    plots = [str(each["aria-label"]) for each in seen.named("div") if "data-chart" in each]
    assert plots[0] == "tile_n: best with 8, 4.00x its worst value"
    assert plots[1].startswith("order: best with 1, 1.10x")
    tiles, orders = seen.charts()["knob1"], seen.charts()["knob2"]
    assert tiles["x"]["names"] == ["1", "2", "8", "16"], "numbers stand in their order"
    assert sorted(tiles["series"][0]["y"]) == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1 / 1.1, 1])
    assert len(orders["series"][0]["x"]) == len(tried)
    assert "3 crash, such as" in seen.text and seen.text.count(HOSTILE) > 5


def test_knobs_that_depend_on_each_other_come_first(browser: TestClient, storage: Storage) -> None:
    """`a` and `b` do best with the same value, `c` does the same with any."""
    job, workload = task_of_job(storage)
    tried = [(a, b, c) for a in (1, HOSTILE) for b in (1, HOSTILE) for c in (1, 2)]
    storage.records.add_trials(
        trial(n, job, workload, 1e-6 * (1 if a == b else 2) * (1.1 if c == 2 else 1), a=a, b=b, c=c)
        for n, (a, b, c) in enumerate(tried)
    )
    seen = opened(browser, f"/dashboard/jobs/{job}/tasks/{workload}")
    captions = re.findall(r"(\w) ↓ and (\w) → ([\d.]+)x", seen.text)
    assert captions == [("a", "b", "1.41"), ("c", "a", "1.00"), ("c", "b", "1.00")]
    shades = [cell["class"] for cell in seen.named("td") if "shade" in str(cell.get("class"))]
    assert shades[:4] == ["shade10", "shade5", "shade5", "shade10"]
    assert shades.count("shade9") == 4, "with the worse value of c"


def test_pairs_with_few_trials_or_absurd_times() -> None:
    few = [({"a": n, "b": n}, 1.0) for n in range(9)]
    assert interactions(few, ["a", "b", "none"]) == ()
    speeds = [1.0, 5e-324, 5e-324, 1.0, 0.0, 0.0]
    absurd = [({"a": n // 2, "b": n % 2}, speed) for n, speed in enumerate(speeds)]
    (pair,) = interactions(absurd, ["a", "b"])
    assert pair.strength == MOST_STRENGTH
    shades = [[f and f.shade for f in fields] for _, fields in pair.rows]
    assert shades == [[10, 0], [0, 10], [0, 0]]
    many = [({"a": n, "b": m}, 1.0 / (n + m)) for n in range(1, 30) for m in range(1, 30)]
    (pair,) = interactions(many, ["a", "b"])
    assert len(pair.rows) == len(pair.columns) == 8 and pair.columns[0] == "1"


def test_times_that_are_absurd_are_drawn(browser: TestClient, storage: Storage) -> None:
    job, workload = task_of_job(storage)
    storage.records.add_trials([trial(n, job, workload, 10.0**n, tile_n=n) for n in (-300, 300)])
    seen = opened(browser, f"/dashboard/jobs/{job}/tasks/{workload}")
    assert seen.charts()["knob1"]["series"][0]["y"] == [1.0, 0.0]


def test_the_nest_over_rest(client: TestClient, storage: Storage) -> None:
    job, workload = task_of_job(storage)
    answer = client.get(f"/v1/jobs/{job}/tasks/{workload}/nest")
    assert answer.status_code == 200, answer.text
    nest = answer.json()
    again = client.get(f"/v1/jobs/{job}/tasks/{workload}/nest").json()
    assert nest == again and set(nest["schedule"]) == {"algorithm", "choices"}
    assert "for" in nest["text"]
    for path in (f"/v1/jobs/none/tasks/{workload}/nest", f"/v1/jobs/{job}/tasks/{'0' * 64}/nest"):
        assert problem(client.get(path))[:2] == (404, "not-found")
