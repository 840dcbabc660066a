"""A task's schedules as code, and predicted against measured: over REST and in its page."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import problem
from tests.unit.service.conftest import LiveServer
from tests.unit.service.dashboard.test_task_page import TARGET, task_of_job, trial
from tests.unit.service.jobs.test_cost_models import product, seconds
from tests.unit.service.pages import HOSTILE, opened, sign_in
from tests.unit.service.test_notebook import markup, text_of
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space, untuned_schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.service.api.errors import ApiProblem
from tilewright.service.api.planning import Planning
from tilewright.service.api.planning_child import Refusal, answer
from tilewright.service.api.schemas.jobs import OrderView, PredictionsView, PredictionView
from tilewright.service.client import Client, NotKnownError
from tilewright.service.jobs.report import shown_code as shown
from tilewright.service.jobs.report.predicted import predicted
from tilewright.service.jobs.report.shown_code import shown_code
from tilewright.service.show.job_charts import prediction_charts
from tilewright.tuner.cost_model.dataset import samples_of
from tilewright.tuner.cost_model.trial_predictions import predict_trials
from tilewright.tuner.cost_model.xgboost import XGBoostModel
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, Trial

WORKLOAD = product(24)
POINTS = random.Random(0).sample(list(schedule_space(WORKLOAD, Mode(TARGET)).points), 20)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child answers in this process: its protocol has tests of its own."""

    async def ask(self: Planning, question: Any, what: str, asker: str) -> Any:
        found = answer(question)
        if isinstance(found, Refusal):
            raise ApiProblem(found.status, found.slug, found.detail, found.extra)
        return found

    monkeypatch.setattr(Planning, "_ask", ask)


@pytest.mark.parametrize("name", ["x86-64-v4", "cortex-a72", "riscv64", "wasm32"])
def test_any_target_has_code(name: str) -> None:
    target = resolve_target(name)
    code = shown_code(WORKLOAD.text(), None, Mode(target))
    assert "reduce" in code.nest and code.left_out == (0, 0)
    assert code.counts.fmas > 0 or name == "wasm32"
    assert len(code.loops) >= 1 and code.more_loops == 0
    most = code.registers
    assert (1 < code.loops[0].registers <= most <= code.all_registers) or name == "wasm32"
    assert ("innermost loop" in code.assembly) or name == "wasm32"


def test_code_is_cut_in_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shown_code(WORKLOAD.text(), None, Mode(TARGET))
    monkeypatch.setattr(shown, "MOST_NEST", 100)
    monkeypatch.setattr(shown, "MOST_ASSEMBLY", 200)
    monkeypatch.setattr(shown, "MOST_LOOPS", 0)
    cut = shown_code(WORKLOAD.text(), None, Mode(TARGET))
    for text, full, left, most in (
        (cut.nest, whole.nest, cut.left_out[0], 100),
        (cut.assembly, whole.assembly, cut.left_out[1], 200),
    ):
        assert len(text) < most and full.startswith(text + "\n")
        assert left == full.count("\n") - text.count("\n") > 0
    assert not cut.loops and cut.more_loops == len(whole.loops)
    assert cut.counts == whole.counts


def test_code_of_another_release_is_refused() -> None:
    wrong = {"algorithm": HOSTILE, "choices": {}}
    for text, schedule in ((WORKLOAD.text(), wrong), ("no workload", None)):
        with pytest.raises(CompilerError):
            shown_code(text, schedule, Mode(TARGET))


def test_best_and_untuned_side_by_side(client: TestClient, storage: Storage, owner: str) -> None:
    best = next(p for p in POINTS if p.algorithm == "gemm")
    job, workload = task_of_job(storage, {"schedule": best.to_json()}, WORKLOAD)
    path = f"jobs/{job}/tasks/{workload}"
    tuned = client.get(f"/v1/{path}/code").json()
    untuned = client.get(f"/v1/{path}/code", params={"untuned": True}).json()
    assert tuned["schedule"] == best.to_json() != untuned["schedule"]
    assert tuned["assembly"] != untuned["assembly"] and "vfmadd" in tuned["assembly"]
    assert 0 < tuned["registers"] <= tuned["all_registers"] == 16
    assert problem(client.get(f"/v1/jobs/none/tasks/{workload}/code"))[0] == 404

    sign_in(client, owner)
    code = opened(client, f"/dashboard/{path}/code")
    sides = [str(each.get("aria-label")) for each in code.named("pre")]
    named = ("Loop nest, {}", "Assembly, {}")
    assert sides == [name.format(side) for side in ("Best", "Untuned") for name in named]
    assert "vfmadd" in code.text and "of 16" in code.text
    waited = opened(client, f"/dashboard/{path}?wait=true").text
    assert "The best schedule and the untuned one as code" in waited and "vfmadd" in waited
    assert "No trial of this task succeeded whose schedule" in waited
    for part in ("", "/code", "/predictions"):
        wrong = f"/dashboard/jobs/{job}/tasks/{'0' * 64}{part}"
        assert client.get(wrong).status_code == 404


