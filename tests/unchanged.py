"""Groups of tests, skipped while the sources that they depend on are unchanged since they passed.

`make test-all` runs every test. Each group in which none fails gets its entry in `unchanged.json`:
a digest of its sources as they were when the run began, which is committed with them. So does a
group that a run with `--all-groups` names (`pytest --all-groups tests/devices`). While the
sources have this digest, the group is not collected, unless a path of it is named on the command
line or `--all-groups` is given. After a change of one of its sources the whole group runs again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PASSED = Path(__file__).with_name("unchanged.json")
ALL_GROUPS = "--all-groups"

PACKAGES = ("compiler", "tuner", "db", "service")
COMMON = (
    *("tilewright", "pyproject.toml", "setup.py", "tests/conftest.py", "tests/golden/conftest.py"),
    *("tests/guarded_calls.c", "tests/devices/amx_emulator.c", "tests/models"),
)
"""Sources of every group."""

FOLLOWED = ("tests", "benchmarks", "deploy", "examples")
"""Folders of which a group depends on the modules that it imports, directly or through others."""


@dataclass(frozen=True, slots=True)
class Group:
    """Tests that are left out together.

    Attributes:
        tests: their files and folders, from the repository's root.
        sources: whole files and folders that decide whether the tests pass, besides the tests
            themselves, COMMON, and imported modules of the FOLLOWED folders.
    """

    tests: tuple[str, ...]
    sources: tuple[str, ...]


GROUPS: Mapping[str, Group] = {
    "compiler": Group(
        (
            *(f"tests/golden/{name}" for name in ("kernels", "passes", "plans")),
            *(
                f"tests/unit/{name}"
                for name in (
                    *("c_library", "codegen", "frontend", "graph", "loops", "ops", "passes"),
                    *("plan", "runtime", "schedule", "targets"),
                )
            ),
        ),
        (
            "compiler",
            *(
                f"docs/{name}.md"
                for name in ("loops", "operators-howto", "schedules", "targets-howto")
            ),
        ),
    ),
    "conformance": Group(("tests/conformance",), ("compiler",)),
    "devices": Group(("tests/devices",), PACKAGES),
    "differential": Group(("tests/differential",), PACKAGES),
    "integration": Group(("tests/integration",), (*PACKAGES, "benchmarks", "examples")),
    "processes": Group(
        ("tests/acceptance",), (*PACKAGES, "examples", "benchmarks/shifted_clock.py")
    ),
    "tuner": Group(
        ("tests/unit/tuner", "tests/unit/db"),
        (
            *("compiler", "tuner", "db", "service/browser"),
            *("docs/features.md", "docs/search-howto.md"),
        ),
    ),
    "tools": Group(
        (
            "tests/unit/benchmarks",
            *(
                f"tests/unit/test_{name}.py"
                for name in (
                    *("compose", "deploy", "docs_commands", "release", "site", "typescript"),
                    "wheels",
                )
            ),
        ),
        (
            *(*PACKAGES, "benchmarks", "clients", "deploy", "docs", "examples", "Dockerfile"),
            *("Makefile", "README.md", "docker-compose.yml", "mkdocs.yml"),
        ),
    ),
}

_NO_SOURCE = {
    *("__pycache__", "node_modules", "benchmarks/models", "benchmarks/results"),
    *("service/client/blocking", "service/browser/messages.mjs"),
    "tuner/measure/harness/messages.h",
}


def digest(group: Group, root: Path = ROOT) -> str:
    """SHA-256 of the names and bytes of a group's sources.

    Raises:
        FileNotFoundError: if a source does not exist.
    """
    found = hashlib.sha256()
    read = sources(group, root)
    for file in sorted(read):
        found.update(f"{file.relative_to(root)}\0{len(read[file])}\0".encode())
        found.update(read[file])
    return found.hexdigest()


def sources(group: Group, root: Path = ROOT) -> dict[Path, bytes]:
    """The files that decide whether the tests of a group pass.

    Raises:
        FileNotFoundError: if a source does not exist.
    """
    found: dict[Path, bytes] = {}
    for name in (*COMMON, *group.sources, *group.tests):
        path = root / name
        if not path.exists():
            raise FileNotFoundError(f"'{name}' is a source of tests/unchanged.py, and not there")
        files = _files(root, path) if path.is_dir() else [path]
        found |= {file: file.read_bytes() for file in files}
    ahead = list(found)
    while ahead:
        new = {each for each in imported(root, found[ahead.pop()]) if each not in found}
        found |= {file: file.read_bytes() for file in new}
        ahead += new
    return found


_IMPORTS = re.compile(
    rb"^[ ]*(?:from (NAME) import (\([^)]*\)|.*)|import (NAME))".replace(
        b"NAME", rf"(?:{'|'.join(FOLLOWED)})\b[\w.]*".encode()
    ),
    re.MULTILINE,
)


def imported(root: Path, text: bytes) -> Iterator[Path]:
    """The modules of the FOLLOWED folders that a module imports, anywhere in its text."""
    for package, names, module in _IMPORTS.findall(text):
        folder = root.joinpath(*(package or module).decode().split("."))
        found = [folder, *(folder / name.decode() for name in re.findall(rb"\w+", names))]
        yield from (file for each in found if (file := each.with_suffix(".py")).is_file())


def _files(root: Path, folder: Path) -> Iterator[Path]:
    """The files of a folder, without bytecode, results, and files that were built or fetched.

    Links to folders are not followed: `tilewright/` has links to folders that are sources.
    """
    for parent, folders, names in os.walk(folder):
        inside = Path(parent).relative_to(root)
        folders[:] = [
            name
            for name in folders
            if name not in _NO_SOURCE and str(inside / name) not in _NO_SOURCE
        ]
        yield from (
            Path(parent, name)
            for name in names
            if not name.endswith((".so", ".pyc", ".d.ts"))
            and not name.startswith("harness-")
            and str(inside / name) not in _NO_SOURCE
        )


@cache
def unchanged() -> frozenset[str]:
    """The skipped groups: their sources are the ones that passed."""
    passed = json.loads(PASSED.read_text())
    return frozenset(name for name in GROUPS if passed.get(name) == digest(GROUPS[name]))


def left_out(path: Path, named: Sequence[Path], same: Iterable[str]) -> bool:
    """Whether a file or folder belongs to an unchanged group, and no path of it was named.

    Args:
        named: paths on the command line.
        same: the unchanged groups.
    """
    for name in same:
        for tests in (ROOT / each for each in GROUPS[name].tests):
            if path.is_relative_to(tests):
                return not any(each.is_relative_to(tests) for each in named)
    return False


def digests() -> dict[str, str]:
    """The digest of each group."""
    return {name: digest(group) for name, group in GROUPS.items()}


def record(before: Mapping[str, str], ran: Iterable[Path], failed: Iterable[Path]) -> None:
    """Record the groups that passed, and forget those with a failure.

    Args:
        before: the digests when the tests began.
        ran: the files and folders of which all tests ran. Other groups stay as they are recorded.
        failed: the files of tests that failed.
    """
    whole, wrong = list(ran), list(failed)
    passed = json.loads(PASSED.read_text())
    for name, group in GROUPS.items():
        tests = [ROOT / each for each in group.tests]
        if any(file.is_relative_to(each) for file in wrong for each in tests):
            passed.pop(name, None)
        elif all(any(each.is_relative_to(folder) for folder in whole) for each in tests):
            passed[name] = before[name]
    PASSED.write_text(json.dumps(dict(sorted(passed.items())), indent=2) + "\n")
