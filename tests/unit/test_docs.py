"""The documentation names existing things: passes, knobs, settings, routes, commands; its links
lead somewhere; and no file holds an address or a path of the machine it was written on."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@cache
def documentation() -> str:
    """All pages except the changelog, which may name removed things."""
    return "\n".join(page.read_text() for page in PAGES if page.name != "CHANGELOG.md")


def named(word: str) -> bool:
    """Whether a page has the word in code marks or at the start of a table's row."""
    return (
        re.search(rf"`[^`\n]*(?<![\w-]){re.escape(word)}(?![\w-])[^`\n]*`", documentation())
        is not None
    )


def trees(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path, ast.parse(path.read_text())


def calls(folder: str, function: str) -> Iterator[ast.Call]:
    for _, tree in trees(folder):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rsplit(".", 1)[-1]
                if name == function:
                    yield node


def passes() -> list[str]:
    from tilewright.compiler.passes.pipeline import PASSES

    return sorted(step.__name__ for step in PASSES)


def knobs() -> list[str]:
    first = (call.args[0] for call in calls("compiler/schedule", "Knob") if call.args)
    return sorted({node.value for node in first if isinstance(node, ast.Constant)})


def settings() -> list[str]:
    tree = ast.parse((ROOT / "service" / "settings.py").read_text())
    return [
        f"TILEWRIGHT_{statement.target.id.upper()}"
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any("Settings" in ast.unparse(b) for b in node.bases)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    ]


def routes() -> list[str]:
    from tilewright.service.api.app import create_app
    from tilewright.service.settings import Settings

    paths = create_app(Settings()).openapi()["paths"]
    return sorted(f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs)


def commands() -> list[str]:
    from tilewright.service.cli.tree import paths

    return sorted(paths())


@pytest.mark.parametrize("kind", [passes, knobs, settings, routes, commands])
def test_everything_is_documented(kind: object) -> None:
    assert callable(kind)
    names = kind()
    assert names, "nothing found: the test looks in the wrong place"
    missing = [name for name in names if not named(name)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    local = [link.split("#")[0] for link in links if "://" not in link and not link.startswith("#")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    index, navigation = (docs / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")} - {"index.md"}
    assert sorted(name for name in pages if f"({name})" not in index) == []
    assert sorted(name for name in pages if f": {name}\n" not in navigation) == []


def kinds() -> dict[str, list[Path]]:
    """The pages of each group of the site's navigation, without generated lists and the history."""
    found = {}
    for group in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]:
        ((kind, pages),) = group.items()
        if isinstance(pages, str):
            continue  # the first page
        names = [name for page in pages for name in page.values()]
        kept = [name for name in names if name not in ("operators.md", "CHANGELOG.md")]
        found[kind] = [next(p for p in (ROOT / n, ROOT / "docs" / n) if p.exists()) for n in kept]
    return found


def test_pages_have_one_of_four_kinds() -> None:
    assert list(kinds()) == ["Tutorial", "How to", "Explanation", "Reference", "Project"]


def test_pages_begin_with_their_readers_and_what_they_will_have() -> None:
    from deploy.reference import NOTE

    pages = [page for of in kinds().values() for page in of]
    assert pages
    first = {page: page.read_text().replace(f"{NOTE}\n\n", "").split("\n\n")[1] for page in pages}
    missing = [
        str(page.relative_to(ROOT))
        for page, text in first.items()
        if not (re.search(r"^For (?!example)", text) and re.search("[Aa]t the end", text))
    ]
    assert missing == []


def test_cells_of_tables_are_short_outside_the_reference() -> None:
    long = [
        f"{page.relative_to(ROOT)}: {cell.strip()}"
        for kind, pages in kinds().items()
        for page in pages
        for line in page.read_text().splitlines()
        for cell in re.split(r"(?<!\\)\|", line)[1:-1]
        if kind != "Reference"
        and line.startswith("|")
        and len(re.sub("(`[^`]*` ){3,}", "names ", cell).split()) > 25
    ]
    assert long == []


def test_the_reference_is_what_the_code_says() -> None:
    """`make reference` writes it anew."""
    from deploy.reference import FOLDER, pages

    old = {path for path, text in pages().items() if not path.exists() or path.read_text() != text}
    assert sorted(path.name for path in old) == []
    assert sorted(FOLDER.iterdir()) == sorted(pages())


def test_no_entry_of_the_changelog_was_torn_by_a_merge() -> None:
    """`union` merges lines: with two forms of an entry, the end of one remains behind the other."""
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    ends = [b for a, b in pairwise(lines) if a.endswith(".") and re.match(" +[a-z]", b)]
    assert not ends, "these lines go on with a sentence that had ended"
    long = [line for line in lines if len(line) > 40]
    assert sorted(set(long)) == sorted(long), "a line stands there twice"


ELSEWHERE = {
    *("NAME.py", "NAME_analysis.py", "NAME_lowering.py", "FAMILY.py"),  # patterns
    *("NAME.h", "CMakeLists.txt", "manifest.json", "model.mjs", "vit.mjs", "vit-thread.mjs"),
    *("client.py", "run.json", "openapi.json", "messages.h", "messages.mjs", "release-notes.md"),
}
"""Names in pages that are not those of tracked files: patterns, and files that commands write."""


@pytest.mark.parametrize(
    ("page", "most"), [("README.md", 90), ("ARCHITECTURE.md", 250), ("CHANGELOG.md", 120)]
)
def test_pages_that_are_read_first_stay_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= most


def test_files_that_pages_name_exist() -> None:
    """A path is the end of a tracked file's path."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    files = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    ends = {"/".join(parts[i:]) for parts in (f.split("/") for f in files) for i in range(9)}
    pages = [
        page for page in PAGES if page.name != "CHANGELOG.md" and "reference" not in page.parts
    ]
    gone = [
        f"{page.name}: {name}"
        for page in pages
        for name in re.findall(r"`/?([\w/.-]+\.(?:py|c|h|mjs|md|toml|json|txt))`", page.read_text())
        if name not in ends and name.rsplit("/", 1)[-1] not in ELSEWHERE
    ]
    assert sorted(set(gone)) == []


def test_make_targets_are_described() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets is not None
    described = re.findall(r"^#   ([\w-]+)  ", makefile, re.MULTILINE)
    assert set(targets[1].split()) - {"setup-test"} == set(described)


# Written in parts, so that this file is not found.
FORBIDDEN = [
    r"/wor" r"k/",
    r"/ro" r"ot/",
    r"/ho" r"me/(?!\.)\w",
    r"pypi" r"\.org",
    r"pythonhosted" r"\.org",
    r"npmjs" r"\.",
    r"\bTO" r"DO\b",
    r"\bFIX" r"ME\b",
]


def test_no_file_holds_what_must_not_be_there() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    pattern = re.compile("|".join(FORBIDDEN))
    found = []
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if not name or not path.is_file() or path.suffix in (".npz", ".onnx", ".png"):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)
