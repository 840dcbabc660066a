"""Groups of slow tests, left out while nothing that they test has changed since they passed.

`unchanged.json` has a digest of each group's sources as of its last run without a failure, which
`make test-all` writes. A group whose sources have the same digest today is not collected, unless
its path is named on the command line or `--all-groups` is given.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSED = Path(__file__).with_name("unchanged.json")
ALL_GROUPS = "--all-groups"
_NO_SOURCE = {"__pycache__", "results", "models"}


@dataclass(frozen=True, slots=True)
class Group:
    """Paths of tests, and of what decides whether they pass; all from the repository's root.

    The tests themselves and `tests/*.py` count as sources of every group.
    """

    tests: tuple[str, ...]
    sources: tuple[str, ...]


GROUPS = {
    "conformance": Group(("tests/conformance",), ("compiler",)),
    "devices": Group(
        ("tests/devices",),
        (
            *("compiler/c_library", "compiler/codegen", "compiler/runtime", "compiler/targets"),
            *("tuner/measure", "service/worker", "service/browser", "deploy"),
        ),
    ),
    "processes": Group(
        ("tests/acceptance",),
        ("compiler/process", "tuner", "db", "service", "examples/demo.py", "benchmarks"),
    ),
    "tools": Group(
        (
            "tests/unit/benchmarks",
            *(f"tests/unit/test_{name}.py" for name in ("compose", "deploy", "release", "site")),
            "tests/unit/test_wheels.py",
        ),
        (
            *("benchmarks", "deploy", "setup.py", "pyproject.toml", "mkdocs.yml", "Dockerfile"),
            "docker-compose.yml",
        ),
    ),
}


def digest(group: Group, root: Path = ROOT) -> str:
    """SHA-256 of the names and bytes of a group's files.

    Raises:
        FileNotFoundError: if a path of the group does not exist.
    """
    found = hashlib.sha256()
    shared = sorted(path for path in (root / "tests").glob("*.py"))
    for path in [*shared, *(root / name for name in (*group.tests, *group.sources))]:
        if not path.exists():
            raise FileNotFoundError(f"'{path}' is in a group of tests/unchanged.py, and not there")
        for file in _files(path) if path.is_dir() else [path]:
            found.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
            found.update(file.read_bytes())
    return found.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """What git knows of a folder, in one order: no bytecode, nothing built, fetched or measured."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _NO_SOURCE)
        yield from (Path(parent, name) for name in sorted(names) if not name.endswith(".so"))


def passed() -> Mapping[str, str]:
    """The digest with which each group passed last."""
    recorded: dict[str, str] = json.loads(PASSED.read_text())
    return recorded


@cache
def unchanged() -> frozenset[str]:
    """The groups whose sources are those with which they passed."""
    recorded = passed()
    return frozenset(name for name, each in GROUPS.items() if recorded.get(name) == digest(each))


def left_out(path: Path, named: Sequence[Path], same: frozenset[str]) -> bool:
    """Whether a file or folder belongs to an unchanged group that nobody named.

    Args:
        named: paths on the command line.
        same: the unchanged groups.
    """
    for name in same:
        for tests in (ROOT / each for each in GROUPS[name].tests):
            if path.is_relative_to(tests):
                return not any(each.is_relative_to(tests) for each in named)
    return False


if __name__ == "__main__":
    PASSED.write_text(json.dumps({n: digest(g) for n, g in GROUPS.items()}, indent=1) + "\n")
