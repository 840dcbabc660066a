"""`tilewright server run`: its address, its output, and its tuner and worker."""

from __future__ import annotations

import json
import queue
import signal
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import uvicorn

from tilewright.service.cli import run, serving
from tilewright.service.cli.serving import Supervised, _local_worker
from tilewright.service.embedded import read_token
from tilewright.service.settings import Settings


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Handlers of signals are the process's: they end with the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Stub:
    """Replaces a supervised process; `running` are the commands of those that did not end."""

    running: ClassVar[dict[str, list[str]]] = {}

    def __init__(self, command: str, arguments: list[str]) -> None:
        self._command = command
        Stub.running[command] = arguments

    def ask_to_end(self) -> None:
        assert self._command in Stub.running

    def wait(self) -> None:
        del Stub.running[self._command]


@pytest.mark.parametrize(
    ("without", "starts", "printing"),
    [
        ((), True, []),
        (("tuner",), False, []),
        (("worker",), True, ["--quiet"]),
        ((), True, ["--verbose", "--json"]),
    ],
)
def test_it_serves_where_it_is_told_with_a_tuner_and_a_worker(
    settings: Settings,
    starts: bool,
    without: tuple[str, ...],
    printing: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    served: list[tuple[Any, ...]] = []

    def serve(server: Any, sockets: Any) -> None:
        server.started = starts
        served.append((*sockets[0].getsockname(), dict(Stub.running), server.config.app))
        # the signal by which `run` of a server ends
        signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)  # type: ignore[operator,misc]
        while not server.should_exit:
            pass

    monkeypatch.setattr(serving, "Supervised", Stub)
    monkeypatch.setattr(uvicorn.Server, "run", serve)
    monkeypatch.setenv("TILEWRIGHT_PORT", "1")
    options = ["--host", "127.0.0.1", "--port", "0", *(f"--no-{name}" for name in without)]
    assert run(["server", "run", *options, *printing]) == (0 if starts else 1)
    ((host, port, children, app),) = served
    assert host == "127.0.0.1" and port > 1
    assert children.keys() == {"tuner", "worker"} - {*without}
    assert Stub.running == {}, "they end with the service"
    assert children.get("tuner", printing) == printing, "they print as it does"
    found = app.state.settings
    assert (found.log_format == "json") == ("--json" in printing)
    levels = {"--quiet": "warning", "--verbose": "debug"}
    assert found.log_level == levels.get("".join(printing[:1]), "info")
    if "worker" in children:
        assert children["worker"] == [
            *("--server", f"http://127.0.0.1:{port}"),
            *("--token-file", str(settings.worker_token_file)),
            *("--spool", str(settings.data_folder / "worker")),
            *printing,
        ]
        assert settings.worker_token_file.read_text().strip() not in ("", read_token(settings))
    assert app.state.settings.port == 0 and app.state.settings.data_folder == settings.data_folder
    told = capsys.readouterr().err.splitlines()
    if "--quiet" in printing:
        assert told == []
        return
    url = f"http://127.0.0.1:{port}"
    first = json.loads(told[0])["event"] if "--json" in printing else told[0]
    assert first == f"serving {url}/v1, the owner's token is in {settings.token_file}"
    assert read_token(settings), "it is there"
    sentence = f"error: the service at {url} did not start; its log says why"
    second = json.loads(told[1])["event"] if "--json" in printing else told[1]
    assert second == f"dashboard: {url}/dashboard/"
    assert told[2:] == ([] if starts else [sentence])


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080"),
        ("10.0.0.7", "http://10.0.0.7:8080"),
        ("localhost", "http://localhost:8080"),
    ],
)
def test_the_local_worker_finds_the_service_by_an_address_it_listens_on(
    settings: Settings, host: str, url: str
) -> None:
    assert _local_worker(settings.model_copy(update={"host": host}), 8080)[1] == url


@pytest.mark.parametrize(
    ("host", "expected"), [("::1", "[::1]"), ("10.0.0.7", "10.0.0.7"), ("localhost", "localhost")]
)
def test_only_an_ipv6_address_has_brackets_in_a_url(host: str, expected: str) -> None:
    assert serving.url_host(host) == expected


class Child:
    """Stands for a process; `status` is None while it lives."""

    def __init__(self, command: list[str], status: int | None, told: queue.Queue[str]) -> None:
        assert command[-5:] == [
            "tilewright.service.cli",
            "server",
            "worker",
            "--with-parent",
            "--name=x",
        ]
        self.returncode, self._told = status, told

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self._told.put("terminated")

    def wait(self, seconds: float) -> None:
        self._told.put(f"waited {seconds:g}")


def test_a_child_that_dies_is_started_again_and_ends_with_the_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: queue.Queue[str] = queue.Queue()
    statuses = iter((3, None))

    def start(command: list[str]) -> Child:
        told.put("started")
        return Child(command, next(statuses), told)

    monkeypatch.setattr("tilewright.service.cli.serving.subprocess.Popen", start)
    child = Supervised("worker", ["--name=x"])
    assert [told.get(timeout=60) for _ in range(2)] == ["started"] * 2
    child.ask_to_end()
    child.wait()
    assert [told.get(timeout=60) for _ in range(2)] == ["terminated", "waited 10"]
    assert capsys.readouterr().err == "the worker ended (3)\n"
    assert told.empty(), "the one that lived was started once"
