"""The picture of ARCHITECTURE.md: generated, complete, and true to the code's names."""

from __future__ import annotations

import subprocess
from pathlib import Path

from deploy.dataflow import ARROWS, BOXES, JOINED, PICTURE, picture

ROOT = Path(__file__).parents[2]


def test_the_committed_picture_is_generated() -> None:
    """`python -m deploy.dataflow` writes it anew."""
    assert PICTURE.read_text() == picture()
    assert "(docs/dataflow.svg)" in (ROOT / "ARCHITECTURE.md").read_text()


def test_each_arrow_joins_two_boxes_and_each_box_has_one() -> None:
    joined = [(start, end) for start, end, _ in (*ARROWS, JOINED)]
    assert {name for pair in joined for name in pair} == {box.name for box in BOXES}
    assert len({(box.column, box.row) for box in BOXES}) == len(BOXES)


def test_values_are_named_as_their_classes() -> None:
    names = [box.name for box in BOXES if box.name[0].isupper() and " " not in box.name]
    found = subprocess.run(
        ["grep", "-rhoE", "--include=*.py", r"^class \w+", "compiler", "tuner"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    classes = set(found.stdout.replace("class ", "").split())
    assert sorted(set(names) - classes) == []
