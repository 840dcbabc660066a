"""One name, one meaning: no two public classes of the four packages share a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("compiler", "tuner", "db", "service")

TWINS = {
    # Each intermediate representation calls what it is made of a node; codegen never sees a graph.
    "Node": "a node of a graph; a loop or a computation of a nest",
    # A typer option is an enumeration, an OpenAPI field the same three words.
    "Numerics": "the numerics mode, as an option and as a field",
    "Chosen": "the plan of a job; the schedules that are served",
}
"""Names that stand twice, and what they stand for."""


def defined(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """The public types that a module defines: the name, and whether it is a class."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield name, True
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp()) if (
                name[0].isupper() and not name.isupper()
            ):
                yield name, False


def twins(sources: dict[str, str]) -> dict[str, list[str]]:
    """Names of public types with more than one definition, one of them a class, and where.

    Two type aliases may share a name: they abbreviate what they are made of.
    """
    places: dict[str, list[str]] = defaultdict(list)
    classes = set()
    for path, source in sources.items():
        for name, is_class in defined(ast.parse(source)):
            places[name].append(path)
            if is_class:
                classes.add(name)
    return {n: found for n, found in places.items() if len(found) > 1 and n in classes}


def sources() -> dict[str, str]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def test_no_two_public_classes_share_a_name() -> None:
    found = twins(sources())
    unknown = {name: places for name, places in found.items() if name not in TWINS}
    assert not unknown, "give each its own name, or say in TWINS why not"
    assert set(TWINS) <= set(found), "TWINS names what stands once"


def test_twins_are_found() -> None:
    first, second = "class Budget: ...\nclass _Run: ...", "Budget = int | str\nclass _Run: ..."
    assert twins({"a": first, "b": second}) == {"Budget": ["a", "b"]}
    assert twins({"a": first, "b": first}) == {"Budget": ["a", "b"]}
    assert twins({"a": "Row = dict[str, int]", "b": "Row = list[int]"}) == {}
