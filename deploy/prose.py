"""Check the English of documentation, docstrings, comments and messages: `make prose`.

The check searches for phrases that readers misread in earlier reviews of this repository, such as a
sentence that starts with "What was found". A match is a candidate, not an error: rewrite the
sentence, or accept the phrase with a reason in deploy/prose.toml. A text without candidates may
still be unclear.

The check has two rules. First, no path in deploy/prose.toml may have more than `limit` candidates
per thousand words. Second, a passage may not have a candidate if it contains lines that were added
since the branch left main.

    python -m deploy.prose                      both rules
    python -m deploy.prose --since v0.1.0       the second rule since another commit
    python -m deploy.prose docs compiler/plan   list all candidates below these paths
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIGURATION = ROOT / "deploy" / "prose.toml"
GENERATED = (
    "docs/reference",
    "docs/operators.md",
    "benchmarks/results",
    "tests/golden",
)
"""Paths that are not checked, because their text is generated."""
SPEAKING = ("compiler/", "db/", "deploy/", "examples/", "service/", "tuner/")
"""Folders whose string literals are checked: help texts, error messages, descriptions."""
LEAST_WORDS = 4
"""The number of words from which a string literal counts as a text that people read."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A kind of phrase that readers often misread: its pattern, and a hint for rewriting it."""

    name: str
    pattern: re.Pattern[str]
    hint: str


def _phrase(name: str, pattern: str, hint: str) -> Phrase:
    return Phrase(name, re.compile(pattern), hint)


def _word(words: str, hint: str) -> Phrase:
    """Return a phrase that matches any of `words`, which are forms of one word separated by `|`.

    Earlier texts of this repository used the word in an uncommon sense, so that readers misread it.
    """
    return _phrase(f"private word: {words.split('|')[0]}", rf"\b(?:{words})\b", hint)


_SENTENCE = r"(?:^|(?<=[.!?:] )|(?<=\n\n))"
_FIXED = "longer|larger|more|less|fewer|such|way|need|reason|doubt|later|earlier|match|change|limit"
_UNITS = "operator|file|family|target|table|model|kernel|job|task|worker|device|pass|process"

