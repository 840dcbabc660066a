"""The index of the results: each report answers a question, and each file belongs to a report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.results_index import (
    COMMANDS,
    INDEX,
    QUESTIONS,
    RESULTS,
    Entry,
    entry,
    page,
    repeating,
)

ORIGIN = "2026-11-23T11:24:25+00:00, Some CPU (2 cores), commit 6acb8edc65+, Python 3.11.7."


def test_the_index_is_what_the_reports_say() -> None:
    assert INDEX.read_text() == page()


def test_every_file_belongs_to_a_report() -> None:
    stems = {stem for questions in QUESTIONS.values() for stem in questions} | {INDEX.stem}
    kinds = r"\.(md|jsonl?\.gz|csv\.gz|png)"
    for file in RESULTS.iterdir():
        assert re.sub(kinds + "$", "", file.name) in stems, file.name
    assert set(COMMANDS) <= stems


def test_only_the_search_among_plans_needs_code_of_an_earlier_commit() -> None:
    asked = {stem: text for questions in QUESTIONS.values() for stem, text in questions.items()}
    entries = [entry(s, text, (RESULTS / f"{s}.md").read_text()) for s, text in asked.items()]
    earlier = [each for each in entries if not each.is_current]
    assert [each.stem for each in earlier] == ["plan-search"]
    assert earlier[0].cells()[-1].startswith("at that commit: `python -m benchmarks.plans")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("--name other --results mine --logs l", "--name race"),
        ("--folder real --resume --rounds 3 --keep", "--folder FOLDER --rounds 3"),
        (
            "--python openvino=python --python torch=.peers/torch/bin/python",
            "--python openvino=ENV/bin/python --python torch=ENV/bin/python",
        ),
        ("--output sim-main --only a b", "--output benchmarks/results/race --only a b"),
        ("--schedules tuned-3", "--schedules FOLDER"),
        ("--schedules .demo/artifact", "--schedules .demo/artifact"),
    ],
)
def test_the_command_repeats_the_report_elsewhere(command: str, shown: str) -> None:
    start = "python -m benchmarks.race --models a"
    assert repeating("race", f"{start} {command}") == f"{start} {shown}"


def test_the_index_names_reports_with_other_data() -> None:
    text = " ".join(INDEX.read_text().split())
    for kind in ("jsonl.gz", "csv.gz"):
        for file in RESULTS.glob(f"*.{kind}"):
            stem = file.name.removesuffix(f".{kind}")
            assert (RESULTS / f"{stem}.json.gz").exists() or f"`{stem}`" in text
    for stem in (stem for questions in QUESTIONS.values() for stem in questions):
        data = list(RESULTS.glob(f"{stem}.*gz"))
        assert data or f"`{stem}`" in text.partition("Only the report is kept")[2]


def test_no_question_is_asked_twice() -> None:
    asked = [text for questions in QUESTIONS.values() for text in questions.values()]
    own = [text for text in asked if not text.startswith("the same")]
    assert len(set(own)) == len(own)


def test_an_entry_is_of_the_newest_run() -> None:
    text = f"{ORIGIN} `python -m benchmarks.race --models a`\n\n" + ORIGIN.replace("-23T", "-25T")
    found = entry("race", "how fast", text)
    command = "python -m benchmarks.race --models a"
    assert found == Entry("how fast", "race", "2026-11-25", "6acb8edc65", "Some CPU", command)


@pytest.mark.parametrize(
    ("text", "reason"),
    [(ORIGIN, "no command"), ("`python -m benchmarks.race`", "neither date nor CPU")],
)
def test_a_report_without_its_origin_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        entry("race", "how fast", text)


def test_a_report_that_answers_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "race-again.md").write_text(ORIGIN)
    with pytest.raises(ValueError, match=r"reports differ: .*race-again"):
        page(tmp_path)
