"""Mutations for tests to notice, the tests that judge them, and the stored results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mutmut", reason="the extra 'mutants' is not installed")

from benchmarks.mutant_judges import JUDGES
from benchmarks.mutant_recorder import Recording
from benchmarks.mutant_report import (
    Judged,
    Outcome,
    main,
    merged,
    read_results,
    report,
    write_results,
)
from benchmarks.mutant_session import Reply, Request
from benchmarks.mutant_swap import Functions, differing_functions
from benchmarks.mutant_tests import Recordings, logical_line
from benchmarks.mutants import Judge, run
from benchmarks.mutations import LONGEST_CHANGE, Mutant, change, sample
from benchmarks.report import Origin

ROOT = Path(__file__).parents[3]
SOURCE = '''"""A module."""

LIMIT = 7


def least(a: int, b: int, most: int = 9) -> int:
    """The smaller one."""
    if a < b and a != LIMIT:
        return a
    return min(
        b,
        most,
    )


def greatest(a: int, b: int) -> int:
    """The larger one."""
    return max(a, b)


OTHER = 5
'''
TEST = """import subprocess, sys

import pytest

from tilewright.compiler.least import least


@pytest.mark.parametrize("numbers", [(1, 2, 1), (3, 2, 2), (7, 9, 9), (17, 11, 9)])
def test_least(numbers: tuple[int, int, int]) -> None:
    assert least(*numbers[:2]) == numbers[2]


def test_elsewhere() -> None:
    code = "from tilewright.compiler.lazy import twice; print(twice(4))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "8\\n"


def test_that_fails_alone() -> None:
    assert least(5, 6) == 6
"""
READS = """from tilewright.compiler.least import OTHER


def test_other() -> None:
    assert OTHER == 5
"""
LAZY = '''def twice(n: int) -> int:
    """As much again."""
    return n + n
'''
LATE = """def thrice(n: int) -> int:
    return n + n + n
"""
AFTER = """from tilewright.compiler.late import thrice

BEFORE = []


def test_before() -> None:
    BEFORE.append(1)


def test_after() -> None:
    assert BEFORE and thrice(2) == 6
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {"compiler/least.py": SOURCE, "compiler/lazy.py": LAZY, "tests/test_least.py": TEST}
    files |= {"compiler/__init__.py": "", "tests/test_other.py": READS}
    files |= {"compiler/late.py": LATE, "tests/test_late.py": AFTER}
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    package = tmp_path / "project" / "tilewright"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "compiler").symlink_to("../compiler")
    return tmp_path / "project"


@pytest.fixture
def judge(project: Path, tmp_path: Path) -> Iterator[Judge]:
    with closing(Judge(project, ["tests"], tmp_path / "recordings")) as made:
        made.record(["tests"])
        yield made


def mutant_of(text: str, before: str, after: str, path: str = "compiler/least.py") -> Mutant:
    assert text.count(before) == 1
    line = text[: text.index(before)].count("\n") + 1
    return Mutant(path, line, "swap_op", f"{before} -> {after}", text.replace(before, after))


def test_mutants_are_judged_by_the_tests_that_execute_them(judge: Judge, project: Path) -> None:
    def judged(before: str, after: str) -> Judged:
        return judge.judge(mutant_of(SOURCE, before, after), 60)

    # in a function: its code is swapped
    caught = judged("a < b", "a > b")
    assert caught.outcome == Outcome.CAUGHT and caught.test.startswith("tests/test_least.py::test_")
    assert caught.tests == 4  # not the one that fails alone, nor the one that never comes here
    assert judged("a < b", "a <= b").outcome == Outcome.SURVIVED
    rest = judged("        most", "        99")
    assert rest.outcome == Outcome.CAUGHT and rest.tests == 3  # that return another value than `a`
    assert judged("max(a, b)", "min(a, b)").outcome == Outcome.NOT_EXECUTED
    # at import: the module is imported anew
    assert judged("LIMIT = 7", "LIMIT = 3").outcome == Outcome.CAUGHT
    other = judged("OTHER = 5", "OTHER = 6")
    assert other.outcome == Outcome.CAUGHT and other.test == "tests/test_other.py::test_other"
    assert judged("most: int = 9", "most: int = 12").outcome == Outcome.CAUGHT
    assert judged("LIMIT = 7", "LIMIT = 7 // 0").outcome == Outcome.CAUGHT
    # in a process that a test starts
    twice = mutant_of(LAZY, "n + n", "n + 1", "compiler/lazy.py")
    elsewhere = judge.judge(twice, 60)
    assert elsewhere.outcome == Outcome.CAUGHT and elsewhere.tests == 1
    # a test that passes after another, but not alone, has caught nothing
    late = judge.judge(mutant_of(LATE, "n + n + n", "n + n", "compiler/late.py"), 60)
    assert late.outcome == Outcome.NOT_EXECUTED
    # a mutant neither ends the session nor holds it up
    assert judged("return min(", "while True: b\n    min(").outcome == Outcome.TIMED_OUT
    assert judged("return min(", "import os; os.abort()\n    min(").outcome == Outcome.CAUGHT
    assert judged("a < b", "a <= b").outcome == Outcome.SURVIVED
    assert (project / "compiler/least.py").read_text() == SOURCE
    # no more tests than there is time for
    short = judge.judge(mutant_of(SOURCE, "a < b", "a <= b"), 0)
    assert (short.tests, short.left_out) == (1, 3)


