"""The steps of a new user, from the documents alone: `python -m benchmarks.newcomer`.

The wheel of the last commit is built. A user with a new home and an empty folder types the blocks
of commands under some headings of the README and the tutorial, in the order in which a reader meets
them. Blocks of Python are run, too. A command with the comment `goes on` is one for another
terminal: it is left running, and the next commands wait until it is ready. The report has the time
of each step; a step is done if all its commands end with status 0. Two things in the
documents are changed: the port, which has to be free, and the dot of `pip install '.[all]'`, which
becomes the wheel, since no source tree is there.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import Origin, markdown_table, write_result
from examples.demo_processes import free_port

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "newcomer"
GOES_ON = "# goes on"
LOOKS = ("tilewright doctor", "tilewright-worker --check")
"""Commands that end with 3 where the machine could be better: the documents say so."""
READY = "serving http|registered as"
"""Messages of a service and a worker when they are ready."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a user wants to do.

    Attributes:
        name: what, in words.
        sections: pages of docs/ with the headings whose blocks do it.
        needs: a module without which it is skipped.
    """

    name: str
    sections: tuple[tuple[str, str], ...]
    needs: str = ""


FIRST, BOARD = "tutorial/first-model.md", "tutorial/raspberry-pi.md"
QUANTISE = "tutorial/quantise.md"
STEPS = (
    Step("install", ((FIRST, "Install"),)),
    Step("tune", ((FIRST, "Get a model"), (FIRST, "Tune"), (FIRST, "Run it"), (FIRST, "Compare"))),
    Step("read a profile", ((FIRST, "See where the time goes"),)),
    Step("look up", ((FIRST, "Look up"),)),
    Step(
        "add a remote worker",
        (
            (BOARD, "On the machine with the service"),
            (BOARD, "On the board"),
            (BOARD, "Tune for it"),
            (BOARD, "Run it there"),
        ),
    ),
    Step(
        "share records",
        (
            ("tutorial/shared-records.md", "One service for all"),
            ("tutorial/shared-records.md", "Records that travel"),
        ),
    ),
    Step(
        "quantise",
        (
            (QUANTISE, "Install the quantiser"),
            (QUANTISE, "Make a model"),
            (QUANTISE, "Quantise"),
            (QUANTISE, "Compare"),
            (QUANTISE, "Limit the loss"),
        ),
    ),
    Step("read the README", (("../README.md", "Three ways to use it"),)),
    Step("use from PyTorch", (("pytorch.md", "Try it"),), needs="torch"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a step; `skipped` says why it was not tried."""

    name: str
    commands: int
    seconds: float
    status: int
    skipped: str = ""

    @property
    def word(self) -> str:
        if self.skipped:
            return f"skipped: {self.skipped}"
        return "done" if self.status == 0 else f"failed with status {self.status}"


