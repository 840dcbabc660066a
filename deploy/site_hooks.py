"""Hooks of mkdocs, which builds the documentation site: `mkdocs build`, or `make docs`.

Pages in docs/ may link to files outside of docs/, because they are also read in the repository.
Linked Markdown files become pages of the site, with the same path. Links to other existing files
and folders become plain text. A link to a file that does not exist fails the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
IMAGE = re.compile(r"(!\[[^\[\]]*\])\(([^)\s]+)\)")
CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
OWN = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
"""Files outside of docs/ that are always pages of the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the Markdown files outside of docs/ to which the navigation or a page of docs/ links."""
    wanted = set(OWN)
    for file in files.documentation_pages():
        wanted |= _outside(f"docs/{file.src_uri}", file.content_string)
    # links of other pages outside of docs/, such as reports, become plain text
    wanted |= {each for name in OWN for each in _outside(name, (ROOT / name).read_text())}
    for name in sorted(wanted):
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the Markdown of a page with its links adapted to the paths of the site."""
    here = page.file.src_uri
    place = _repository_path(here)

    def changed(match: re.Match[str]) -> str:
        text, (path, _, anchor) = match[1], match[2].partition("#")
        if "://" in match[2] or not path or "`" in path:
            return match[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
        site = there.removeprefix("docs/")
        if files.get_file_from_path(site) is not None:
            link = posixpath.relpath(site, posixpath.dirname(here) or ".")
            return f"[{text}]({link}{'#' + anchor if anchor else ''})"
        # an existing path that is not a page, such as a folder or a source file
        return text if (ROOT / there).exists() else match[0]

    def moved(match: re.Match[str]) -> str:
        there = posixpath.normpath(posixpath.join(posixpath.dirname(place), match[2]))
        site = there.removeprefix("docs/")
        if files.get_file_from_path(site) is None:
            return match[0]
        return f"{match[1]}({posixpath.relpath(site, posixpath.dirname(here) or '.')})"

    return IMAGE.sub(moved, LINK.sub(changed, markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    r"""Replace `\|` by `|` in the cells of tables.

    The Markdown has the backslash because `|` would end the cell on GitHub. On the site, the
    backslash would be visible.
    """
    return CELL.sub(lambda match: match[0].replace("\\|", "|"), html)


def _repository_path(src_uri: str) -> str:
    """Return the path in the repository of a page, given its path in the site."""
    inside = f"docs/{src_uri}"
    return inside if (ROOT / inside).exists() else src_uri


def _outside(place: str, text: str) -> set[str]:
    """Return the paths of existing Markdown files outside of docs/ to which a page links.

    `place` is the page's path in the repository, and `text` its Markdown.
    """
    found = set()
    for _, link in LINK.findall(text):
        path = link.partition("#")[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
        if path.endswith(".md") and "://" not in path and not there.startswith(("docs/", "..")):
            found.add(there)
    return {name for name in found if (ROOT / name).is_file()}