def test_what_is_recorded_once_is_not_recorded_again(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Judge(project, ["tests"], tmp_path / "recordings")) as once:
        once.record(["tests"])
    (kept,) = (tmp_path / "recordings").iterdir()
    first = kept.read_text()
    assert len(first.splitlines()) == 9
    assert "test_that_fails_alone judges nothing" in capsys.readouterr().out
    added = TEST + "\n\ndef test_more() -> None:\n    pass\n"
    (project / "tests/test_more.py").write_text(added.replace("def test_least", "def test_less"))
    kept.write_text("".join(first.splitlines(keepends=True)[:4]))  # ended after the fourth
    with closing(Judge(project, ["tests"], tmp_path / "recordings")) as again:
        again.record(["tests"])
    rows = [json.loads(line)["test"] for line in kept.read_text().splitlines()]
    assert len(rows) == len(set(rows)) == 9 + 7
    (project / "compiler/least.py").write_text(SOURCE + "\n# longer\n")
    with closing(Judge(project, ["tests"], tmp_path / "recordings")) as changed:
        changed.record(["tests"])
    assert len(list((tmp_path / "recordings").iterdir())) == 2


def test_one_case_of_each_function_judges_before_others(project: Path, tmp_path: Path) -> None:
    took = {"test_a[0]": 0.1, "test_a[1]": 0.2, "test_a[2]": 0.3, "test_b": 0.5, "test_c": 4.0}
    recordings = Recordings(tmp_path, project, [f"tests/test_least.py::{t}" for t in took], {})

    def ask(request: Request) -> Reply:
        lines = {"compiler/least.py": [(8, 9)]}
        found = [Recording(t, True, took[t.split("::")[1]], lines) for t in request.tests]
        return Reply(0, recorded=[asdict(one) for one in found])

    recordings.complete(["tests"], ask, print)
    mutant = mutant_of(SOURCE, "a < b", "a <= b")

    def chosen(limit_seconds: float) -> tuple[list[str], int]:
        choice = recordings.choose(mutant, limit_seconds)
        assert choice.seconds == tuple(took[test.split("::")[1]] for test in choice.tests)
        return [test.split("::")[1] for test in choice.tests], choice.left_out

    assert chosen(9.0) == (["test_a[0]", "test_b", "test_c", "test_a[1]", "test_a[2]"], 0)
    assert chosen(1.0) == (["test_a[0]", "test_b", "test_a[1]"], 2)
    assert chosen(0.0) == (["test_a[0]"], 4)


def test_functions_that_a_process_holds_take_other_code() -> None:
    source = """
def scaled(factor):
    kept = lambda x: x * factor
    return kept, [n for n in range(factor)]

class Counter:
    start: int = 5
    @property
    def twice(self): return self.start * 2

remembered = cache(lambda n: n + 1); doubled = cache(lambda n: n * 2)
"""
    namespace: dict[str, Any] = {"cache": lru_cache}
    exec(compile(source, "/held.py", "exec"), namespace)
    three = namespace["scaled"](3)[0]
    functions = Functions()

    def swap(before: str, after: str) -> None:
        differing = differing_functions(source, source.replace(before, after), "/held.py")
        assert differing and all(map(functions.has, differing))
        for pairs in differing:
            functions.swap(pairs)

    swap("x * factor", "x - factor")
    assert three(10) == 7  # a closure that was made before
    swap("self.start * 2", "self.start * 3")
    assert namespace["Counter"]().twice == 15
    swap("n * 2", "n * 4")
    assert (namespace["remembered"](4), namespace["doubled"](4)) == (5, 16)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 7", "LIMIT = 8"),
        ("most: int = 9", "most: int = 9.0"),
        ("def greatest(a: int, b: int)", "def greatest(a: int, b: int, c: int = 1)"),
        ('"""A module."""', "class Kept:\n    number = 1"),
    ],
)
def test_what_acts_at_import_is_no_function_of_its_own(before: str, after: str) -> None:
    assert before in SOURCE
    assert differing_functions(SOURCE, SOURCE.replace(before, after), "least.py") is None