def blocks(page: str, heading: str) -> list[tuple[str, str]]:
    """Language and text of the blocks of commands and of Python under a heading of a page.

    Raises LookupError if the page has no such heading.
    """
    pieces = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        if name == heading:
            return re.findall(r"^```(sh|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    raise LookupError(f"no heading {heading!r}")


def script(step: Step, documents: Path) -> str:
    """The commands of a step."""
    lines = []
    for name, heading in step.sections:
        for language, text in blocks((documents / name).read_text(), heading):
            if language == "python":
                lines.append(f"python - <<'END'\n{text}END")
            else:
                lines += [_typed(line) for line in text.splitlines()]
    return "\n".join(lines)


def _typed(line: str) -> str:
    """A line as it is typed; one that goes on is left behind once it says that it is ready."""
    command, goes_on, _ = line.partition(GOES_ON)
    if line in LOOKS:
        return f"{line} || test $? -eq 3"
    if not goes_on:
        return line
    return f"leave {shlex.quote(command.strip())}"


BEFORE = f"""
set -eu -o pipefail
leave() {{
  : > left.log  # what the one before printed would be taken for this one's
  bash -c "exec $1" > left.log 2>&1 &
  for _ in $(seq 300); do
    if grep -qE {shlex.quote(READY)} left.log; then return; fi
    kill -0 $! || break
    sleep 0.2
  done
  cat left.log; return 1
}}
trap 'status=$?; export -p > "$HOME/.exported"; exit $status' EXIT
if [ -e "$HOME/.exported" ]; then . "$HOME/.exported"; fi
set -x
"""


class Shells:
    """A shell for each step, each with the variables that the one before left. Ends all at last.

    Args:
        folder: where they start.
        log: a file for all that they print.
        environment: of the first.
    """

    def __init__(self, folder: Path, log: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._log = log
        self._environment = environment
        self._groups: list[int] = []

    def type(self, text: str) -> int:
        """Type a text; its status, which is that of the first command that fails."""
        with self._log.open("ab") as output:
            shell = subprocess.Popen(
                ["bash", "-c", BEFORE + text],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._groups.append(shell.pid)
            return shell.wait()

    def end(self) -> None:
        """Ask what was left running to end."""
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGTERM)
            except ProcessLookupError:
                continue


def commands(text: str) -> int:
    """How many commands a user types."""
    outside = re.sub(r"<<'END'.*?^END$", "", text, flags=re.MULTILINE | re.DOTALL)
    return len([line for line in outside.splitlines() if line.strip() and line[0] != "#"])


def take(step: Step, shells: Shells, documents: Path, port: int, wheel: str = ".") -> Outcome:
    """Take a step as the documents say; `wheel` is installed where they name a checkout."""
    missing = [name for name, _ in step.sections if not (documents / name).exists()]
    if missing:
        return Outcome(step.name, 0, 0.0, 0, f"there is no page {missing[0]}")
    text = script(step, documents).replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    text = text.replace("'.[all]'", shlex.quote(f"{wheel}[all]"))
    if step.needs and shells.type(f"python -c 'import {step.needs}'") != 0:
        return Outcome(step.name, commands(text), 0.0, 0, f"{step.needs} is not installed")
    began = time.monotonic()
    status = shells.type(text)
    return Outcome(step.name, commands(text), time.monotonic() - began, status)


def built_wheel(source: Path, folder: Path) -> Path:
    """The wheel of the last commit of a repository."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(source), str(clone)], check=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*pip, str(clone)], check=True)
    shutil.rmtree(clone)
    (wheel,) = folder.glob("*.whl")
    return wheel


def walk(steps: Sequence[Step], folder: Path, log: Path, package: str = "") -> list[Outcome]:
    """Take the steps one after the other; a failure does not stop the others.

    A package is installed before the last step, outside of any step's time.
    """
    wheel, home, empty, port = (
        built_wheel(ROOT, folder),
        folder / "home",
        folder / "user",
        free_port(),
    )
    home.mkdir()
    empty.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TILEWRIGHT")}
    for name in ("PYTHONPATH", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV"):
        kept.pop(name, None)
    server = f"http://127.0.0.1:{port}"
    ours = {"HOME": str(home), "TILEWRIGHT_PORT": str(port), "TILEWRIGHT_SERVER": server}
    shells = Shells(empty, log, {**kept, **ours})
    found = []
    try:
        for step in steps:
            if step.needs and package:
                shells.type(f"python -m pip install --quiet {shlex.quote(package)}")
            found.append(take(step, shells, ROOT / "docs", port, str(wheel)))
            print(f"{step.name}: {found[-1].word}, {found[-1].seconds:.0f} s", flush=True)
    finally:
        shells.end()
    return found


def report(outcomes: Sequence[Outcome], origin: Origin) -> str:
    """A page with a row for each step."""
    rows = [
        [each.name, each.word, str(each.commands), "" if each.skipped else f"{each.seconds:.0f}"]
        for each in outcomes
    ]
    head = ["what", "", "commands", "seconds"]
    text = __doc__ or ""
    return "\n\n".join(
        ["# A newcomer", origin.sentence(), text.strip(), markdown_table(head, rows, 2)]
    )


def main() -> int:
    """Take the steps and write what came of them; 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--log", type=Path, default=Path("build/newcomer.log"), help="what was printed"
    )
    parser.add_argument("--install", default="", help="package to install first, such as torch")
    parser.add_argument("--result", type=Path, default=RESULT, help="without an ending")
    given = parser.parse_args()
    log = given.log.absolute()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    with tempfile.TemporaryDirectory() as folder:
        outcomes = walk(STEPS, Path(folder), log, given.install)
    origin = Origin.of(given)
    rows = [asdict(each) for each in outcomes]
    write_result(given.result, origin, {"steps": rows}, report(outcomes, origin) + "\n")
    return int(any(each.status for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
