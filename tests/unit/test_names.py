"""Names: no two public classes share one, and tables of operators are only in their package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tilewright.compiler.ops.registry import operators

ROOT = Path(__file__).parents[2]
PACKAGES = ("compiler", "tuner", "db", "service")

TWINS = {
    # Each intermediate representation calls its elements nodes; codegen never sees a graph.
    "Node": "a node of a graph; a loop or a computation of a nest",
    # A typer option is an enumeration, an OpenAPI field the same three words.
    "Size": "an extent that is known at run time; a number of bytes or elements that travels",
    # Users of the client call its results by these names.
    "Job": "a row of the database; what the client answers",
    "Task": "what trials are spent on; what the client answers of it",
    "Curve": "of gains and what they cost, for forecasts; what the client answers, to be drawn",
}
"""Names that two classes share, and their meanings."""


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

    Two type aliases may share a name: they abbreviate their definitions.
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


# The properties of an operator are in its own entry of compiler/ops. Passes match patterns by name.
ABOUT_OPERATORS = ("compiler/ops/", "compiler/passes/")
NOT_OF_OPERATORS = {
    "compiler/loops/maths.py": "functions of tensor expressions",
    "compiler/runtime/native_functions.py": "functions of the C runtime",
    "compiler/bindings/torch/rules/elementwise.py": "operators of PyTorch",
    "compiler/bindings/torch/rules/indexing.py": "what is made of elements at one position",
}
"""Tables of names that operators have, too."""


def tables(source: str, names: frozenset[str]) -> list[list[str]]:
    """The sets and dictionaries of a module that hold two or more of these names."""
    found: list[list[str]] = []
    if len(names.intersection(re.findall(r"[\"'](\w+)[\"']", source))) < 2:
        return found  # most modules: parsing them takes seconds
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Set(elts=items) | ast.Dict(keys=items):
                pass
            case ast.Call(func=ast.Name(id="set" | "frozenset" | "dict"), args=[only]):
                items = getattr(only, "elts", [])
            case _:
                continue
        held = [i.value for i in items if isinstance(i, ast.Constant) and i.value in names]
        if len(held) > 1:
            found.append(held)
    return found


def test_no_table_of_operators_stands_outside_their_package() -> None:
    names = frozenset(operators())
    found = {
        path: held
        for path, source in sources().items()
        if not path.startswith(ABOUT_OPERATORS) and (held := tables(source, names))
    }
    unknown = {path: held for path, held in found.items() if path not in NOT_OF_OPERATORS}
    assert not unknown, "make it a property that operators state in compiler/ops"


def test_tables_are_found() -> None:
    names = frozenset({"exp", "log", "add"})
    assert tables('A = {"exp", "log", "x"}\nB = {"add": 1, "x": 2}', names) == [["exp", "log"]]
    assert tables('A = frozenset(["exp", "add"])', names) == [["exp", "add"]]
    assert tables('def f(op):\n    return op in ("exp", "log")', names) == []