def test_numbers_of_other_kinds_are_other_code() -> None:
    for before, after in (("1", "True"), ("0.0", "-0.0"), ("(1, 2)", "(1, 2.0)")):
        text = "def number():\n    return {}\n"
        assert differing_functions(text.format(before), text.format(after), "a.py")
    assert differing_functions(text, text, "a.py") == []
    assert differing_functions(text, "\n\n" + text, "a.py") == []  # lines alone


def test_a_line_stands_for_its_statement() -> None:
    text = """x = [
    1,
    2,
]
if x and (
    x[0]
):
    # a comment
    y = 1; z = 2
"""
    spans = [logical_line(text, line) for line in range(1, 10)]
    assert spans[:4] == [range(1, 5)] * 4 and spans[4:7] == [range(5, 8)] * 3
    assert spans[8] == range(9, 10)


class Listed:
    """Judges by a rule, and records its calls."""

    def __init__(self, survives: Callable[[Mutant], bool], ends_after: int = 10**6) -> None:
        self.asked: list[str] = []
        self._survives, self._ends_after = survives, ends_after

    def judge(self, mutant: Mutant, limit_seconds: float) -> Judged:
        if len(self.asked) == self._ends_after:
            raise KeyboardInterrupt
        self.asked.append(mutant.text)
        outcome = Outcome.SURVIVED if self._survives(mutant) else Outcome.CAUGHT
        return Judged.of(mutant, outcome)


