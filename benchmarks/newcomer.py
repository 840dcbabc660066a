"""The steps of a new user, following only the documentation: `python -m benchmarks.newcomer`.

The wheel of the last commit is built. In an empty folder with a new home, the command blocks under
some headings of the README and the tutorial are executed, in the order in which a reader meets
them, and so are the blocks of Python. A command with the comment `goes on` belongs in another
terminal: it runs in the background, and the next command starts when it is ready. The report has
the time of each step; a step is done if all its commands end with status 0. Two things in the
documents are changed: the port becomes a free one, and the path of the wheel replaces the dot in
`pip install '.[all]'`.
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
"""Commands that exit with status 3 if the machine could be better. The documents mention this
status."""
READY = "serving http|registered as"
"""Pattern of the messages by which a service or a worker reports that it is ready."""


@dataclass(frozen=True, slots=True)
class Step:
    """A task of a new user, such as installing or tuning.

    Attributes:
        name: what the user does, in words.
        sections: pages below docs/, each with the heading whose command blocks perform the task.
        needs: a Python module without which the step is skipped.
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
    """Outcome of a step: its number of commands, duration and exit status.

    `skipped` says why it was not tried.
    """

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
    """The shell and Python blocks under a heading of a page, each as language and text.

    Raises LookupError if the page has no such heading.
    """
    pieces = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        if name == heading:
            return re.findall(r"^```(sh|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    raise LookupError(f"no heading {heading!r}")


def script(step: Step, documents: Path) -> str:
    """A shell script with all commands of a step; Python blocks become here-documents."""
    lines = []
    for name, heading in step.sections:
        for language, text in blocks((documents / name).read_text(), heading):
            lines.append(f"python - <<'END'\n{text}END" if language == "python" else typed(text))
    return "\n".join(lines)


def typed(block: str) -> str:
    """The shell commands for a shell block of a page, one line for each of its lines."""
    return "\n".join(_typed(line) for line in block.splitlines())


def _typed(line: str) -> str:
    """The shell command for a line of a page.

    A line marked `goes on` is run in the background until it is ready. Commands in LOOKS, such as
    `tilewright doctor`, may exit with status 3. This status means that the machine could be
    improved.
    """
    command, goes_on, _ = line.partition(GOES_ON)
    if line in LOOKS:
        return f"{line} || test $? -eq 3"
    if not goes_on:
        return line
    return f"leave {shlex.quote(command.strip())}"


BEFORE = f"""
set -eu -o pipefail
leave() {{
  local -; set +x
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
    """Runs each step in a new shell, which inherits the exported variables of the shell before it.

    Args:
        folder: the working directory of the shells.
        log: a file for all their output.
        environment: environment variables of the first shell.
    """

    def __init__(self, folder: Path, log: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._log = log
        self._environment = environment
        self._groups: list[int] = []

    def type(self, text: str) -> int:
        """Run commands in a shell.

        Returns the exit status of the first command that fails, or 0.
        """
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
        """Terminate all processes that the shells have started in the background."""
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGTERM)
            except ProcessLookupError:
                continue


def commands(text: str) -> int:
    """Number of commands in a script, without comments and here-documents."""
    outside = re.sub(r"<<'END'.*?^END$", "", text, flags=re.MULTILINE | re.DOTALL)
    return len([line for line in outside.splitlines() if line.strip() and line[0] != "#"])


def take(step: Step, shells: Shells, documents: Path, port: int, wheel: str = ".") -> Outcome:
    """Execute a step, and return its outcome.

    In its commands, `port` replaces port 8080, and `wheel` replaces the source tree that is
    installed.
    """
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
    """Build the wheel of the last commit of a repository in `folder`, and return its path."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(source), str(clone)], check=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder)]
    subprocess.run([*pip, str(clone)], check=True)
    shutil.rmtree(clone)
    (wheel,) = folder.glob("*.whl")
    return wheel


def walk(steps: Sequence[Step], folder: Path, log: Path, package: str = "") -> list[Outcome]:
    """Execute the steps in order in a new home below `folder`.

    A failed step does not stop the others. `package` is installed before a step that needs a
    module; the installation is not part of the step's time.
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
    """The benchmark's report in Markdown, with a row per step."""
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
    """Command line: execute the steps and write the report. The exit code is 1 if a step failed."""
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
