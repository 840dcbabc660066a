"""The page of devices gives an admin who adds one a link with its QR code, or a command."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
from urllib.parse import parse_qs, urlsplit

import pytest
import segno
from fastapi.testclient import TestClient

from tests.unit.service.pages import HOSTILE, ORIGIN, Elements, opened, sign_in
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.service.dashboard import device_pages
from tilewright.service.dashboard.adding import LINK_SECONDS, browsers_measure_here, link_code
from tilewright.service.dashboard.qr import BORDER, QrCode, qr_code

ADD = "/dashboard/devices/add"


@pytest.fixture
def browser(anonymous: TestClient, owner: str) -> TestClient:
    assert sign_in(anonymous, owner).status_code == 303
    return anonymous


def shown(text: str, place: str) -> str:
    found = re.search(rf'<pre tabindex="0" id="{place}">([^<]+)<', text)
    assert found is not None
    return html.unescape(found[1])


def test_a_browser_gets_a_link_for_an_hour(browser: TestClient, storage: Storage) -> None:
    form = {"name": HOSTILE, "kind": "browser"}
    made = browser.post(ADD, data=form, headers=ORIGIN)
    assert made.status_code == 200 and made.headers["cache-control"] == "no-store"
    link = urlsplit(shown(made.text, "link"))
    assert (link.netloc, link.path, link.query) == ("testserver", "/worker", "")
    given = parse_qs(link.fragment)
    token = storage.tokens.verify(given["token"][0])
    assert given["name"] == [HOSTILE] and token is not None and token.scopes == {Scope.MEASURE}
    assert token.expires_at == pytest.approx(token.created_at + LINK_SECONDS)
    seen = Elements(made.text)
    assert [svg["aria-label"] for svg in seen.named("svg")] == ["QR code of the link"]
    assert not [a for _, a in seen.found if "style" in a or "onerror" in a]
    assert "only over https" in made.text, "testserver is not this machine"
    assert browser.get("/worker").status_code == 200
    assert given["token"][0] not in browser.get("/dashboard/devices").text


def test_nobody_waits_for_a_code_to_be_drawn(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = []

    def drawn(link: str) -> QrCode | None:
        try:
            loops.append(asyncio.get_running_loop())
        except RuntimeError:
            return link_code(link)
        return None

    monkeypatch.setattr(device_pages, "link_code", drawn)
    made = browser.post(ADD, data={"name": "phone", "kind": "browser"}, headers=ORIGIN)
    assert made.status_code == 200 and not loops and "QR code of the link" in made.text


def test_a_machine_gets_a_command(browser: TestClient, storage: Storage) -> None:
    form = {"name": "board 3; rm -rf /", "kind": "python"}
    made = browser.post(ADD, data=form, headers=ORIGIN)
    words = shlex.split(shown(made.text, "command").splitlines()[1])
    assert words[:3] == ["tilewright-worker", "--server", "http://testserver"]
    assert words[-2:] == ["--name", form["name"]]
    secret = shlex.split(shown(made.text, "command").splitlines()[0])[4]
    token = storage.tokens.verify(secret)
    assert token is not None and token.scopes == {Scope.MEASURE} and token.expires_at is None
    assert "<svg" not in made.text


def test_only_an_admin_adds_devices(anonymous: TestClient, storage: Storage) -> None:
    secret, _ = storage.tokens.create("board", [Scope.READ, Scope.MEASURE])
    sign_in(anonymous, secret)
    page = opened(anonymous, "/dashboard/devices")
    assert "tilewright device link" in page.text, "how an admin does it"
    assert ADD not in {form.get("action") for form in page.named("form")}
    before = len(storage.tokens.list())
    form = {"name": "x", "kind": "browser"}
    assert anonymous.post(ADD, data=form, headers=ORIGIN).status_code == 403
    assert len(storage.tokens.list()) == before


def test_a_form_that_is_wrong_makes_no_token(browser: TestClient, storage: Storage) -> None:
    before = len(storage.tokens.list())
    for form in ({}, {"name": ""}, {"name": " "}, {"name": "x" * 201}, {"name": "a\0b"}):
        answer = browser.post(ADD, data=form, headers=ORIGIN)
        assert answer.status_code == 422 and 'role="alert"' in answer.text
    assert len(storage.tokens.list()) == before


def test_a_drawing_has_the_fields_of_the_code() -> None:
    text = "https://service.example/worker#token=tw_x&name=phone"
    code = qr_code(text)
    matrix = segno.make_qr(text, error="m").matrix
    assert code.size == len(matrix) + 2 * BORDER
    drawn = set()
    for x, y, run in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\3z", code.path):
        drawn |= {(int(x) + n - BORDER, int(y) - BORDER) for n in range(int(run))}
    assert drawn == {(x, y) for y, row in enumerate(matrix) for x, on in enumerate(row) if on}
    assert link_code("x" * 3000) is None


@pytest.mark.parametrize(
    ("server", "works"),
    [
        ("https://x.example", True),
        ("http://localhost:8080", True),
        ("http://[::1]:8080", True),
        ("http://192.0.2.7:8080", False),
        ("http://localhost.example", False),
    ],
)
def test_where_browsers_let_a_page_measure(server: str, works: bool) -> None:
    assert browsers_measure_here(server) is works