PHRASES = (
    _phrase(
        "headless relative clause as subject",
        _SENTENCE + r"(?:What|Who|Whoever|Whichever) (?!is \w+\?|does?\b|are\b[^.]*\?)[^?.]*[.;]",
        "name the thing: 'The records found ...'",
    ),
    _phrase(
        "headless relative clause as object",
        r"\b(?:than|as|of|by|with|for) what \w+",
        "name the thing: 'for the files that ...'",
    ),
    _phrase(
        "is no X",
        rf"(?<![Tt]here )\b(?:is|are|was|were|be) no (?!(?:{_FIXED}|difference|guarantee)\b)[a-z]+",
        "'is not a ...'",
    ),
    _phrase("there is none", r"\bthere (?:is|are) none\b", "'none exists', or the consequence"),
    _phrase("made of", r"\bmade of (?!steel|wood)", "'generated from', 'consists of'"),
    _phrase("by itself", r"\b(?:by|of) (?:itself|themselves)\b", "'automatically', or nothing"),
    _phrase(
        "distributive article",
        rf"\b(?:one|two|three|each) \w+ an? (?:{_UNITS}|area|concern|run)\b",
        "'per'",
    ),
    _phrase(
        "so many as",
        r"\bso (?:many|much|often|large|long) (?:as|times|bytes|of)\b",
        "'as many as', 'n times'",
    ),
    _phrase("is over", r"\b(?:is|are|was|were) over\b", "'has expired', 'has ended'"),
    _phrase("stands", r"\bstands?\b(?! for|-|alone)", "'is', 'remains', 'lies'"),
    _phrase("apart", r"\bapart\b(?! from)", "'separate', 'in a separate process'"),
    _word("beside", "'next to', 'along with'"),
    _word("foresee|foresees|foreseen|foreseeing|foresaw", "'enumerated ahead of time'"),
    _word("draw|draws|drawn", "'random', 'sampled'"),
    _word("tell|tells|told", "'states', 'reports', 'is specified'"),
    _word("spell|spells|spelled|spelling", "'expanded', 'unrolled', 'written'"),
    _word("dear|dearer|dearest", "'expensive', 'slowest'"),
    _word("ill|sick", "'faulty'"),
    _word("roof|roofs", "'roofline', 'peak'"),
    _word("settle|settles|settled|settling", "'resolve', 'decide'"),
    _word("nobody|somebody", "name the actor, or use the passive"),
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph of Markdown, a docstring, a message or a block of comments, with its location."""

    path: str
    first: int
    """The number of the passage's first line in the file."""
    last: int
    text: str

    @property
    def words(self) -> int:
        """The number of words, separated by white space."""
        return len(self.text.split())


Lines = tuple[int, int, str]
"""The numbers of the first and the last line of a text, and the text."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A match of a phrase in a passage, which may be unclear."""

    passage: Passage
    phrase: Phrase
    around: str
    """The match with the text around it, on one line."""

    def __str__(self) -> str:
        place = f"{self.passage.path}:{self.passage.first}"
        return f"{place}: {self.phrase.name} -> {self.phrase.hint}\n    {self.around}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The content of deploy/prose.toml: the limit, the checked paths and the accepted phrases."""

    limit: float
    """The maximum number of candidates per thousand words."""
    paths: tuple[str, ...]
    """Files and folders that must not exceed the limit."""
    accepted: Mapping[str, tuple[str, ...]]
    """For each path, the accepted texts: a candidate that contains one of them is not reported."""

    @classmethod
    def read(cls, path: Path = CONFIGURATION) -> Configuration:
        """Read a configuration file in TOML."""
        content = tomllib.loads(path.read_text())
        accepted: dict[str, tuple[str, ...]] = {}
        for entry in content.get("accepted", []):
            accepted[entry["path"]] = (*accepted.get(entry["path"], ()), entry["phrase"])
        return cls(content["limit"], tuple(content["paths"]), accepted)

    def accepts(self, candidate: Candidate) -> bool:
        """Whether deploy/prose.toml lists the candidate as accepted."""
        phrases = self.accepted.get(candidate.passage.path, ())
        return any(phrase in candidate.around for phrase in phrases)


def passages(path: Path, root: Path = ROOT) -> Iterator[Passage]:
    """Yield the passages of a Markdown file, a Python file or a Makefile."""
    name, source = path.relative_to(root).as_posix(), path.read_text()
    for first, last, text in sorted(_passages(name, source)):
        yield Passage(name, first, last, re.sub(r"`[^`]*`", "`x`", text))


def _passages(name: str, source: str) -> Iterator[Lines]:
    if name.endswith(".md"):
        yield from _paragraphs(source)
    elif name.endswith("Makefile"):
        yield from _blocks(
            (n, line) for n, line in enumerate(source.split("\n"), 1) if line[:1] == "#"
        )
    else:
        yield from _strings(ast.parse(source), messages=name.startswith(SPEAKING))
        yield from _comments(source)


def _paragraphs(source: str) -> Iterator[Lines]:
    """Yield each paragraph and table row of Markdown, except code blocks."""
    prose = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), source, flags=re.DOTALL)
    line = 1
    for block in re.split(r"(\n\s*\n)", prose):
        if block.startswith("|"):
            yield from ((n, n, row) for n, row in enumerate(block.split("\n"), line))
        elif block.strip():
            yield line, line + block.count("\n"), block
        line += block.count("\n")


