"""The tutorial's commands are typed unchanged and in order, and a failure is reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.newcomer import ROOT, STEPS, Outcome, Shells, Step, blocks, commands, script, take
from tests.processes import ended
from tests.waiting import until

DOCS = ROOT / "docs"


def shells(folder: Path) -> Shells:
    (folder / "home").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder / "home")}
    return Shells(folder, folder / "log", environment)


@pytest.mark.parametrize("step", [s for s in STEPS if not s.needs], ids=lambda step: step.name)
def test_every_step_is_in_the_documents(step: Step) -> None:
    assert commands(script(step, DOCS)) >= 1


def test_blocks_are_those_under_the_heading() -> None:
    page = (
        "# P\n```sh\na\n```\n## One\n```sh\nb\nc\n```\n```text\nd\n```\n## Two\n```python\ne\n```\n"
    )
    assert blocks(page, "One") == [("sh", "b\nc\n")]
    assert blocks(page, "Two") == [("python", "e\n")]
    with pytest.raises(LookupError):
        blocks(page, "Three")


def page(folder: Path, text: str) -> Step:
    (folder / "page.md").write_text(f"## Do\n\n```sh\n{text}\n```\n")
    return Step("do", (("page.md", "Do"),))


def test_variables_stay_and_the_first_failure_is_told(tmp_path: Path) -> None:
    typed = shells(tmp_path)
    first = take(page(tmp_path, "export WHERE=127.0.0.1:8080"), typed, tmp_path, 4321)
    assert (first.status, first.commands) == (0, 1)
    second = take(
        page(tmp_path, 'echo "$WHERE" > said\nfalse\ntouch not-there'), typed, tmp_path, 1
    )
    assert second.status == 1 and second.word == "failed with status 1"
    assert (tmp_path / "said").read_text() == "127.0.0.1:4321\n"
    assert not (tmp_path / "not-there").exists()
    typed.end()


def test_a_wheel_is_installed_where_the_documents_name_a_checkout(tmp_path: Path) -> None:
    typed = shells(tmp_path)
    step = page(tmp_path, "echo '.[all]' 'b.[all]' > said")
    assert take(step, typed, tmp_path, 1, "/w/t.whl").status == 0
    assert (tmp_path / "said").read_text() == "/w/t.whl[all] b.[all]\n"


def test_what_goes_on_is_waited_for_and_ended(tmp_path: Path) -> None:
    typed = shells(tmp_path)
    (tmp_path / "serve").write_text("sleep 0.3; touch up; echo serving http://x; exec sleep 60\n")
    step = page(
        tmp_path,
        "bash serve     # goes on: in another terminal\ntest -e up\npgrep -g $$ sleep > id",
    )
    assert take(step, typed, tmp_path, 1).status == 0
    typed.end()
    identity = int((tmp_path / "id").read_text())
    until(lambda: ended(identity))
    # a command that ends without a signal was not a service
    assert take(page(tmp_path, "true     # goes on: no"), typed, tmp_path, 1).status == 1


def test_what_cannot_be_tried_is_skipped(tmp_path: Path) -> None:
    typed = shells(tmp_path)
    needs = Step("it", (("page.md", "Do"),), needs="a_module_that_nobody_has")
    assert take(needs, typed, tmp_path, 1).skipped == "there is no page page.md"
    page(tmp_path, "true")
    skipped = take(needs, typed, tmp_path, 1)
    assert skipped == Outcome("it", 1, 0.0, 0, "a_module_that_nobody_has is not installed")
