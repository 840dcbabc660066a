"""docs/loops.md and docs/targets-howto.md name everything there is, and their examples work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.nests.parse import parse_nest
from tests.nests.verify import verify_nest
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Combiner, Operation, Role, Space
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.targets.target import known_targets

DOCS = Path(__file__).parents[3] / "docs"
LOOPS = (DOCS / "loops.md").read_text()
TARGETS = (DOCS / "targets-howto.md").read_text()
HELPERS = {"fma", "maximum", "minimum", "absolute", "polynomial", "select"}


@pytest.mark.parametrize("text", re.findall(r"```text\n(.*?)```", LOOPS, re.DOTALL))
def test_the_examples_are_nests(text: str) -> None:
    nest = parse_nest(text)
    verify_nest(nest)
    assert print_nest(nest) == text


@pytest.mark.parametrize("word", [*Operation, *Combiner, *Role, *Space])
def test_words_of_the_ir_are_documented(word: str) -> None:
    assert re.search(rf"`[^`\n]*\b{word}\b[^`\n]*`", LOOPS)


@pytest.mark.parametrize("name", sorted(set(maths.__all__) - HELPERS))
def test_functions_are_documented(name: str) -> None:
    section = LOOPS.split("## Mathematical functions")[1]
    assert f"`{name}`" in section


@pytest.mark.parametrize("name", sorted(known_targets()))
def test_targets_are_documented(name: str) -> None:
    assert f"`{name}`" in TARGETS