def test_a_run_that_was_ended_goes_on_where_it_was(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(JUDGES, "compiler", ("tests",))

    def rows() -> list[Judged]:
        results = read_results(tmp_path)
        return [Judged(**row) for row in results["compiler"]["rows"]]

    def go(
        judge: Listed, count: int = 12, again: bool = False, by: Sequence[str] = ()
    ) -> list[str]:
        options = argparse.Namespace(
            count=count, seed=0, seconds=1.0, again=again, by=list(by), output=tmp_path
        )
        run("compiler", judge, project, options)  # type: ignore[arg-type]
        return judge.asked

    def odd(mutant: Mutant) -> bool:
        return len(mutant.text) % 2 == 1

    ended = Listed(odd, ends_after=5)
    with pytest.raises(KeyboardInterrupt):
        go(ended)
    assert len(rows()) == 5
    rest = go(Listed(odd))
    assert len(rest) == 7 and not set(rest) & set(ended.asked) and len(rows()) == 12
    assert go(Listed(odd)) == []
    # more of them, then the survivors once more; a stored verdict is kept
    assert len(go(Listed(odd), 15)) == 3
    results = read_results(tmp_path)
    survivors = [row for row in results["compiler"]["rows"] if row["outcome"] == "survived"]
    survivors[0]["reading"] = "equal"
    write_results(tmp_path, results)
    ended = Listed(odd, ends_after=2)
    with pytest.raises(KeyboardInterrupt):
        go(ended, 15, again=True)
    assert len(rows()) == 15 and [row.reading for row in rows() if row.reading] == ["equal"]
    assert len(go(Listed(odd), 15, again=True)) == len(survivors)
    assert [row.reading for row in rows() if row.reading] == ["equal"]
    # other code: all are judged again, but the reading is known
    (project / "compiler/lazy.py").write_text(LAZY + "\n# longer\n")
    assert len(go(Listed(odd), 15)) == 15
    assert [row.reading for row in rows() if row.reading] == ["equal"]
    # by a few tests: the survivors alone, and survivors of these stay as they were
    before, few = rows(), ["tests/test_other.py"]
    assert len(go(Listed(lambda mutant: True), 20, again=True, by=few)) == len(survivors)
    assert rows() == before
    caught = go(Listed(lambda mutant: len(mutant.text) % 3 == 0), 20, again=True, by=few)
    assert len(caught) == len(survivors) and len(rows()) == 15
    assert sum(row.survived() for row in rows()) == sum(len(text) % 3 == 0 for text in caught)
    assert read_results(tmp_path)["compiler"]["tests"] == [
        "tests",
        *few,
    ]


def test_a_sample_is_of_different_modules_that_compile(project: Path) -> None:
    everything, places = sample(project, "compiler", 1000, 0)
    assert len(everything) <= places
    assert len({mutant.text for mutant in everything}) == len(everything)
    for mutant in everything:
        compile(mutant.text, mutant.path, "exec")
        assert mutant.path.startswith("compiler/l") and 1 <= mutant.line <= 24
    changes = {mutant.change for mutant in everything}
    assert {
        "if a < b and a != LIMIT: -> if a <= b and a != LIMIT:",
        "if a < b and a != LIMIT: -> if (False):",
        "if a < b and a != LIMIT: -> if (a != LIMIT):",
        "if a < b and a != LIMIT: -> if a < b or a != LIMIT:",
    } <= changes
    few, _ = sample(project, "compiler", 5, 3)
    assert few == sample(project, "compiler", 5, 3)[0] and len(few) == 5
    assert {m.text for m in few} <= {m.text for m in everything}
    assert few != sample(project, "compiler", 5, 4)[0]


def test_migrations_are_no_place_for_mistakes(tmp_path: Path) -> None:
    for name in ("db/migrations/versions/v0001_first.py", "db/migrations/env.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(LAZY)
    mutants, _ = sample(tmp_path, "db", 100, 0)
    assert {mutant.path for mutant in mutants} == {"db/migrations/env.py"}


def test_words_for_people_are_no_place_for_mistakes(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli/options.py").write_text("""
if TYPE_CHECKING:
    from a import B

def made(self, n):
    log.info("made", n=n)
    self._log(f"made {n}")
    self._log.error("not made")
    return option("--n", help="how many")
""")
    mutants, _ = sample(tmp_path, "cli", 100, 0)
    assert {mutant.line for mutant in mutants} == {9}
    assert all('help="how many"' in mutant.text for mutant in mutants if "return" in mutant.text)


def test_a_long_change_is_shown_from_a_little_before_it() -> None:
    line = "x = [" + ", ".join(map(str, range(80))) + "]"
    shown = change(f"{line}\ny = 1\n", f"{line.replace(' 60,', ' 61,')}\ny = 1\n")
    assert "60, 61" in shown.split(" -> ")[0] and "61, 61" in shown.split(" -> ")[1]
    assert shown.startswith("... ") and len(shown) <= LONGEST_CHANGE + 20


def stored(date: str, reading: str = "") -> dict[str, Any]:
    """The results of a package with one survivor."""
    row = Judged("a.py", 0, "number", "0 -> 1", Outcome.SURVIVED, reading=reading)
    return {
        "origin": asdict(Origin(date=date)), "command": "make mutants", "tests": ["tests/unit"],
        "versions": {}, "count": 1, "seed": 0, "places": 1, "rows": [asdict(row)],
    }  # fmt: skip


def test_merged_results_are_the_later_run_of_each_package() -> None:
    before, after = "2026-11-22T15:00:00+00:00", "2026-11-30T01:00:00+00:00"
    ours = {"db": stored(after, "ours"), "tuner": stored(before, "ours")}
    theirs = {"db": stored(before), "tuner": stored(after), "service": stored(before)}
    assert merged(ours, theirs) == {**theirs, "db": ours["db"]}
    edited = {"db": stored(after, "edited")}
    assert merged(ours, edited) == {**ours, **edited}, "the same run with another reading"


@pytest.mark.parametrize("packed", [True, False])
def test_results_of_a_run_elsewhere_are_added(tmp_path: Path, packed: bool) -> None:
    folder, other = tmp_path / "results", tmp_path / "other"
    write_results(folder, {"db": stored("2026-11-22T15:00:00+00:00")})
    write_results(other, {"tuner": stored("2026-11-30T01:00:00+00:00", "equal")})
    file = other / "mutants.json.gz"
    if not packed:
        file = other / "mutants.json"
        file.write_text(json.dumps(read_results(other)))
    assert main([str(file), "--output", str(folder)]) == 0
    assert sorted(read_results(folder)) == ["db", "tuner"]
    assert ": equal\n" in (folder / "mutants.md").read_text()


def test_a_report_counts_and_keeps_what_was_read() -> None:
    one = Judged("a.py", 0, "number", "0 -> 1", Outcome.CAUGHT)
    outcomes = [Outcome.CAUGHT, Outcome.TIMED_OUT, Outcome.SURVIVED, Outcome.NOT_EXECUTED]
    rows = [
        replace(one, line=n, change=f"{n} -> {n + 1}", outcome=outcome, reading="equal" * (n == 2))
        for n, outcome in enumerate(outcomes)
    ]
    result = {
        "origin": asdict(Origin()), "command": "make mutants", "tests": ["tests/unit"],
        "versions": {"mutmut": "3"}, "count": 5, "seed": 0, "places": 9,
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    text = report({"compiler/passes": result})
    assert "| compiler/passes | 4 | 2 | 1 | 1 | 1 | 50.0% |" in text
    assert "- `a.py:2` `2 -> 3`: equal\n" in text
    assert "- `a.py:3` `3 -> 4`: not executed\n" in text
    assert "4 of 5 mutants, drawn from 9 places" in text
