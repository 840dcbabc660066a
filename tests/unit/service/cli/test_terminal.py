"""Text from other users is escaped before it reaches a terminal."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fastapi.testclient import TestClient
from rich.table import Table
from rich.text import Text

from tilewright.db.storage import Storage
from tilewright.service.cli import run
from tilewright.service.cli.terminal import complain, console, say, say_json, visible
from tilewright.tuner.protocol.version import PROTOCOL

HOSTILE = "w\x1b[2J\x1b]0;owned\x07\x9b31m\r\b\u202eevil"
"""Clears the screen, renames the window, turns red, overwrites the line, reads backwards."""

OBEYED = re.compile(r"[^\n\t\x20-\x7e]")


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert visible("узел '節點' 😀\n\tx") == "узел '節點' 😀\n\tx"
    shown = visible(HOSTILE)
    assert not OBEYED.search(shown)
    assert shown == r"w\x1b[2J\x1b]0;owned\x07\x9b31m\r\x08\u202eevil"


def test_every_way_out_is_guarded(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    complain(HOSTILE)
    out = console()
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    for renderable in (HOSTILE, Text(HOSTILE), table):
        out.print(renderable, soft_wrap=True)
    found = capsys.readouterr()
    assert visible(HOSTILE) in found.out and visible(HOSTILE) in found.err
    for line in (found.out + found.err).splitlines():
        assert not set("\x1b\x07\x9b\r\b\u202e") & set(line)


def test_what_is_printed_as_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    ratios = {"low": float("nan"), "high": [float("inf"), -float("inf"), 1.5]}
    say_json({"name": f"{HOSTILE}\x7f", **ratios})
    found = capsys.readouterr().out
    told = json.loads(found, parse_constant=pytest.fail)
    assert told == {"name": f"{HOSTILE}\x7f", "low": None, "high": [None, None, 1.5]}
    assert not OBEYED.search(found)


def test_colours_are_the_consoles_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = console()
    with out.capture() as captured:
        out.print(Text(HOSTILE, style="bold"))
        out.print("[red]x[/nonsense]")
    said = captured.get()
    assert said.startswith("\x1b[1m") and "\x1b[2J" not in said and "\x1b]" not in said
    assert "[red]x[/nonsense]" in said, "brackets are text"


@pytest.fixture
def service(server: Any, owner: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TILEWRIGHT_SERVER", server.url)
    monkeypatch.setenv("TILEWRIGHT_TOKEN", owner)
    return server


@pytest.mark.parametrize("command", [["device", "list"], ["device", "list", "--json"]])
def test_a_workers_name_commands_no_terminal(
    service: Any, storage: Storage, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """One that an earlier release let in: names were not looked at then."""
    facts = {"model": HOSTILE, "governor": HOSTILE, "caches": [], "cores": HOSTILE}
    storage.workers.register(HOSTILE, [], facts, protocol=PROTOCOL)
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert "]0;owne" in shown and not set("\x1b\x07\x9b\r\b\u202e") & set(shown)


@pytest.mark.parametrize("name", [HOSTILE, "a\nb", " a", "a ", "\u202ea"])
def test_a_name_that_is_not_what_it_looks_like_is_refused(client: TestClient, name: str) -> None:
    body = {"name": name, "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
    token = {"name": name, "scopes": ["read"]}
    for answer in (
        client.post("/v1/workers", json=body),
        client.post("/v1/tokens", json=token),
        client.post("/v1/models", params={"name": name}, content=b"x"),
    ):
        assert answer.status_code == 422
        assert "control characters" in answer.json()["detail"]
