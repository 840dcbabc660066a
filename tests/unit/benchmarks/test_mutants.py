"""Mistakes that are made for tests to notice, and the session that judges them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutant_session import Reply, Request

ROOT = Path(__file__).parents[3]
SOURCE = '''"""A module."""


def least(a: int, b: int) -> int:
    """The smaller one."""
    if a < b and a != 7:
        return a
    return b
'''
TEST = """from small.least import least


def test_least() -> None:
    assert [least(1, 2), least(3, 2), least(7, 9)] == [1, 2, 9]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in (("small/least.py", SOURCE), ("test_least.py", TEST)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def session(project: Path) -> Iterator[Any]:
    """Asks a session in the project, by the path of a mutant and its text."""
    script = str(ROOT / "benchmarks" / "mutant_session.py")
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, script], cwd=project, stdin=pipe, stdout=pipe, text=True
    ) as process:

        def ask(limit_seconds: float, path: str = "", text: str = "") -> Reply:
            assert process.stdin is not None and process.stdout is not None
            request = Request(("-q", "-x", "test_least.py"), limit_seconds, path, text)
            process.stdin.write(json.dumps(asdict(request)) + "\n")
            process.stdin.flush()
            return Reply(**json.loads(process.stdout.readline()))

        yield ask


def test_one_session_judges_many_mutants(session: Any, project: Path) -> None:
    path = "small/least.py"
    assert session(60).code == 0
    caught = session(60, path, SOURCE.replace("a < b", "a > b"))
    assert caught.code == 1 and "1 failed" in caught.tail
    assert session(60, path, SOURCE.replace("a < b", "a <= b")).code == 0
    broken = session(60, path, SOURCE.replace("def least", "raise least"))
    assert broken.code not in (0, None)
    endless = session(3, path, SOURCE.replace("    return b", "    while b:\n        pass"))
    assert endless.timed_out and endless.code is None
    dead = session(60, path, SOURCE.replace("    return b", "    import os; os.abort()"))
    assert dead.code is None and not dead.timed_out
    assert (project / path).read_text() == SOURCE
    assert session(60).code == 0


def test_a_sample_is_of_different_modules_that_compile(project: Path) -> None:
    pytest.importorskip("mutmut", reason="the extra 'mutants' is not installed")
    from benchmarks.mutations import sample

    everything, places = sample(project, "small", 1000, 0)
    assert len(everything) <= places
    assert len({mutant.text for mutant in everything}) == len(everything)
    for mutant in everything:
        compile(mutant.text, mutant.path, "exec")
        assert mutant.path == "small/least.py" and 4 <= mutant.line <= 8
        assert mutant.text.startswith('"""A module."""')
    changes = {mutant.change for mutant in everything}
    assert {
        "if a < b and a != 7: -> if a <= b and a != 7:",
        "if a < b and a != 7: -> if (False):",
        "if a < b and a != 7: -> if (a != 7):",
        "if a < b and a != 7: -> if a < b or a != 7:",
    } <= changes
    few, _ = sample(project, "small", 5, 3)
    assert few == sample(project, "small", 5, 3)[0] and len(few) == 5
    assert {m.text for m in few} <= {m.text for m in everything}
    assert few != sample(project, "small", 5, 4)[0]


def test_a_long_change_is_shown_from_a_little_before_it() -> None:
    pytest.importorskip("mutmut", reason="the extra 'mutants' is not installed")
    from benchmarks.mutations import LONGEST_CHANGE, change

    line = "x = [" + ", ".join(map(str, range(80))) + "]"
    shown = change(f"{line}\ny = 1\n", f"{line.replace(' 60,', ' 61,')}\ny = 1\n")
    assert "60, 61" in shown.split(" -> ")[0] and "61, 61" in shown.split(" -> ")[1]
    assert shown.startswith("... ") and len(shown) <= LONGEST_CHANGE + 20


def test_a_report_counts_and_keeps_what_was_read() -> None:
    pytest.importorskip("mutmut", reason="the extra 'mutants' is not installed")
    from benchmarks.mutants import JUDGES, report
    from benchmarks.report import Origin

    rows = [
        {"path": "a.py", "line": n, "operator": "number", "change": f"{n} -> {n + 1}",
         "outcome": outcome, "seconds": 1.0, "reading": reading}
        for n, (outcome, reading) in enumerate(
            [("caught", ""), ("timed out", ""), ("survived", "equal"), ("caught", "")]
        )
    ]  # fmt: skip
    result = {
        "origin": asdict(Origin()), "command": "make mutants", "tests": ["tests/unit"],
        "versions": {"mutmut": "3"}, "count": 5, "seed": 0, "places": 9, "rows": rows,
        "survived_before": 2,
    }  # fmt: skip
    text = report({"compiler/passes": result})
    assert "| compiler/passes | 4 | 3 | 1 | 1 | 75.0% |" in text
    assert "- `a.py:2` `2 -> 3`: equal" in text
    assert "4 of 5 mutants, drawn from 9 places" in text
    assert "2 survived the run before." in text
    assert [path for tests in JUDGES.values() for path in tests if not (ROOT / path).exists()] == []
