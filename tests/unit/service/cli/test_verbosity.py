"""What commands print with `--quiet` and `--verbose`, and what they log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import structlog

from tests.unit.service.command_line import data_folder, model, run
from tilewright.service import logs
from tilewright.service.cli.common import load_settings
from tilewright.service.cli.verbosity import Verbosity, verbosity, with_verbosity

__all__ = ["data_folder", "model"]  # fixtures


@pytest.mark.parametrize(
    ("quiet", "verbose", "expected"),
    [
        (False, False, Verbosity.NORMAL),
        (True, False, Verbosity.QUIET),
        (False, True, Verbosity.VERBOSE),
    ],
)
def test_a_command_knows_its_verbosity_while_it_runs(
    quiet: bool, verbose: bool, expected: Verbosity
) -> None:
    found: list[Verbosity] = []
    with_verbosity(lambda: found.append(verbosity()))(quiet=quiet, verbose=verbose)
    assert found == [expected]
    assert verbosity() is Verbosity.NORMAL, "it ends with the command"


def test_a_command_is_not_quiet_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "targets", "-q", "-v") == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "--quiet and --verbose exclude each other" in printed.err


@pytest.mark.parametrize(
    ("stated", "options", "level"),
    [
        (None, (False, False), "warning"),
        ("info", (False, False), "info"),
        ("info", (True, False), "warning"),
        ("error", (True, False), "error"),
        (None, (False, True), "debug"),
    ],
)
def test_a_command_logs_from_a_level(
    stated: str | None,
    options: tuple[bool, bool],
    level: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if stated is not None:
        monkeypatch.setenv("TILEWRIGHT_LOG_LEVEL", stated)
    quiet, verbose = options
    levels = ("debug", "info", "warning", "error")

    def command() -> None:
        assert load_settings().log_level == level
        for each in levels:
            getattr(structlog.get_logger(), each)(f"said as {each}")

    with_verbosity(command)(quiet=quiet, verbose=verbose)
    printed = capsys.readouterr()
    told = [each for each in levels if f"said as {each}" in printed.err]
    assert told == list(levels[levels.index(level) :])
    assert printed.out == "", "results alone go to standard output"


def test_the_log_of_libraries_is_part_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("tilewright.test")
    logs.set_up("debug", "json")
    logger.info("a detail %d", 1)
    said = json.loads(capsys.readouterr().err)
    assert (said["event"], said["level"], said["logger"]) == ("a detail 1", "info", logger.name)
    logs.set_up("warning", "json")
    logger.info("a detail")
    logger.warning("a warning")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "a warning", "a line of JSON, as all others"
    logs.set_up("error", "json")
    logger.warning("a warning")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("few_children")
def test_a_quiet_tuning_prints_its_result_alone(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning = ("tune", model, "--dim", "batch=2", "--trials", "4")
    assert run(*tuning, "--quiet", "-o", tmp_path / "a") == 0
    printed = capsys.readouterr()
    assert printed.err == "" and "tuning 1 tasks" not in printed.out
    assert " trials, " in printed.out and f"artifact: {tmp_path / 'a'}" in printed.out
    assert run(*tuning, "-q", "--json") == 0
    printed = capsys.readouterr()
    assert printed.err == "" and json.loads(printed.out)["trials"] >= 0


def test_a_quiet_run_has_no_notes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = ("run", model, "--dim", "batch=2")
    assert run(*running) == 0
    loud = capsys.readouterr()
    assert "the inputs are random" in loud.err
    assert run(*running, "-q") == 0
    assert capsys.readouterr() == (loud.out, "")
