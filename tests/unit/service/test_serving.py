"""`tilewright serve`: where it listens, what it says, and the tuner beside it."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from tilewright.service.cli import run, serving
from tilewright.service.cli.serving import _TunerProcess
from tilewright.service.embedded import read_token
from tilewright.service.settings import Settings


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Handlers of signals are the process's: they end with the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Tuner:
    """Stands for the tuner process."""

    started: int

    def __init__(self) -> None:
        Tuner.started += 1

    def stop(self) -> None:
        Tuner.started -= 1


@pytest.mark.parametrize("starts", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_it_serves_where_it_is_told_with_a_tuner_beside_it(
    settings: Settings,
    starts: bool,
    alone: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    served: list[tuple[Any, ...]] = []

    def serve(server: Any, sockets: Any) -> None:
        server.started = starts
        served.append((*sockets[0].getsockname(), Tuner.started, server.config.app))
        # what `run` of a server ends by
        signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)  # type: ignore[operator,misc]
        while not server.should_exit:
            pass

    Tuner.started = 0
    monkeypatch.setattr(serving, "_TunerProcess", Tuner)
    monkeypatch.setattr(uvicorn.Server, "run", serve)
    monkeypatch.setenv("TILEWRIGHT_PORT", "1")
    options = ["--host", "127.0.0.1", "--port", "0", *["--no-tuner"] * alone]
    assert run(["serve", *options]) == (0 if starts else 1)
    ((host, port, tuners, app),) = served
    assert host == "127.0.0.1" and port > 1
    assert (tuners, Tuner.started) == (0 if alone else 1, 0), "it ends with the service"
    assert app.state.settings.port == 0 and app.state.settings.data_folder == settings.data_folder
    told = capsys.readouterr().err.splitlines()
    url = f"http://127.0.0.1:{port}"
    assert told[0] == f"serving {url}/v1, the owner's token is in {settings.token_file}"
    assert read_token(settings), "it is there"
    sentence = f"error: the service at {url} did not start; its log says why"
    assert told[1:] == [] if starts else [sentence]


class Child:
    """Stands for a process; `status` is None while it lives."""

    def __init__(self, command: list[str], status: int | None, told: queue.Queue[str]) -> None:
        assert command[1:] == ["-P", "-m", "tilewright.service.cli", "tuner", "--with-parent"]
        self.returncode, self._told = status, told

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self._told.put("terminated")

    def wait(self, seconds: float) -> None:
        self._told.put(f"waited {seconds:g}")


def test_a_tuner_that_dies_is_started_again_and_ends_with_the_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: queue.Queue[str] = queue.Queue()
    statuses = iter((3, None))

    def start(command: list[str]) -> Child:
        told.put("started")
        return Child(command, next(statuses), told)

    monkeypatch.setattr("tilewright.service.cli.serving.subprocess.Popen", start)
    tuner = _TunerProcess()
    assert [told.get(timeout=60) for _ in range(2)] == ["started"] * 2
    tuner.stop()
    assert [told.get(timeout=60) for _ in range(2)] == ["terminated", "waited 10"]
    assert capsys.readouterr().err == "the tuner ended (3)\n"
    assert told.empty(), "the one that lived was started once"
