"""A browser's side of the dashboard, and strangers who write text that must be escaped."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from fastapi.testclient import TestClient

HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
ORIGIN = {"Origin": "http://testserver"}


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def charts(self) -> dict[str, Any]:
        """The data of the charts, by the element's id; valid JSON without infinities."""
        found = {a.get("id") or "": a.get("data-chart") for _, a in self.found}
        return {
            name: json.loads(data, parse_constant=lambda text: 1 / 0)
            for name, data in found.items()
            if data is not None
        }

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def sign_in(client: TestClient, secret: str, back: str = "") -> Any:
    client.headers.pop("Authorization", None)
    form = {"token": secret, "next": back}
    return client.post("/dashboard/sign-in", data=form, headers=ORIGIN, follow_redirects=False)


def opened(client: TestClient, path: str) -> Elements:
    """An existing page that is safe: it has no inline scripts, and no element from a stranger's
    text."""
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    seen = Elements(answer.text)
    assert not [a for _, a in seen.found if "onerror" in a or "style" in a or "onclick" in a]
    assert all(script.get("src") for script in seen.named("script")), "no inline script"
    assert not seen.named("style")
    addresses = [a.get(name) or "" for _, a in seen.found for name in ("src", "href", "action")]
    assert not [each for each in addresses if "//" in each], "nothing from elsewhere"
    return seen
