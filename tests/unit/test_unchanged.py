"""Slow groups of tests are left out only of the sources with which they passed."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import unchanged
from tests.unchanged import (
    COMMON,
    FOLLOWED,
    GROUPS,
    PACKAGES,
    ROOT,
    Group,
    digest,
    imported,
    left_out,
    sources,
)

GROUP = Group(("tests/slow",), ("db", "README.md"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a group of tests, its sources, and other files."""
    for name in (*COMMON, *GROUP.tests, *GROUP.sources, "tests/unit", "service"):
        path = tmp_path / name
        if not path.suffix:
            path.mkdir(parents=True)
            path /= "a.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("a")
    (tmp_path / "tests/slow/a.py").write_text("def f():\n    from tests.unit import a\n")
    return tmp_path


def test_any_change_of_a_source_changes_the_digest(tree: Path) -> None:
    seen = [digest(GROUP, tree)]
    assert digest(GROUP, tree) == seen[0]
    (tree / "db/models").mkdir()
    (tree / "benchmarks/results").mkdir(parents=True)
    for change in (
        lambda: (tree / "db/a.py").write_text("b"),
        lambda: (tree / "db/a.py").rename(tree / "db/b.py"),
        lambda: (tree / "db/models/c.py").write_text(""),
        lambda: (tree / "tests/slow/b.json").write_text("t"),
        lambda: (tree / "tests/unit/a.py").write_text("import benchmarks.made"),
        lambda: (tree / "benchmarks/made.py").write_text("from benchmarks import other"),
        lambda: (tree / "benchmarks/other.py").write_text(""),
        lambda: (tree / "README.md").write_text("t"),
    ):
        change()
        seen.append(digest(GROUP, tree))
    assert len(set(seen)) == len(seen)
    (tree / "db/__pycache__").mkdir()
    for name in (
        *("benchmarks/results/x.md", "db/__pycache__/a.pyc", "db/_native.so"),
        *("service/a.py", "tests/unit/b.py", "tests/unchanged.json", "benchmarks/third.py"),
    ):
        (tree / name).write_text("another")
    assert digest(GROUP, tree) == seen[-1]
    shutil.rmtree(tree / "db")
    with pytest.raises(FileNotFoundError, match="'db' is a source"):
        digest(GROUP, tree)


@cache
def names_used(text: bytes) -> frozenset[str]:
    """Dotted names that a module imports, or has as texts, for a process of their own."""
    return frozenset(_names_used(text))


def _names_used(text: bytes) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"\w+(\.\w+)+", str(node.value)):
            yield str(node.value)


def test_a_group_depends_on_all_modules_that_it_uses() -> None:
    for group in GROUPS.values():
        found = sources(group)
        for file, text in found.items():
            if file.suffix != ".py" or not any(file.is_relative_to(ROOT / n) for n in FOLLOWED):
                continue
            for name in names_used(text):
                first, _, rest = name.partition(".")
                module = ROOT.joinpath(*name.split(".")).with_suffix(".py")
                if first in FOLLOWED and module.is_file():
                    assert module in found, f"{file} uses {name}"
                if first == "tilewright" and (package := rest.split(".")[0]) in PACKAGES:
                    assert package in group.sources, f"{file} uses {name}"


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "tests/unit").mkdir(parents=True)
    names = ("two", "three", "four", "five", "testsuite")
    for name in names:
        (tmp_path / f"tests/unit/{name}.py").write_text("")
    text = b"""import tests.unit
import tests.unit.two
from tests.unit import (
    three,
    four as other,
)
    from tests.unit.five import three
from testsuite import two
"""
    found = {file.stem for file in imported(tmp_path, text)}
    assert found == {"two", "three", "four", "five"}


def test_groups_are_left_out_only_of_sources_that_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [path for group in GROUPS.values() for path in (*group.tests, *group.sources)]
    assert all((ROOT / path).exists() for path in paths)
    recorded = tmp_path / "unchanged.json"
    monkeypatch.setattr(unchanged, "PASSED", recorded)
    monkeypatch.setattr(unchanged, "GROUPS", {"conformance": GROUP, "devices": GROUPS["devices"]})
    monkeypatch.setattr(unchanged, "digest", lambda group: group.tests[0])
    conformance = GROUP.tests[0]
    for passed, expected in (
        ({}, set()),
        ({"passed": "before groups had digests of their own"}, set()),
        ({"conformance": conformance, "devices": conformance}, {"conformance"}),
    ):
        recorded.write_text(json.dumps(passed))
        unchanged.unchanged.cache_clear()
        assert unchanged.unchanged() == expected
    unchanged.unchanged.cache_clear()


def test_groups_without_a_failure_are_recorded_as_they_were_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = tmp_path / "unchanged.json"
    monkeypatch.setattr(unchanged, "PASSED", recorded)
    recorded.write_text('{"tuner": "old", "compiler": "old", "devices": "old"}')
    before = {name: name[::-1] for name in GROUPS}
    failed = [
        ROOT / each
        for each in (
            *("tests/unit/db/test_clock.py", "tests/unit/service/test_text.py"),
            "tests/devices/test_jobs.py",
        )
    ]
    unchanged.record(before, [ROOT / "tests/unit/tuner", ROOT / "tests/golden"], [])
    assert json.loads(recorded.read_text()) == dict.fromkeys(
        ("tuner", "compiler", "devices"), "old"
    )
    unchanged.record(before, [ROOT / "tests/unit/tuner", ROOT / "tests/unit/db"], [])
    assert json.loads(recorded.read_text())["tuner"] == before["tuner"]
    unchanged.record(before, [ROOT / "tests"], failed)
    del before["tuner"], before["devices"]
    assert json.loads(recorded.read_text()) == before


def test_groups_that_are_named_are_not_left_out() -> None:
    devices = ROOT / "tests/devices"
    file, same = devices / "test_jobs.py", frozenset({"devices"})
    assert left_out(file, [ROOT / "tests"], same)
    assert not left_out(file, [devices], same)
    assert not left_out(file, [ROOT / "tests", file], same)
    assert not left_out(file, [ROOT / "tests"], frozenset())
    assert not left_out(ROOT / "tests/unit/service", [ROOT / "tests"], frozenset(GROUPS))
    assert not left_out(ROOT / "tests/unit", [ROOT / "tests"], frozenset(GROUPS))
