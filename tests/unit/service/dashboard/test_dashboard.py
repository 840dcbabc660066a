"""The dashboard's frame: access to it, sessions, and the scripts in a page."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import submit
from tests.unit.service.pages import HOSTILE, ORIGIN, opened, sign_in
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.service.dashboard.app import HEADERS
from tilewright.service.dashboard.pages import STATIC
from tilewright.service.dashboard.session import COOKIE

HTML = {"Accept": "text/html"}


def test_every_client_is_sent_to_the_dashboard(anonymous: TestClient) -> None:
    answer = anonymous.get("/", headers=HTML)
    assert answer.url.path == "/dashboard/sign-in"
    assert answer.status_code == 200
    sent = anonymous.get("/", headers={"Accept": "application/json"}, follow_redirects=False)
    assert (sent.status_code, sent.headers["location"]) == (303, "/dashboard/")


def test_a_token_is_pasted_once_and_kept_from_scripts(anonymous: TestClient, owner: str) -> None:
    asked = anonymous.get("/dashboard/jobs/x", follow_redirects=False)
    assert asked.headers["location"] == "/dashboard/sign-in?next=%2Fdashboard%2Fjobs%2Fx"
    answer = sign_in(anonymous, f" {owner} ", "/dashboard/jobs/x")
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/jobs/x")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/dashboard" in cookie
    assert "Secure" not in cookie, "over plain http a browser would not keep it"
    assert owner not in opened(anonymous, "/dashboard/jobs").text


def test_over_tls_the_cookie_is_secure(anonymous: TestClient, owner: str) -> None:
    answer = anonymous.post(
        "https://testserver/dashboard/sign-in",
        data={"token": owner},
        headers={"Origin": "https://testserver"},
        follow_redirects=False,
    )
    assert "Secure" in answer.headers["set-cookie"]


def test_a_wrong_token_is_told(anonymous: TestClient) -> None:
    for secret in ("", "tw_unknown", "ünknown\u2603", HOSTILE, "x" * 5000):
        answer = sign_in(anonymous, secret)
        assert answer.status_code == 401
        assert 'role="alert"' in answer.text and "set-cookie" not in answer.headers
        assert "<img" not in answer.text.replace('<img src="/dashboard', "")


def test_a_form_that_is_none_is_refused(anonymous: TestClient) -> None:
    headers = {**ORIGIN, "Content-Type": "application/x-www-form-urlencoded"}
    for body, status in ((b"a=1&" * 99, 422), (b"\xff%zz;=&&=", 401), (b"x" * (1 << 21), 413)):
        answer = anonymous.post("/dashboard/sign-in", content=body, headers=headers)
        assert answer.status_code == status


@pytest.mark.parametrize("charset", ["punycode", '"PunyCode"', "undefined", "idna", "utf-16"])
def test_a_form_of_another_charset_is_refused(
    anonymous: TestClient, owner: str, charset: str
) -> None:
    """The parser decodes in the event loop: punycode in quadratic time, and undefined raises."""

    def answered(path: str, kind: str, body: bytes, status: int) -> None:
        headers = {**ORIGIN, "Content-Type": kind}
        answer = anonymous.post(f"/dashboard/{path}", content=body, headers=headers)
        assert answer.status_code == status, (path, kind)

    plain, parts = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
    field = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\ntw_a-b\r\n--b--\r\n'
    text, file = field % (b"token", b""), field % (b"records", b'; filename="r"')
    answered("sign-in", f"{parts}; charset={charset}", text, 422)
    answered("sign-in", parts, text, 422)
    answered("sign-in", f"{plain}; charset={charset}", b"token=a", 422)
    answered("sign-in", f"{plain}; charset=UTF-8", b"token=a", 401)
    sign_in(anonymous, owner)
    answered("records/import", f"{parts}; charset={charset}", file, 422)
    answered("records/import", f"{parts}; charset=utf-8", file, 200)


def test_a_malformed_form_of_files_is_refused(anonymous: TestClient, owner: str) -> None:
    sign_in(anonymous, owner)
    for kind in ("multipart/form-data", f"multipart/form-data; boundary={'b' * 999}"):
        headers = {**ORIGIN, "Content-Type": kind}
        answer = anonymous.post("/dashboard/records/import", content=b"--x", headers=headers)
        assert answer.status_code == 422, kind


def test_pages_are_counted_by_their_routes(anonymous: TestClient, owner: str) -> None:
    """Unknown paths create no new series of the metrics."""
    sign_in(anonymous, owner)
    for path in ("nowhere-1", "static/none-1", "static/icon.svg", "jobs/none-1", "jobs"):
        anonymous.get(f"/dashboard/{path}")
    text = anonymous.get("/v1/metrics", headers={"Authorization": f"Bearer {owner}"}).text
    assert "none-1" not in text and "nowhere-1" not in text
    assert '/dashboard/jobs/{job_id}"' in text and '"/dashboard/jobs"' in text


def test_a_token_that_may_not_look_is_told_at_once(anonymous: TestClient, storage: Storage) -> None:
    secret, _ = storage.tokens.create("board", [Scope.MEASURE])
    answer = sign_in(anonymous, secret)
    assert answer.status_code == 403
    assert "has no scope" in answer.text and "set-cookie" not in answer.headers


def test_signing_in_leads_nowhere_else(anonymous: TestClient, owner: str) -> None:
    for back in (
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "/dashboard/\r\nSet-Cookie: x=1",
        "/dashboardx",
    ):
        assert sign_in(anonymous, owner, back).headers["location"] == "/dashboard/jobs"


def test_a_revoked_token_is_out_at_once(
    anonymous: TestClient, owner: str, storage: Storage
) -> None:
    secret, token = storage.tokens.create("guest", [Scope.READ])
    sign_in(anonymous, secret)
    assert "guest" in opened(anonymous, "/dashboard/jobs").text
    bearer = {"Authorization": f"Bearer {owner}"}
    assert anonymous.delete(f"/v1/tokens/{token.id}", headers=bearer).status_code == 200
    answer = anonymous.get("/dashboard/jobs", follow_redirects=False)
    assert answer.headers["location"].startswith("/dashboard/sign-in")
    assert COOKIE not in anonymous.cookies, "the browser forgets it"
    part = anonymous.get("/dashboard/jobs", headers={"HX-Request": "true"}, follow_redirects=False)
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/dashboard/sign-in")


def test_a_link_of_somebody_elses_page_signs_nobody_out(anonymous: TestClient) -> None:
    """A browser follows it without the cookie, and keeps the cookie unless the answer deletes
    it."""
    answer = anonymous.get("/dashboard/jobs", follow_redirects=False)
    assert answer.status_code == 303 and "set-cookie" not in answer.headers


def test_signing_out_forgets_the_token(anonymous: TestClient, owner: str) -> None:
    sign_in(anonymous, owner)
    answer = anonymous.post("/dashboard/sign-out", headers=ORIGIN, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in")
    assert COOKIE not in anonymous.cookies


def test_no_other_page_makes_a_browser_change_anything(
    client: TestClient, owner: str, storage: Storage
) -> None:
    job = submit(client)
    sign_in(client, owner)
    strangers: list[dict[str, str]] = [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://testserver:81"},
        {"Origin": "http://["},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", **ORIGIN},
        {"Sec-Fetch-Site": "none", **ORIGIN},
    ]
    for headers in strangers:
        for path in (f"jobs/{job['id']}/cancel", "sign-out", "sign-in"):
            answer = client.post(f"/dashboard/{path}", data={"token": owner}, headers=headers)
            assert answer.status_code == 403, (path, headers)
    assert storage.jobs.get(job["id"]).state.value == "queued"
    assert COOKIE in client.cookies


def test_the_cookie_is_no_token_for_rest_and_a_token_no_cookie(
    anonymous: TestClient, owner: str
) -> None:
    sign_in(anonymous, owner)
    cookie = {"Cookie": f"{COOKIE}={owner}"}
    assert anonymous.get("/v1/jobs", headers=cookie).status_code == 401
    anonymous.cookies.clear()
    bearer = {"Authorization": f"Bearer {owner}"}
    answer = anonymous.get("/dashboard/jobs", headers=bearer, follow_redirects=False)
    assert answer.status_code == 303


def test_every_answer_forbids_what_is_not_ours(anonymous: TestClient, owner: str) -> None:
    sign_in(anonymous, owner)
    for path in ("sign-in", "jobs", "jobs/none", "nowhere", "static/dashboard.css"):
        answer = anonymous.get(f"/dashboard/{path}")
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, path
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert anonymous.get("/dashboard/jobs").headers["cache-control"] == "no-store"


def test_what_is_not_there_is_a_page(anonymous: TestClient, owner: str) -> None:
    sign_in(anonymous, owner)
    for path in ("jobs/none", "nowhere", "jobs/%3Cimg%20src=x%3E", "static/nothing.js"):
        answer = anonymous.get(f"/dashboard/{path}")
        assert answer.status_code == 404
        assert answer.headers["content-type"].startswith("text/html")
        assert "<img src=x" not in answer.text


def test_files_are_served_from_their_folder_alone(anonymous: TestClient) -> None:
    for path in STATIC.rglob("*.*"):
        name = path.relative_to(STATIC)
        answer = anonymous.get(f"/dashboard/static/{name}")
        assert answer.status_code == 200 and answer.content == path.read_bytes()
        again = {"If-None-Match": answer.headers["etag"]}
        assert anonymous.get(f"/dashboard/static/{name}", headers=again).status_code == 304
    for path in ("..%2fapp.py", "%2e%2e/app.py", "../app.py", "vendor/..%2f..%2fapp.py"):
        assert anonymous.get(f"/dashboard/static/{path}").status_code == 404


def test_vendored_files_say_their_licences() -> None:
    vendor = STATIC / "vendor"
    licences = {path.stem: path.read_text() for path in vendor.glob("*.LICENSE")}
    assert "Zero-Clause BSD" in licences["htmx"] and "MIT" in licences["uPlot"]
    known = re.compile(r"(htmx|hx-|uPlot)")
    assert all(known.match(path.name) for path in vendor.iterdir())
