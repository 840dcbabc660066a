"""Export, import and withdrawal of records in the dashboard, and the scopes for each."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.jobs.test_record_exchange import TARGET, Site, add, model
from tests.unit.service.pages import HOSTILE, ORIGIN, opened, sign_in
from tilewright.compiler.mode import Mode
from tilewright.db.review_state import ReviewState
from tilewright.db.storage import Storage
from tilewright.db.stores.audit import Action
from tilewright.db.stores.tokens import Scope
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_model
from tilewright.service.settings import Settings
from tilewright.service.signing import signing_key

IMPORT = "/dashboard/records/import"


@pytest.fixture(scope="module")
def planned() -> Planned:
    return plan_model(ModelRequest(model(), Mode(TARGET)))


@pytest.fixture
def browser(anonymous: TestClient, owner: str) -> TestClient:
    assert sign_in(anonymous, owner).status_code == 303
    return anonymous


@pytest.fixture
def here(storage: Storage, settings: Settings) -> Site:
    return Site(storage, signing_key(settings.signing_key_file))


def test_records_go_out_as_a_file_and_come_in_again(
    browser: TestClient, storage: Storage, here: Site, planned: Planned
) -> None:
    add(here, planned, 1e-3)
    page = opened(browser, f"/dashboard/records?target={TARGET.name}")
    (link,) = [a["href"] for a in page.named("a") if "download" in a]
    answer = browser.get(str(link))
    assert answer.headers["content-disposition"] == 'attachment; filename="records.jsonl"'
    assert answer.text.splitlines() == here.lines()
    assert browser.get("/dashboard/records/export?target=cortex-a72").text == ""

    stranger = signing_key(Path(storage.blobs.place.path("0" * 64)).parent / "key.pem")
    lines = [*here.lines(), *Site(storage, stranger).lines(), HOSTILE]
    sent = {"records": ("r.jsonl", "\n".join(lines).encode(), "application/x-ndjson")}
    done = browser.post(IMPORT, files=sent, headers=ORIGIN)
    assert done.status_code == 200, done.text
    assert "<dd>1</dd>" in done.text.split("Here before</dt>")[1][:20]
    assert "is not trusted here" in done.text and done.text.count("<tr><td") == 2
    assert "<img src=x" not in done.text
    assert [entry.action for entry in storage.audit.list()][:1] == [Action.RECORDS_IMPORTED]


PARTS = "multipart/form-data; boundary=b"
HEAD = b"--b\r\nContent-Disposition: form-data; "
NO_FILES = [
    ("application/x-www-form-urlencoded", b"records=1"),
    ("multipart/form-data", b"--b\r\n"),
    (PARTS, b""),
    (PARTS, b"--b--\r\n"),
    (PARTS, HEAD + b'name="records"; filename="f"\r\n\r\ncut off'),
    (PARTS, HEAD + b'name="other"; filename="f"\r\n\r\n1\r\n--b--\r\n'),
    (PARTS, HEAD + b'filename="records"\r\n\r\n1\r\n--b--\r\n'),
    (PARTS, HEAD + b'name="records"\r\n\r\nno file\r\n--b--\r\n'),
    (PARTS, HEAD + b'name="records"; filename="f"\r\n\r\n \r\n--b--\r\n'),
    (PARTS, 2 * (HEAD + b'name="records"; filename="f"\r\n\r\n1\r\n') + b"--b--\r\n"),
]


def test_a_form_without_a_file_is_refused(browser: TestClient) -> None:
    for kind, body in NO_FILES:
        answer = browser.post(IMPORT, content=body, headers={**ORIGIN, "Content-Type": kind})
        assert answer.status_code == 422 and 'role="alert"' in answer.text, body


def test_a_file_is_found_among_other_fields(browser: TestClient) -> None:
    body = HEAD + b'name="a"\r\n\r\n1\r\n'
    body += HEAD + b'name="records"; filename="f"\r\n\r\nno\r\n--b--\r\n'
    headers = {**ORIGIN, "Content-Type": 'multipart/form-data; charset=utf-8; boundary="b"'}
    done = browser.post(IMPORT, content=body, headers=headers)
    assert done.status_code == 200 and done.text.count("<tr><td") == 1


def test_a_record_or_all_of_a_worker_is_withdrawn(
    browser: TestClient, storage: Storage, here: Site, planned: Planned
) -> None:
    add(here, planned, 2e-3, tile=1)
    add(here, planned, 1e-3, tile=2)
    slow, fast = sorted(storage.ledger.list(), key=lambda one: -(one.record.run_seconds or 0))
    place = f"/dashboard/records/{fast.id}"
    assert "everything that board measured" in opened(browser, place).text
    for wrong in ({"reason": ""}, {"reason": " "}, {"reason": "x" * 501}, {}):
        answer = browser.post(f"{place}/withdraw", data=wrong, headers=ORIGIN)
        assert answer.status_code == 422 and 'role="alert"' in answer.text
    done = browser.post(f"{place}/withdraw", data={"reason": HOSTILE}, headers=ORIGIN)
    assert done.status_code == 200 and "<img src=x" not in done.text
    assert storage.ledger.get(fast.id).state is ReviewState.WITHDRAWN
    assert storage.ledger.get(slow.id).state is not ReviewState.WITHDRAWN
    seen = opened(browser, place)
    assert HOSTILE in seen.text and not [
        f for f in seen.named("input") if f.get("name") == "reason"
    ]
    form = {"reason": "hot", "what": "worker"}
    assert browser.post(
        f"/dashboard/records/{slow.id}/withdraw", data=form, headers=ORIGIN
    ).is_success
    assert storage.ledger.get(slow.id).state is ReviewState.WITHDRAWN
    assert (
        browser.post("/dashboard/records/none/withdraw", data=form, headers=ORIGIN).status_code
        == 404
    )


def test_only_an_admin_changes_records(
    anonymous: TestClient, storage: Storage, here: Site, planned: Planned
) -> None:
    add(here, planned, 1e-3)
    (stored,) = storage.ledger.list()
    secret, _ = storage.tokens.create("reader", [Scope.READ, Scope.SUBMIT])
    sign_in(anonymous, secret)
    place = f"/dashboard/records/{stored.id}"
    assert "Withdraw" not in opened(anonymous, place).text
    kinds = {each.get("type") for each in opened(anonymous, "/dashboard/records").named("input")}
    assert "file" not in kinds
    assert anonymous.get("/dashboard/records/export").text.splitlines() == here.lines()
    sent = {"records": ("r", b"x", "text/plain")}
    assert anonymous.post(IMPORT, files=sent, headers=ORIGIN).status_code == 403
    form = {"reason": "I may not"}
    assert anonymous.post(f"{place}/withdraw", data=form, headers=ORIGIN).status_code == 403
    assert storage.ledger.get(stored.id).state is not ReviewState.WITHDRAWN


def test_other_pages_make_no_browser_change_records(
    browser: TestClient, storage: Storage, here: Site, planned: Planned
) -> None:
    add(here, planned, 1e-3)
    (stored,) = storage.ledger.list()
    for path in (f"/dashboard/records/{stored.id}/withdraw", IMPORT, "/dashboard/devices/add"):
        answer = browser.post(path, data={"reason": "r"}, headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 403
    assert storage.ledger.get(stored.id).state is not ReviewState.WITHDRAWN


def test_an_import_may_be_larger_than_other_forms(settings: Settings, browser: TestClient) -> None:
    many = b"\n" * (settings.max_body_bytes + 10) + b"x"
    sent = {"records": ("r", many, "text/plain")}
    assert browser.post(IMPORT, files=sent, headers=ORIGIN).status_code == 200
    more = {"Content-Length": str(settings.max_import_bytes + 1), **ORIGIN}
    assert browser.post(IMPORT, content=b"", headers=more).status_code == 413
