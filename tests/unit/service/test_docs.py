"""The documentation names every route, problem, setting and command, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tilewright.compiler.frontend.catalogue import page
from tilewright.service.cli import run
from tilewright.service.cli.tree import paths
from tilewright.service.settings import Settings

DOCS = Path(__file__).parents[3] / "docs"
SOURCE = Path(__file__).parents[3] / "service"


def test_every_route_is_documented(anonymous: TestClient) -> None:
    described = anonymous.get("/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, ops in described.items() for method in ops}
    text = (DOCS / "rest.md").read_text()
    rows = set(re.findall(r"^\| `((?:GET|POST|DELETE) /v1/[^`?]*)", text, re.MULTILINE))
    assert rows == routes


def test_every_problem_is_documented() -> None:
    """Slugs are the second argument of Problem in the sources, or the last of invalid."""
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    slugs = set(re.findall(r'Problem\(\s*\d{3},\s*"([a-z-]+)"', source))
    slugs |= set(re.findall(r'invalid\([^()]*, "([a-z-]+)"\)', source))
    text = (DOCS / "rest.md").read_text()
    missing = {slug for slug in slugs if f"| `{slug}` |" not in text}
    assert slugs
    assert not missing


def test_every_setting_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    documented = set(re.findall(r"^\| `TILEWRIGHT_([A-Z_]+)`", text, re.MULTILINE))
    assert documented == {name.upper() for name in Settings.model_fields}


def test_every_command_is_documented() -> None:
    """And every row of the table names an existing command."""
    text = (DOCS / "cli.md").read_text().partition("Common options")[0]
    cells = re.findall(r"^\| ((?:[^|\\]|\\.)*) \|", text, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([a-z][a-z- ]*[a-z])", cell)}
    assert documented == set(paths())


def test_the_page_of_operators_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["show", "operators"]) == 0
    assert capsys.readouterr().out == (DOCS / "operators.md").read_text() == page()


def test_every_option_of_the_worker_is_documented() -> None:
    text = (DOCS / "worker.md").read_text()
    options = set(re.findall(r'"(--[a-z-]+)"', (SOURCE / "worker/options.py").read_text()))
    assert options
    assert all(f"`{option}`" in text for option in options)


def test_the_environment_is_read_in_one_file() -> None:
    """And in the worker's main function, which has no pydantic."""
    readers = {
        path.name
        for path in SOURCE.rglob("*.py")
        if re.search(r"os\.(environ|getenv)", path.read_text())
    }
    assert readers == {"settings.py", "process.py"}
