"""The demo's output folder, and how it goes on serving."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from examples.demo import Case, _wait_for_interrupt
from examples.demo_processes import ProcessDied, Processes


def test_an_artifact_has_a_folder_for_each_row() -> None:
    cases = [
        Case("mlp", "host", 1.0),
        Case("mlp", "x86-64-v3", 1.0),
        Case("squeezenet", "host", 1.0),
    ]
    assert [case.folder for case in cases] == [
        "artifact-mlp",
        "artifact-mlp-x86-64-v3",
        "artifact-squeezenet",
    ]


def test_one_process_goes_on_while_others_end(tmp_path: Path) -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    with Processes(tmp_path, {}) as processes:
        for name in ("serve", "tuner"):
            processes.start(name, sleeping)
        processes.stop(keep=("serve",))
        processes.check()
        assert [name for name, _ in processes._running] == ["serve"]
    assert processes._running == []


def test_serving_ends_with_a_signal_and_with_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    checked: list[Processes] = []

    def check(processes: Processes) -> None:
        checked.append(processes)
        if len(checked) == 2:
            signal.raise_signal(signal.SIGTERM)

    with Processes(tmp_path, {}) as processes:
        processes.start("serve", [sys.executable, "-c", "import time; time.sleep(60)"])
        with monkeypatch.context() as patched:
            patched.setattr(Processes, "check", check)
            _wait_for_interrupt(processes)
        assert len(checked) == 2
        assert signal.getsignal(signal.SIGTERM) is before
        processes.start("tuner", [sys.executable, "-c", "raise SystemExit(3)"])
        started = time.monotonic()
        with pytest.raises(ProcessDied, match="tuner ended with status 3"):
            _wait_for_interrupt(processes)
        assert time.monotonic() - started < 30