def _strings(tree: ast.Module, messages: bool) -> Iterator[Lines]:
    """Yield the docstrings of Python code, and its other strings of at least `LEAST_WORDS` words.

    An f-string is one text, in which each replacement field is shown as `x`. Strings inside of
    replacement fields are separate texts.

    Args:
        tree: the code.
        messages: whether to yield strings that are not docstrings.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield node.lineno, node.end_lineno or node.lineno, text
                continue
            case ast.Constant(value=str() as text):
                pass
            case ast.JoinedStr(values=parts):
                waiting += [part.value for part in parts if isinstance(part, ast.FormattedValue)]
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "`x`" for part in parts
                )
            case _:
                waiting += ast.iter_child_nodes(node)
                continue
        if messages and len(text.split()) >= LEAST_WORDS:
            yield node.lineno, node.end_lineno or node.lineno, text


def _comments(source: str) -> Iterator[Lines]:
    """Yield each block of comments of Python code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    yield from _blocks((t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT)


def _blocks(comments: Iterable[tuple[int, str]]) -> Iterator[Lines]:
    """Yield the comments of consecutive lines as one text, given (line number, comment)."""
    for _, block in groupby(enumerate(comments), key=lambda each: each[1][0] - each[0]):
        lines = [line for _, line in block]
        yield lines[0][0], lines[-1][0], "\n".join(text.lstrip("#").strip() for _, text in lines)


def files(paths: Iterable[Path], root: Path = ROOT) -> Iterator[Path]:
    """Yield all Markdown files, Python files and Makefiles in `paths`, including subfolders.

    Hidden and generated files are excluded.
    """
    for path in paths:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            name = file.relative_to(root).as_posix()
            hidden = any(part.startswith((".", "build")) for part in name.split("/"))
            checked = file.suffix in (".md", ".py") or file.name == "Makefile"
            if checked and not hidden and not name.startswith(GENERATED):
                yield file


def candidates(passage: Passage) -> Iterator[Candidate]:
    """Yield a candidate for each match of one of `PHRASES` in a passage."""
    text = re.sub(r"[ \t]*\n[ \t]*(?!\n)", " ", passage.text)
    for phrase in PHRASES:
        for match in phrase.pattern.finditer(text):
            around = text[max(0, match.start() - 40) : match.end() + 60]
            yield Candidate(passage, phrase, " ".join(around.split()))


def found(texts: Iterable[Passage], configuration: Configuration) -> tuple[list[Candidate], int]:
    """Return the candidates that are not accepted, and the number of words in all `texts`."""
    result, words = [], 0
    for passage in texts:
        words += passage.words
        result += [each for each in candidates(passage) if not configuration.accepts(each)]
    return result, words


def over_limit(configuration: Configuration, root: Path = ROOT) -> Iterator[str]:
    """Yield a message for each configured path that has too many candidates per thousand words.

    The message lists the candidates.
    """
    for path in configuration.paths:
        texts = (each for file in files([root / path], root) for each in passages(file, root))
        result, words = found(texts, configuration)
        if 1000 * len(result) > configuration.limit * words:
            listed = "\n".join(map(str, result))
            yield f"{path}: {len(result)} candidates in {words} words\n{listed}"


def added_lines(revision: str, root: Path = ROOT) -> dict[str, list[range]]:
    """Return, for each changed file, the ranges of line numbers that were added since a commit.

    Raises:
        subprocess.CalledProcessError: if Git does not have the commit `revision`.
    """
    command = ["git", "diff", "-U0", "--no-color", "-M", revision, "--", "*.py", "*.md", "Makefile"]
    shown = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    result: dict[str, list[range]] = {}
    name = ""
    for line in shown.stdout.splitlines():
        if line.startswith("+++ "):
            name = line.removeprefix("+++ b/")
        elif header := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(header[1]), int(header[2] or 1)
            result.setdefault(name, []).append(range(first, first + count))
    return result


def in_added_lines(
    added: Mapping[str, Sequence[range]], configuration: Configuration, root: Path = ROOT
) -> list[Candidate]:
    """Return the candidates in passages that contain an added line.

    `added` is the result of `added_lines`.
    """
    changed = [root / name for name in added if (root / name).is_file()]
    texts = [
        passage
        for file in files(changed, root)
        for passage in passages(file, root)
        if any(r.start <= passage.last and passage.first < r.stop for r in added[passage.path])
    ]
    return found(texts, configuration)[0]


def compared_commit(root: Path = ROOT) -> str | None:
    """Return the commit since which added lines are checked.

    It is the commit where the current branch left main or, on main itself, the previous commit. The
    result is None if the clone has neither of them.
    """

    def commit(*command: str) -> str | None:
        shown = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True)
        return shown.stdout.strip() or None if shown.returncode == 0 else None

    head, base = commit("rev-parse", "HEAD"), commit("merge-base", "HEAD", "main")
    return base if base != head and base else commit("rev-parse", "--verify", "HEAD~1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check, and return the exit status: 1 if it fails, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m deploy.prose")
    parser.add_argument("paths", nargs="*", type=Path, help="list the candidates below these")
    parser.add_argument("--since", help="commit to compare with (default: where main was left)")
    options = parser.parse_args(arguments)
    configuration = Configuration.read()
    if options.paths:
        texts = (p for f in files(map(Path.resolve, options.paths)) for p in passages(f))
        result, words = found(texts, configuration)
        print(*result, sep="\n")
        print(f"{len(result)} candidates in {words} words")
        return 0
    failures = list(over_limit(configuration))
    since = options.since or compared_commit()
    if since is not None:
        failures += map(str, in_added_lines(added_lines(since), configuration))
    print(*failures, sep="\n")
    print(f"{len(failures)} failures; changes are compared with {since or 'nothing'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
