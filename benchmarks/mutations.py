"""Makes mutants: inserts small mistakes into a package by the mutation operators of mutmut.

mutmut's own command cannot sample, and omits decorated functions (properties, routes), because it
keeps all mutants of a module in one file behind switches. Therefore only its operators are used,
which propose replacements for a node of a syntax tree. In addition, there are mutants of
conditions: each condition is replaced by true and by false, and each operand of an `and` or `or` is
omitted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

LONGEST_CHANGE = 160
"""Maximum number of characters of a change that is shown in full. Of longer ones, only the part
that differs is shown."""

NOT_MUTATED = (cst.Annotation, cst.Decorator, cst.Raise)
"""Nodes that are not mutated. Annotations and decorators act at import, and nothing depends on the
text of an error."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one mistake.

    `path` is relative to the project root. `operator` is the kind of mistake, `change` the lines
    before and after, and `text` the whole mutated module.
    """

    path: str
    line: int
    operator: str
    change: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """A place for a mistake: a node of a module's syntax tree, and its replacement."""

    path: str
    line: int
    operator: str
    module: cst.Module
    node: cst.CSTNode
    other: cst.CSTNode

    def name(self) -> str:
        """A text that identifies the mistake: the file, the kind, and the code before and after.

        Equal mistakes at several places of a file have the same text.
        """
        before, after = (self.module.code_for_node(node) for node in (self.node, self.other))
        return f"{self.path} {self.operator} {before} {after}"

    def mutant(self) -> Mutant | None:
        """Apply the replacement; None if the result is invalid Python or equal to the original."""
        before = self.module.code
        changed = self.module.deep_replace(self.node, self.other)
        assert isinstance(changed, cst.Module)
        after = changed.code
        try:
            compile(after, self.path, "exec")
        except SyntaxError:
            return None
        if after == before:
            return None
        return Mutant(self.path, self.line, self.operator, change(before, after), after)


def _condition(node: cst.If | cst.CompIf) -> Iterable[cst.CSTNode]:
    """Replacements for a conditional: with a condition that is always true, and always false."""
    for name in ("True", "False"):
        yield node.with_changes(
            test=cst.Name(name, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        )


def _part(node: cst.BooleanOperation) -> Iterable[cst.CSTNode]:
    """Replacements for an `and` or `or`: each of its operands alone."""
    for side in (node.left, node.right):
        yield side.with_changes(
            lpar=[cst.LeftParen(), *side.lpar], rpar=[*side.rpar, cst.RightParen()]
        )


MIGRATIONS = Path("db/migrations/versions")
"""Not mutated, because a migration never changes after databases have used it, so no new mistake
can occur in it. Tests compare the result of the migrations with the models, which are mutated."""

OPERATORS: tuple[tuple[type, Callable[[Any], Iterable[cst.CSTNode]]], ...] = (
    *mutation_operators,
    (cst.If, _condition),
    (cst.CompIf, _condition),
    (cst.BooleanOperation, _part),
)
"""Pairs of a kind of node and a function that yields replacements for such a node."""


def sample(root: Path, package: str, count: int, seed: int) -> tuple[list[Mutant], int]:
    """Sample `count` mutants of a package without replacement.

    A mutant is a module with one mistake. Returns the mutants, and the number of all places where a
    mistake is possible. Places are sorted by a hash of the seed and the changed code, and the first
    ones are selected. Therefore, a change elsewhere in the sources hardly changes the sample.
    """
    files = sorted(
        file for file in (root / package).rglob("*.py") if root / MIGRATIONS not in file.parents
    )
    sites = [site for file in files for site in _sites(root, file)]
    seen: Counter[str] = Counter()
    turns = []
    for number, site in enumerate(sites):
        name = site.name()
        seen[name] += 1
        digest = hashlib.sha256(f"{seed} {seen[name]} {name}".encode()).digest()
        turns.append((digest, number))
    found: dict[tuple[str, str], Mutant] = {}
    for _, number in sorted(turns):
        if len(found) == count:
            break
        mutant = sites[number].mutant()
        if mutant is not None:
            found.setdefault((mutant.path, mutant.text), mutant)
    return list(found.values()), len(sites)


def _sites(root: Path, file: Path) -> Iterator[_Site]:
    wrapper = MetadataWrapper(cst.parse_module(file.read_text()), unsafe_skip_copy=True)
    positions = wrapper.resolve(PositionProvider)
    path = file.relative_to(root).as_posix()
    pending: list[cst.CSTNode] = [wrapper.module]
    while pending:
        node = pending.pop()
        if isinstance(node, NOT_MUTATED) or _is_for_people(node):
            continue
        pending += reversed(node.children)
        for kind, operator in OPERATORS:
            if not isinstance(node, kind):
                continue
            place = positions.get(node)
            line = place.start.line if place is not None else 1
            name = operator.__name__.removeprefix("operator_").strip("_")
            for other in operator(node):
                if isinstance(node, cst.Call) and _help(node) != _help(other):
                    continue
                yield _Site(path, line, name, wrapper.module, node, other)


def _is_for_people(node: cst.CSTNode) -> bool:
    """Whether a node cannot affect what tests check.

    Such nodes are logging calls, help texts, and imports for type checking.
    """
    match node:
        case (
            cst.If(test=cst.Name("TYPE_CHECKING"))
            | cst.Call(func=cst.Attribute(attr=cst.Name("_log")))
            | cst.Call(func=cst.Attribute(value=cst.Attribute(attr=cst.Name("_log"))))
            | cst.Call(func=cst.Attribute(value=cst.Name("log")))
            | cst.Arg(keyword=cst.Name("help" | "description"))
        ):
            return True
        case _:
            return False


def _help(node: cst.CSTNode) -> list[str]:
    """The source code of those arguments of a call that are help texts or descriptions."""
    assert isinstance(node, cst.Call)
    module = cst.Module([])
    return [module.code_for_node(arg) for arg in node.args if _is_for_people(arg)]


def change(before: str, after: str) -> str:
    """The differing lines of two texts in one line, as `before -> after`.

    It is shortened if it is longer than LONGEST_CHANGE.
    """
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[3:]
    old = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
    new = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
    if len(old) + len(new) > LONGEST_CHANGE:
        pairs = enumerate(zip(old, new, strict=False))
        same = max(next((i for i, (a, b) in pairs if a != b), 0) - 20, 0)
        start, room = "... " if same else "", LONGEST_CHANGE // 2
        old, new = (start + text[same : same + room] for text in (old, new))
    return f"{old} -> {new}"