def test_the_client_gets_both_for_a_notebook(
    storage: Storage, server: LiveServer, owner: str
) -> None:
    best = next(p for p in POINTS if p.algorithm == "gemm")
    job, workload = task_of_job(storage, {"schedule": best.to_json()}, WORKLOAD)
    storage.records.add_trials(measured(job))
    with Client(server.url, owner) as client:
        tuned, untuned = client.code(job, workload), client.code(job, workload, untuned=True)
        assert tuned.schedule == best.to_json() != untuned.schedule
        said = text_of(tuned)
        assert "vfmadd" in said and f"gemm {'='.join(map(str, best.choices[0]))}" in said
        assert "multiply-adds" in said and "and 1 more lines" not in said
        predictions = client.predictions(job, workload)
        assert len(predictions.trials) == len(POINTS)
        shown = markup(predictions)
        assert len(list(shown.iter("circle"))) == len(POINTS)
        assert "of the pairs in order (by chance 50 %)" in text_of(predictions)
        assert len(client.trials(job, workload)) == len(client.trials(workload=workload)) == 20
        assert "gemm" in text_of(client.trials(job, limit=20))
        with pytest.raises(NotKnownError):
            client.code(job, "0" * 64)


def test_a_side_that_cannot_be_shown_hides_no_other(
    client: TestClient, storage: Storage, owner: str
) -> None:
    wrong = {"schedule": {"algorithm": HOSTILE, "choices": {}}}
    job, workload = task_of_job(storage, wrong, WORKLOAD)
    path = f"jobs/{job}/tasks/{workload}/code"
    assert client.get(f"/v1/{path}").status_code == 422
    assert client.get(f"/v1/{path}?untuned=true").status_code == 200
    sign_in(client, owner)
    code = opened(client, f"/dashboard/{path}")
    assert len(code.named("pre")) == 2 and HOSTILE in code.text


def test_one_side_where_the_best_is_the_untuned(
    client: TestClient, storage: Storage, owner: str
) -> None:
    default = untuned_schedule(WORKLOAD, Mode(TARGET))
    sign_in(client, owner)
    for facts, said in (
        ({"schedule": default.to_json()}, "Best, which is the untuned one"),
        (None, "Untuned; no trial is faster"),
    ):
        job, workload = task_of_job(storage, facts, WORKLOAD)
        code = opened(client, f"/dashboard/jobs/{job}/tasks/{workload}/code")
        assert len(code.named("pre")) == 2 and said in code.text


def test_until_one_is_chosen_the_fastest_trial_is_shown(
    client: TestClient, storage: Storage, owner: str
) -> None:
    job, workload = task_of_job(storage, None, WORKLOAD)
    trials = measured(job)
    fastest = min(trials, key=lambda trial: trial.measurement.run_seconds or 1.0)
    # trials that were withdrawn, failed, or are of another key or job, are not
    quick = Measurement(Status.OK, samples_seconds=(1e-9,))
    other = next(trial for trial in trials if trial.schedule != fastest.schedule)
    wrong = (
        replace(other, id="w", measurement=quick, withdrawn=True),
        replace(other, id="f", measurement=replace(quick, status=Status.WRONG_ANSWER)),
        replace(other, id="k", measurement=quick, key=replace(other.key, threads=2)),
        replace(other, id="j", measurement=quick, job_id="another"),
    )
    storage.records.add_trials([*wrong, *trials])
    path = f"jobs/{job}/tasks/{workload}"
    assert client.get(f"/v1/{path}/code").json()["schedule"] == fastest.schedule.to_json()
    sign_in(client, owner)
    waited = opened(client, f"/dashboard/{path}?wait=true")
    assert "The fastest trial and the untuned one as code" in waited.text
    sides = [str(each.get("aria-label")) for each in waited.named("pre")]
    assert "Assembly, Fastest trial" in sides and "Assembly, Untuned" in sides
    assert waited.named("strong"), "the knobs that differ"


def measured(job: str = "") -> list[Trial]:
    """A trial of each of the points."""
    key = RecordKey(WORKLOAD.key, TARGET.key)
    return [
        Trial(
            f"t{number:02}",
            key,
            point,
            Measurement(Status.OK, samples_seconds=(seconds(point),)),
            job_id=job,
        )
        for number, point in enumerate(POINTS)
    ]


