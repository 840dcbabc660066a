"""The check of English (`make prose`): phrases, passages, changed lines; and the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deploy import prose
from deploy.prose import Configuration, Passage

ROOT = Path(__file__).parents[2]

MISREAD = {
    "headless relative clause as subject": "It runs. What was found is kept.",
    "headless relative clause as object": "It is slower than what runs now.",
    "is no X": "A key is no address.",
    "there is none": "It waits where there is none.",
    "made of": "The page is made of the code.",
    "by itself": "The worker starts by itself.",
    "distributive article": "Write one file a kernel.",
    "so many as": "It has twice so many as before.",
    "is over": "The lease is over.",
    "stands": "The key stands in the file.",
    "apart": "The types are apart.",
    "private word: beside": "It runs beside the server.",
    "private word: foresee": "All sizes are foreseen.",
    "private word: draw": "The inputs are drawn.",
    "private word: tell": "The record tells the worker.",
    "private word: spell": "The loop is spelled out.",
    "private word: dear": "Show the dearest kernel.",
    "private word: ill": "The device is ill.",
    "private word: roof": "The roof of the machine.",
    "private word: settle": "The plan is settled.",
    "private word: nobody": "A key that nobody trusts.",
}
CLEAR = """What is a workload? The check is no longer slow, and no kernel stands for another.
Names are generated from the code, one file per kernel. `What was found` is code.
There is no input x."""


def names(text: str) -> list[str]:
    return [each.phrase.name for each in prose.candidates(Passage("page.md", 1, 1, text))]


def configuration(limit: float = 0.0, path: str = "page.md") -> Configuration:
    return Configuration(limit, (path,), {})


@pytest.mark.parametrize("name", [phrase.name for phrase in prose.PHRASES])
def test_each_phrase_is_found(name: str) -> None:
    assert names(MISREAD[name]) == [name]


def test_clear_text_has_no_candidate(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(CLEAR)
    assert [names(each.text) for each in prose.passages(page, tmp_path)] == [[]]


def test_passages_of_a_page_are_its_paragraphs_and_rows(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\none\ntwo\n\n```\ncode\n```\n\n| a | b |\n| c | d |\n")
    found = [(each.first, each.last) for each in prose.passages(page, tmp_path)]
    assert found == [(1, 1), (3, 4), (10, 10), (11, 11), (12, 12)]


def test_passages_of_a_module_are_docstrings_and_comments(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""One."""\n# two\n# three\nx = "four"  # five\n\n# six\n')
    found = [(each.first, each.text) for each in prose.passages(module, tmp_path)]
    assert found == [(1, "One."), (2, "two\nthree\nfive"), (6, "six")]


MESSAGES = '''"""Docstring of the module."""
few = "the four small words"[0] + "only three words"
raise ValueError(
    f"the lease '{name or 'three short words'}' of {owner or 'a user without a name'} "
    "is over: claim another"
)
'''


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        (
            "service",
            [
                (2, 2, "the four small words"),
                (4, 4, "a user without a name"),
                (4, 5, "the lease '`x`' of `x` is over: claim another"),
            ],
        ),
        ("tests", []),
    ],
)
def test_string_literals_of_four_words_are_passages_where_people_read_them(
    tmp_path: Path, folder: str, expected: list[tuple[int, int, str]]
) -> None:
    """An f-string is one passage, and a string in one of its fields is another."""
    module = tmp_path / folder / "module.py"
    module.parent.mkdir()
    module.write_text(MESSAGES)
    found = [(each.first, each.last, each.text) for each in prose.passages(module, tmp_path)]
    assert found == [(1, 1, "Docstring of the module."), *expected]


def test_passages_of_a_makefile_are_its_comments(tmp_path: Path) -> None:
    makefile = tmp_path / "Makefile"
    makefile.write_text("# one\n# two\nall:\n\techo three  # four\n")
    assert list(prose.files([tmp_path], tmp_path)) == [makefile]
    found = [(each.first, each.last, each.text) for each in prose.passages(makefile, tmp_path)]
    assert found == [(1, 2, "one\ntwo")]


def test_a_path_over_the_limit_is_reported_with_its_candidates(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("The key stands here. " + "word " * 996)
    assert list(prose.over_limit(configuration(1.0), tmp_path)) == []
    (message,) = prose.over_limit(configuration(0.9), tmp_path)
    assert message.startswith("page.md: 1 candidates in 1000 words\npage.md:1: stands")


def test_an_accepted_phrase_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("The key stands here.")
    accepting = Configuration(0.0, ("page.md",), {"page.md": ("key stands",)})
    assert list(prose.over_limit(accepting, tmp_path)) == []
    elsewhere = Configuration(0.0, ("page.md",), {"other.md": ("key stands",)})
    assert len(list(prose.over_limit(elsewhere, tmp_path))) == 1


def test_only_passages_with_added_lines_are_judged(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        options = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *options, *command], cwd=tmp_path, check=True, capture_output=True)

    page = tmp_path / "page.md"
    page.write_text("A key stands here.\n\nAnother\nparagraph.\n")
    git("init", "-b", "trunk")
    git("add", ".")
    git("commit", "-m", "first")
    page.write_text("A key stands here.\n\nAnother\nroof.\nLast.\n")
    added = prose.added_lines("HEAD", tmp_path)
    assert added == {"page.md": [range(4, 6)]}
    found = prose.in_added_lines(added, configuration(), tmp_path)
    assert [each.phrase.name for each in found] == ["private word: roof"]
    assert prose.compared_commit(tmp_path) is None
    git("commit", "-a", "-m", "second")
    assert prose.compared_commit(tmp_path) is not None


def test_each_accepted_phrase_is_needed() -> None:
    known = Configuration.read()
    unused = []
    for path, phrases in known.accepted.items():
        texts = list(prose.passages(ROOT / path))
        around = [each.around for text in texts for each in prose.candidates(text)]
        unused += [(path, p) for p in phrases if not any(p in each for each in around)]
    assert unused == []
