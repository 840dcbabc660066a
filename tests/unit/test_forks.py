"""`pytest --jobs`: forks run each test once and report it as one process would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CONFTEST = """
from tests import forks

def pytest_addoption(parser):
    parser.addoption(forks.JOBS, type=int, default=0)

pytest_runtestloop = forks.run_tests
"""

SUITE = """
import os, signal, time, warnings
from pathlib import Path
import pytest

def note(text):
    with open("notes", "a") as notes:
        notes.write(f"{text}\\n")

note("imported")

@pytest.fixture(scope="session", autouse=True)
def resource():
    yield note("begun")
    note("ended")

@pytest.mark.parametrize("number", range(40))
def test_number(number, tmp_path):
    note(f"{number} {os.getpid()} {tmp_path.parent.name}")
    time.sleep(0.01)

"""


def run(folder: Path, tests: str, *options: str) -> tuple[str, list[str]]:
    """The output of pytest for SUITE with these tests, and their notes."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(SUITE + tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--jobs=3"]
    # other plugins take a second to import
    plain = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, f"--basetemp={folder}/tmp", *options, "test_suite.py"],
        cwd=folder,
        env={**os.environ, **plain},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr, (folder / "notes").read_text().splitlines()


def numbers(notes: list[str]) -> list[list[str]]:
    return [note.split() for note in notes if note[0].isdigit()]


def test_each_test_runs_once_after_one_collection(tmp_path: Path) -> None:
    output, notes = run(
        tmp_path,
        """
def test_warning():
    warnings.warn("it is old", DeprecationWarning)

def test_skipped():
    pytest.skip("not here")

def test_failing(capsys):
    print("a line of output")
    assert 1 + 1 == 3, "arithmetic"
""",
    )
    assert "1 failed, 41 passed, 1 skipped, 1 warning" in output
    assert "DeprecationWarning: it is old" in output
    assert "arithmetic" in output and "assert (1 + 1) == 3" in output
    assert "a line of output" in output
    ran = numbers(notes)
    assert sorted(int(number) for number, _, _ in ran) == list(range(40))
    assert len({(process, folder) for _, process, folder in ran}) == 3, "a folder for each"
    assert notes.count("imported") == 1
    assert notes.count("begun") == notes.count("ended") == 3


def test_a_test_that_ends_its_process_fails_alone(tmp_path: Path) -> None:
    output, notes = run(
        tmp_path,
        """
@pytest.mark.parametrize("number", range(20, 24))
def test_ends(number):
    os.kill(os.getpid(), signal.SIGKILL) if number % 2 else os._exit(number)
""",
    )
    assert "4 failed, 40 passed" in output
    for number, how in ((20, "status 20"), (21, "SIGKILL"), (22, "status 22"), (23, "SIGKILL")):
        assert f"test_ends[{number}] - the process of this test ended with {how}" in output
    assert sorted(int(number) for number, _, _ in numbers(notes)) == list(range(40))


def test_no_test_starts_after_as_many_failures_as_are_allowed(tmp_path: Path) -> None:
    output, notes = run(
        tmp_path,
        """
@pytest.mark.parametrize("number", range(200))
def test_fails_slowly(number):
    time.sleep(0.02)
    assert False
""",
        "--maxfail=2",
    )
    assert "stopping after 2 failures" in output
    assert output.count("FAILED") < 10
    assert notes.count("begun") == notes.count("ended") >= 3


def test_a_single_test_runs_in_the_process_that_collected_it(tmp_path: Path) -> None:
    _, notes = run(tmp_path, "", "-k", "test_number[7]")
    assert [folder for _, _, folder in numbers(notes)] == ["tmp"]