def learned(trials: list[Trial]) -> tuple[XGBoostModel, np.ndarray]:
    """A model that was trained on trials, and its scores of them."""
    samples = samples_of(trials, {WORKLOAD.key: WORKLOAD}.get, {TARGET.key: TARGET}.get)
    model = XGBoostModel(0)
    model.train(samples)
    return model, model.predict(np.stack([sample.row for sample in samples]))


def test_trials_are_predicted_as_the_search_would() -> None:
    trials = measured()
    model, said = learned(trials)
    odd = replace(trials[0], id="odd", schedule=Schedule.of("gemm", tile=10**9))
    failed = replace(trials[0], id="failed", measurement=Measurement(Status.CRASH))
    found = predict_trials([*trials, odd, failed], WORKLOAD, TARGET, model)
    assert [one.trial_id for one in found.trials] == [one.id for one in trials]
    assert [one.score for one in found.trials] == pytest.approx(said.tolist())
    assert found.by_score is not None and found.by_score.pairwise > 0.9
    assert found.by_estimate is not None and 0.0 <= found.by_estimate.pairwise <= 1.0
    alone = predict_trials(trials[:3], WORKLOAD, TARGET, None)
    assert alone.by_score is None and alone.by_estimate is None and len(alone.trials) == 3
    assert predict_trials([], WORKLOAD, TARGET, model).trials == ()


def test_predictions_end_in_time() -> None:
    """The newest come first, and the older ones are left out."""
    ticks = iter([0.0, 0.0, 4.9, 5.0])
    trials = measured()
    found = predicted(WORKLOAD.text(), TARGET, trials, b"", lambda: next(ticks))
    assert [one.trial_id for one in found.task.trials] == [trials[0].id, trials[1].id]


def test_predictions_beside_what_was_measured(
    client: TestClient, storage: Storage, owner: str
) -> None:
    """By the version that runs start from; one of another release is not asked."""
    job, _ = task_of_job(storage, None, WORKLOAD)
    trials = measured(job)
    threads = replace(trials[0], id="other", key=replace(trials[0].key, threads=2))
    storage.records.add_trials([*trials, threads, trial(90, job, WORKLOAD.key, None)])
    path = f"jobs/{job}/tasks/{WORKLOAD.key}/predictions"
    cold = client.get(f"/v1/{path}").json()
    assert (cold["version"], cold["by_score"], cold["refusal"]) == (None, None, "")
    assert {one["trial_id"] for one in cold["trials"]} == {one.id for one in trials}

    known: dict[str, Any] = {"rows": 1, "tasks": 1, "trials": 20, "scores": {}, "chance": {}}
    found = []
    for data in (learned(trials)[0].save(), b"{}"):
        made = storage.cost_models.add(TARGET.key, data, feature_version=1, objective="o", **known)
        storage.cost_models.promote(TARGET.key, made.version)
        found.append(client.get(f"/v1/{path}").json())
    assert [each["version"] for each in found] == [1, 2]
    assert found[0]["by_score"]["pairwise"] > 0.9 and found[0]["refusal"] == ""
    assert "not a saved XGBoost model" in found[1]["refusal"] and found[1]["by_score"] is None

    sign_in(client, owner)
    broken = opened(client, f"/dashboard/{path}")
    assert "Version 2 of the cost model cannot predict" in broken.text
    (estimates,) = broken.charts().values()
    assert len(estimates["series"][0]["x"]) == 20
    storage.cost_models.promote(TARGET.key, 1)
    both = opened(client, f"/dashboard/{path}")
    assert "Cost model, version 1" in both.text and "of the pairs in order" in both.text
    assert [len(chart["series"][0]["x"]) for chart in both.charts().values()] == [20, 20]


@pytest.mark.parametrize("absurd", [float("inf"), float("nan"), 1e308, 5e-324, -1.0])
def test_absurd_numbers_are_not_drawn(absurd: float) -> None:
    order = OrderView(pairwise=0.5, top1=0.0, top5=0.0)
    trials = [
        PredictionView(trial_id="t", measured_seconds=one, estimated_seconds=other, score=score)
        for one, other, score in (
            (1e-6, absurd, absurd),
            (absurd, 1e-6, 1.0),
            (1e-5, 1e-5, -1.0),
        )
    ]
    view = PredictionsView(version=1, refusal="", by_score=order, by_estimate=order, trials=trials)
    scores, estimates = prediction_charts(view)
    drawn = [[(x, y) for x, y, _ in chart.drawn(chart.series[0])] for chart in (scores, estimates)]
    few = [(1.0, 5e-324)] * (absurd == 5e-324) + [(1.0, -1.0)] * (absurd == -1.0)
    assert drawn == [[*few, (10.0, -1.0)], [(10.0, 10.0)]]
    assert "NaN" not in json.dumps([scores.to_json(), estimates.to_json()])
