"""The documentation as a site: it builds, requests nothing from other hosts, and fails on a dead
link."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import Abort

ROOT = Path(__file__).parents[2]


def config(site: Path, **changes: object) -> MkDocsConfig:
    return load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site), **changes)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built; a warning would be an Abort."""
    folder = tmp_path_factory.mktemp("site")
    build(config(folder))
    return folder


def test_pages_ask_nobody_for_anything(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert site / "tutorial" / "first-model.html" in pages
    asked = re.compile(
        r"<(?:script|img|iframe|source|audio|video)[^>]*\ssrc=[\"']?(?:https?:)?//[^>]*"
        r"|<link[^>]*\shref=[\"']?(?:https?:)?//[^>]*"
        r"|url\([\"']?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*"
    )
    files = [*pages, *site.rglob("*.css")]
    found = {path.name: asked.findall(path.read_text()) for path in files}
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize(
    "link", ["[a](nowhere.md)", "[a](../nowhere.py)", "[a](other.md#nothing)", "[a](/other.md)"]
)
def test_a_dead_link_stops_it(link: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "other.md").write_text("# Other\n")
    (docs / "index.md").write_text(f"# Page\n\n{link}\n")
    changed = {"docs_dir": str(docs), "nav": None, "plugins": [], "not_in_nav": "*.md"}
    with pytest.raises(Abort):
        build(config(tmp_path / "site", **changed, extra_css=[]))


def test_links_out_of_the_folder_become_pages_or_words(site: Path) -> None:
    page = (site / "explanation" / "defaults.html").read_text()
    assert 'href="../benchmarks/results/tuned.html"' in page
    assert (site / "benchmarks" / "results" / "tuned.html").exists()
    assert "<code>MODEL|DIR</code>" in (site / "reference" / "cli.html").read_text()
