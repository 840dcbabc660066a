"""Slow groups of tests are left out only while their sources are those with which they passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unchanged import GROUPS, ROOT, Group, digest, left_out


def test_every_path_of_a_group_exists() -> None:
    assert len({digest(group) for group in GROUPS.values()}) == len(GROUPS)


def test_any_change_of_a_source_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code/a.py").write_text("a")
    (tmp_path / "tests/shared.py").write_text("s")
    group = Group(("tests",), ("code",))
    seen = [digest(group, tmp_path)]
    assert digest(group, tmp_path) == seen[0]
    for change in (
        lambda: (tmp_path / "code/a.py").write_text("b"),
        lambda: (tmp_path / "code/a.py").rename(tmp_path / "code/b.py"),
        lambda: (tmp_path / "code/c.py").write_text(""),
        lambda: (tmp_path / "tests/shared.py").write_text("t"),
    ):
        change()
        seen.append(digest(group, tmp_path))
    (tmp_path / "code/_native.so").write_text("built")
    assert digest(group, tmp_path) == seen[-1]
    assert len(set(seen)) == len(seen)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        digest(Group(("tests",), ("nowhere",)), tmp_path)


def test_what_is_named_is_not_left_out() -> None:
    devices = ROOT / "tests/devices"
    file, same = devices / "test_jobs.py", frozenset({"devices"})
    assert left_out(file, [ROOT / "tests"], same)
    assert not left_out(file, [devices], same)
    assert not left_out(file, [ROOT / "tests", file], same)
    assert not left_out(file, [ROOT / "tests"], frozenset())
    assert not left_out(ROOT / "tests/unit/db", [ROOT / "tests"], frozenset(GROUPS))
    assert not left_out(ROOT / "tests/unit", [ROOT / "tests"], frozenset(GROUPS))
