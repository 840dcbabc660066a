"""Groups of slow tests, left out of a working tree in which all tests have passed.

`make test-all` runs every test. If none fails, it writes `unchanged.json`: a digest of all sources,
which is committed with them. While the sources have this digest, the groups below are not
collected, unless a path of theirs is named on the command line or `--all-groups` is given. After
any change of a source everything runs again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSED = Path(__file__).with_name("unchanged.json")
ALL_GROUPS = "--all-groups"

GROUPS = {
    "conformance": ("tests/conformance",),
    "devices": ("tests/devices",),
    "processes": ("tests/acceptance",),
    "tools": (
        "tests/unit/benchmarks",
        *(f"tests/unit/test_{name}.py" for name in ("compose", "deploy", "release", "site")),
        "tests/unit/test_wheels.py",
    ),
}
"""Paths of tests, from the repository's root."""

SOURCES = (
    *("benchmarks", "clients", "compiler", "db", "deploy", "docs", "examples", "service"),
    *("tests", "tilewright", "tuner", "Dockerfile", "Makefile", "README.md"),
    *("docker-compose.yml", "mkdocs.yml", "pyproject.toml", "setup.py"),
)
"""What decides whether the tests pass."""

_NO_SOURCE = {"__pycache__", "benchmarks/models", "benchmarks/results"}


def digest(root: Path = ROOT) -> str:
    """SHA-256 of the names and bytes of all sources.

    Raises:
        FileNotFoundError: if a source does not exist.
    """
    found = hashlib.sha256()
    for name in SOURCES:
        path = root / name
        if not path.exists():
            raise FileNotFoundError(f"'{name}' is a source of tests/unchanged.py, and not there")
        for file in _files(root, path) if path.is_dir() else [path]:
            found.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
            found.update(file.read_bytes())
    return found.hexdigest()


def _files(root: Path, folder: Path) -> Iterator[Path]:
    """The files of a folder in one order, without bytecode, results, and what was built or fetched.

    Links to folders are not followed: `tilewright/` has links to folders that are sources.
    """
    for parent, folders, names in os.walk(folder):
        inside = Path(parent).relative_to(root)
        folders[:] = [
            name
            for name in sorted(folders)
            if name not in _NO_SOURCE and str(inside / name) not in _NO_SOURCE
        ]
        for name in sorted(names):
            if (
                not name.endswith((".so", ".pyc"))
                and Path(parent, name) != root / "tests" / PASSED.name
            ):
                yield Path(parent, name)


@cache
def unchanged() -> frozenset[str]:
    """The groups that are left out: all, or none if the sources are not those that passed."""
    passed = json.loads(PASSED.read_text()).get("passed")
    return frozenset(GROUPS) if passed == digest() else frozenset()


def left_out(path: Path, named: Sequence[Path], same: frozenset[str]) -> bool:
    """Whether a file or folder belongs to an unchanged group that nobody named.

    Args:
        named: paths on the command line.
        same: the unchanged groups.
    """
    for name in same:
        for tests in (ROOT / each for each in GROUPS[name]):
            if path.is_relative_to(tests):
                return not any(each.is_relative_to(tests) for each in named)
    return False


if __name__ == "__main__":
    PASSED.write_text(json.dumps({"passed": digest()}) + "\n")
