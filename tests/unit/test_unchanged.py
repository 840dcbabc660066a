"""Slow groups of tests are left out only of the sources with which every test passed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import unchanged
from tests.unchanged import GROUPS, ROOT, SOURCES, digest, left_out


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a file in each source."""
    for name in SOURCES:
        path = tmp_path / name
        if (ROOT / name).is_dir():
            path.mkdir()
            path /= "a.py"
        path.write_text("a")
    return tmp_path


def test_any_change_of_a_source_changes_the_digest(tree: Path) -> None:
    seen = [digest(tree)]
    assert digest(tree) == seen[0]
    (tree / "db/models").mkdir()
    for change in (
        lambda: (tree / "db/a.py").write_text("b"),
        lambda: (tree / "db/a.py").rename(tree / "db/b.py"),
        lambda: (tree / "db/models/c.py").write_text(""),
        lambda: (tree / "tests/shared.py").write_text("t"),
        lambda: (tree / "README.md").write_text("t"),
    ):
        change()
        seen.append(digest(tree))
    assert len(set(seen)) == len(seen)
    (tree / "benchmarks/results").mkdir()
    (tree / "compiler/__pycache__").mkdir()
    for name in ("benchmarks/results/x.md", "compiler/__pycache__/a.pyc", "compiler/_native.so"):
        (tree / name).write_text("made")
    (tree / "tests/unchanged.json").write_text("{}")
    assert digest(tree) == seen[-1]
    shutil.rmtree(tree / "deploy")
    with pytest.raises(FileNotFoundError, match="'deploy' is a source"):
        digest(tree)


def test_groups_are_left_out_only_of_what_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all((ROOT / path).exists() for paths in GROUPS.values() for path in paths)
    recorded = tmp_path / "unchanged.json"
    monkeypatch.setattr(unchanged, "PASSED", recorded)
    for text, expected in (
        ("{}", set()),
        ('{"passed": "another"}', set()),
        (f'{{"passed": "{digest()}"}}', set(GROUPS)),
    ):
        recorded.write_text(text)
        unchanged.unchanged.cache_clear()
        assert unchanged.unchanged() == expected
    unchanged.unchanged.cache_clear()


def test_what_is_named_is_not_left_out() -> None:
    devices = ROOT / "tests/devices"
    file, same = devices / "test_jobs.py", frozenset({"devices"})
    assert left_out(file, [ROOT / "tests"], same)
    assert not left_out(file, [devices], same)
    assert not left_out(file, [ROOT / "tests", file], same)
    assert not left_out(file, [ROOT / "tests"], frozenset())
    assert not left_out(ROOT / "tests/unit/db", [ROOT / "tests"], frozenset(GROUPS))
    assert not left_out(ROOT / "tests/unit", [ROOT / "tests"], frozenset(GROUPS))
