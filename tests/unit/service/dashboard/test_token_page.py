"""The pages of tokens and of cost models, and the roofline of a job."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.pages import HOSTILE, ORIGIN, opened, sign_in
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.schemas.jobs import TaskView
from tilewright.service.dashboard.roofline_figures import roofline
from tilewright.service.show.tables.tasks import TaskLine


@pytest.fixture
def browser(anonymous: TestClient, owner: str) -> TestClient:
    assert sign_in(anonymous, owner).status_code == 303
    return anonymous


def secret_of(text: str) -> str:
    found = re.search(r'id="secret">([^<]+)<', text)
    assert found is not None
    return found[1]


def test_a_token_is_made_and_its_secret_shown_once(browser: TestClient, storage: Storage) -> None:
    form = {"name": "ci <b>", "scope": ["read", "submit"], "days": "1.5"}
    made = browser.post("/dashboard/tokens", data=form, headers=ORIGIN)
    assert made.status_code == 200 and made.headers["cache-control"] == "no-store"
    token = storage.tokens.verify(secret_of(made.text))
    assert token is not None and token.scopes == {Scope.READ, Scope.SUBMIT}
    assert token.expires_at == pytest.approx(token.created_at + 1.5 * 86400.0)
    assert token.sees == "ci <b>"
    made = browser.post("/dashboard/tokens", data={**form, "all_owners": "1"}, headers=ORIGIN)
    every = storage.tokens.verify(secret_of(made.text))
    assert every is not None and every.sees is None
    listed = opened(browser, "/dashboard/tokens").text
    assert "ci <b>" in listed and "read, submit" in listed and "tw_" not in listed


def test_a_form_that_is_wrong_says_why(browser: TestClient, storage: Storage) -> None:
    before = len(storage.tokens.list())
    right = {"name": "ci", "scope": ["read"]}
    for wrong in (
        {"name": ""},
        {"name": " x"},
        {"scope": []},
        {"scope": ["root"]},
        {"days": "soon"},
        {"days": "nan"},
        {"days": "-1"},
        {"days": "1e400"},
    ):
        answer = browser.post("/dashboard/tokens", data={**right, **wrong}, headers=ORIGIN)
        assert answer.status_code == 422 and 'role="alert"' in answer.text, wrong
    assert browser.post("/dashboard/tokens", content=b"\xff=1", headers=ORIGIN).status_code == 422
    assert len(storage.tokens.list()) == before


def test_tokens_are_rotated_and_revoked(browser: TestClient, storage: Storage) -> None:
    old, token = storage.tokens.create(HOSTILE, [Scope.READ])
    rotated = browser.post(f"/dashboard/tokens/{token.id}/rotate", headers=ORIGIN)
    assert storage.tokens.verify(secret_of(rotated.text)) is not None
    assert storage.tokens.verify(old) is not None, "for another hour"
    answer = browser.post(f"/dashboard/tokens/{token.id}/revoke", headers=ORIGIN)
    assert answer.url.path == "/dashboard/tokens" and "revoked" in answer.text
    assert storage.tokens.verify(old) is None
    assert HOSTILE in opened(browser, "/dashboard/tokens").text
    assert browser.post("/dashboard/tokens/none/revoke", headers=ORIGIN).status_code == 404


def test_nobody_revokes_with_one_click(browser: TestClient, storage: Storage) -> None:
    token = storage.tokens.create("ci", [Scope.READ])[1]
    page = opened(browser, "/dashboard/tokens")
    ids = [each.get("id") for each in page.named("div") if "popover" in each]
    asks = [each.get("popovertarget") for each in page.named("button") if "aria-label" in each]
    assert ids == [f"revoke-{token.id}"] and ids[0] in asks
    assert page.text.count("The token ci is invalid") == 1


def test_who_rotates_the_own_token_stays_and_nobody_revokes_it(
    anonymous: TestClient, storage: Storage
) -> None:
    secret, token = storage.tokens.create("boss", [Scope.ADMIN])
    sign_in(anonymous, secret)
    answer = anonymous.post(f"/dashboard/tokens/{token.id}/rotate", headers=ORIGIN)
    fresh = secret_of(answer.text)
    assert fresh in answer.headers["set-cookie"]
    assert opened(anonymous, "/dashboard/tokens").text.count("boss") >= 1
    refused = anonymous.post(f"/dashboard/tokens/{token.id}/revoke", headers=ORIGIN)
    assert refused.status_code == 422 and storage.tokens.verify(fresh) is not None


def test_tokens_are_for_admins_and_for_our_own_pages(browser: TestClient, storage: Storage) -> None:
    _, token = storage.tokens.create("guest", [Scope.READ])
    for place in ("tokens", f"tokens/{token.id}/rotate", f"tokens/{token.id}/revoke"):
        stranger = {"Sec-Fetch-Site": "cross-site", **ORIGIN}
        answer = browser.post(f"/dashboard/{place}", data={"name": "x"}, headers=stranger)
        assert answer.status_code == 403
    secret, _ = storage.tokens.create("reader", [Scope.READ, Scope.SUBMIT, Scope.MEASURE])
    sign_in(browser, secret)
    assert "Tokens" not in opened(browser, "/dashboard/jobs").text
    assert browser.get("/dashboard/tokens").status_code == 403
    for place in ("tokens", f"tokens/{token.id}/rotate", f"tokens/{token.id}/revoke"):
        answer = browser.post(
            f"/dashboard/{place}", data={"name": "x", "scope": "admin"}, headers=ORIGIN
        )
        assert answer.status_code == 403 and "tw_" not in answer.text
    assert all(each.revoked_at is None for each in storage.tokens.list())


def test_scores_of_cost_models_are_lines_over_versions(
    browser: TestClient, storage: Storage
) -> None:
    assert "No cost model" in opened(browser, "/dashboard/cost-models").text
    target = resolve_target("x86-64-v3")
    for number, score in enumerate((0.5, 0.75, float("inf"))):
        storage.cost_models.add(
            target.key,
            bytes([number]),
            feature_version=1,
            objective="rank",
            rows=10,
            tasks=2,
            trials=100,
            scores={"rank": score, HOSTILE: 0.3, "tasks": 7},
            chance={"rank": 0.5, "tasks": 7},
        )
    seen = opened(browser, "/dashboard/cost-models")
    assert target.name in seen.text and HOSTILE in seen.text and "0.750" in seen.text
    lines = {each["name"]: (each["x"], each["y"]) for each in seen.charts()["scores1"]["series"]}
    assert lines == {
        "rank": ([1, 2], [0.5, 0.75]),  # an infinite score is not a point
        "rank, by chance": ([1, 3], [0.5, 0.5]),
        HOSTILE: ([1, 2, 3], [0.3] * 3),
    }, "a count is no score"
    assert seen.text.count("72100") == 3 and "7.0" not in seen.text, "on how many it was scored"


def line(flops: float, size: float, seconds: float | None, bound: float | None) -> TaskLine:
    facts = {"flops": flops, "bytes": size, "bound_seconds": bound}
    task = TaskView(
        job_id="j", workload_key="k", name=HOSTILE, count=1, weight=1.0, status="tuned",
        default_seconds=None, best_seconds=seconds, trials=1, facts=facts,
    )  # fmt: skip
    return TaskLine(task, 0.5, None, 0, namesake=False)


def test_kernels_lie_under_their_roofs() -> None:
    absurd = [line(0, 8, 1e-3, None), line(1e9, 0, 1e-3, 1e-4), line(1e6, 1e6, None, 0.0)]
    absurd += [line(1e6, 1e6, float("inf"), 1.0), line(float("nan"), 1.0, 1.0, 1.0)]
    assert roofline(absurd) is None
    rows = [*absurd, line(2e9, 1e7, 0.1, 0.05), line(1e5, 1e6, 1e-5, float("inf"))]
    found = roofline(rows)
    assert found is not None
    assert (found.x.span, found.y.span) == ((0.1, 1000.0), (10.0, 100.0))
    (dots,) = found.to_json()["series"]
    assert (dots["x"], dots["y"], dots["limits"]) == ([200.0, 0.1], [20.0, 10.0], [40.0, None])
    assert "20 GFLOP/s of 40 (50 %)" in dots["texts"][0] and set(dots["links"]) == {
        "jobs/j/tasks/k"
    }
    table = found.table
    assert [[cell.text for cell in row[1:]] for row in table.rows] == [["200", "20"], ["0.1", "10"]]
    assert table.rows[0][0].link == "jobs/j/tasks/k"
