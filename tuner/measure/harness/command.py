"""Start of the harness on a device through a command, such as `ssh pi@board` (option `--via`).

Nothing needs to be installed on the device. The command starts a shell there. Through this shell,
the harness is copied to the device, once per version, and started. A command may also run the
harness directly. It then contains the target in braces, as in `qemu-aarch64 {aarch64}`; the braces
are replaced by the path of the harness. `{}` stands for this machine's harness.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tilewright.compiler.targets.families import family_of
from tilewright.tuner.measure.harness.build import TARGETS, HarnessError, harness, local_harness

START_SECONDS = 60.0
"""Time limit in seconds for a command to reach its device, and for the device to answer."""

END_SECONDS = 5.0
"""Longest wait in seconds for a killed command to end. A command that runs as root may not end."""

UPLOAD_SECONDS = 600.0
"""Time limit in seconds for copying the harness to the device."""

LAST_LINES = 5
"""Number of lines from the end of a command's standard error that an error message quotes."""

FOLDER = "{folder}"
"""Placeholder in a harness's arguments for the folder on the device that it may write to."""

_PLACE = re.compile(r"\{([a-z0-9_-]*)\}")

_FIND = """\
for d in "$XDG_CACHE_HOME" "$HOME/.cache" /data/local/tmp /var/tmp /tmp; do
case "$d" in /*) d="$d/tilewright"; mkdir -p "$d" 2>/dev/null; test -w "$d" && break;; esac
done
f="$d/harness-@"
"""

_ASK = (
    _FIND
    + """\
if test -x "$f"; then echo 'tilewright has it'; else echo 'tilewright lacks it'; fi
"""
)

_COPY = """\
n="$f.$$"
base64 -d > "$n" <<'TILEWRIGHT'
@TILEWRIGHT
if test -s "$n" && chmod 700 "$n" && mv "$n" "$f"
then echo 'tilewright has it'; else rm -f "$n"; echo 'tilewright fails to take it'; fi
for o in "$d"/harness-*; do test "$o" = "$f" || rm -f "$o"; done
"""


LINE_BYTES = 4096
"""Limit in bytes of a line that a command prints before the harness runs, or on standard error."""

MOST_RELAYED = 1000
"""Limit of the lines of a command's standard error that are copied to the log."""


class DeviceLost(OSError):
    """Raised if the device is unreachable.

    The request in progress does not count as failed; it may be sent to another device.
    """


class ViaError(HarnessError):
    """Raised if a `--via` command is malformed or does not reach a device.

    The message is one sentence for the user.
    """


class StartedHarness(NamedTuple):
    """A harness that was started through a command.

    Attributes:
        process: the command's process; its standard input and output are connected to the harness.
        digest: SHA-256 of the binary that was started, to compare with the digest that the running
            harness reports.
    """

    process: subprocess.Popen[bytes]
    digest: str


class DeviceCommand:
    """A command that connects to a device, with which the harness is started there.

    Args:
        text: the command, in shell syntax.
        folder: this machine's folder of compiled harnesses.
        log: called with each line that the command or the device writes to standard error.
        environment: the command's environment variables; None for those of this process.
        blobs: the folder in which a harness on this machine caches blobs; None for the subfolder
            `device` of `folder`.
    """

    def __init__(
        self,
        text: str,
        folder: Path,
        log: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
        blobs: Path | None = None,
    ) -> None:
        """Parse the command without running it.

        Raises:
            ViaError: if the command is malformed.
        """
        self._environment = environment
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise ViaError(f"'{text}' is not a command: {error}") from error
        if not self._words:
            raise ViaError("the command is empty")
        self._folder = folder
        self._blobs = folder / "device" if blobs is None else blobs
        self._log = log
        named = {target for word in self._words for target in _PLACE.findall(word)}
        if len(named) > 1 or named - {*TARGETS, ""}:
            names = ", ".join(f"{{{target}}}" for target in TARGETS)
            raise ViaError(f"'{text}': a harness is one of {names}, or {{}} for this machine's")
        self._target = next(iter(named), None)
        self._last: list[str] = []
        self._relaying = threading.Thread()

    def start(self, arguments: Sequence[str], again: bool = False) -> StartedHarness:
        """Start the harness on the device, after copying it there if necessary.

        Args:
            arguments: the arguments of the harness.
            again: whether to copy the harness even if the device has a file with its name.

        Raises:
            HarnessError: if the command does not exist, or no harness exists for the device.
            DeviceLost: if the device is unreachable, or cannot run the harness.
        """
        if self._target is not None:
            binary = self._harness(self._target)
            words = [_PLACE.sub(str(binary), word) for word in self._words]
            folder = str(self._blobs)
            given = [each.replace(FOLDER, folder) for each in arguments]
            return StartedHarness(self._popen([*words, *given]), _digest(binary))
        process = self._popen([*self._words, "sh"])
        try:
            target = target_of(self._ask(process, 'echo "tilewright runs $(uname -m)"\n', "runs"))
            binary = self._harness(target)
            digest = _digest(binary)
            answer = self._ask(process, _ASK.replace("@", digest), "has|lacks")
            if again or answer.startswith("lacks"):
                self._log(f"copying the harness for {target} to the device")
                lines = base64.encodebytes(binary.read_bytes()).decode()
                script = _COPY.replace("@", lines)
                if self._ask(process, script, "has|fails", UPLOAD_SECONDS).startswith("fails"):
                    raise self.failure("the harness cannot be copied to the device")
            quoted = " ".join(
                f'"$d"{shlex.quote(each.removeprefix(FOLDER))}'
                if each.startswith(FOLDER)
                else shlex.quote(each)
                for each in arguments
            )
            _send(process, f'exec "$f" {quoted}\n')
        except BrokenPipeError as error:
            end(process)
            raise self.failure("its shell ended") from error
        except BaseException:
            end(process)
            raise
        return StartedHarness(process, digest)

    def failure(self, what: str) -> DeviceLost:
        """Create the exception for a failure.

        `what` is the description of the failure. The message also quotes the last lines that the
        command wrote to standard error.
        """
        self._relaying.join(1.0)  # if the command has ended, all its output is read
        said = "; ".join(self._last)
        name = "this machine" if self._words == ["{}"] else f"'{shlex.join(self._words)}'"
        return DeviceLost(f"{name}: {what}{f' ({said})' if said else ''}")

    def _harness(self, target: str) -> Path:
        """Return the path of the harness for a target; the empty string means this machine."""
        return harness(target, self._folder) if target else local_harness(self._folder)

    def _popen(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        self._last = []
        try:
            # in a separate session: Ctrl-C in a terminal ends the agent, which ends the command
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=self._environment,
            )
        except OSError as error:
            raise ViaError(f"'{words[0]}' cannot be started: {error.strerror}") from error
        assert process.stderr is not None
        self._relaying = threading.Thread(target=self._relay, args=(process.stderr,), daemon=True)
        self._relaying.start()
        return process

    def _relay(self, errors: IO[bytes]) -> None:
        relayed = 0
        with errors:
            while line := errors.readline(LINE_BYTES):
                text = line.decode(errors="replace").strip()[:500]
                if text:
                    self._last = [*self._last, text][-LAST_LINES:]
                    relayed += 1
                    if relayed <= MOST_RELAYED:
                        self._log(text)

    def _ask(
        self,
        process: subprocess.Popen[bytes],
        script: str,
        wanted: str,
        seconds: float = START_SECONDS,
    ) -> str:
        """Run a script in the device's shell, and return its answer.

        The answer is the rest of the first line that contains the word "tilewright". Lines before
        it, such as login banners, are ignored.

        Args:
            process: the shell.
            script: the script to run.
            wanted: a regular expression for the answer's first word.
            seconds: the time after which the command is killed.

        Raises:
            DeviceLost: if the shell ends, or gives no answer in time.
        """
        assert process.stdout is not None
        pattern = re.compile(rf"tilewright (?:({wanted}) )?(.*)")
        late = threading.Timer(seconds, kill, [process])
        late.start()
        try:
            _send(process, script)
            while line := process.stdout.readline(LINE_BYTES):
                found = pattern.search(line.decode(errors="replace").strip())
                if found:
                    return found[2] if wanted == "runs" else f"{found[1]} {found[2]}"
        except BrokenPipeError as error:
            raise self.failure("no shell answers on the device") from error
        finally:
            late.cancel()
        raise self.failure("no shell answers on the device")


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and its child processes. Any thread may call this function."""
    with contextlib.suppress(OSError):  # the command has ended, or belongs to root
        os.killpg(process.pid, signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a command, close its standard input, and wait up to END_SECONDS for its end.

    A harness on another device ends when it reads the end of its input.
    """
    kill(process)
    with contextlib.suppress(OSError):
        assert process.stdin is not None
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)


def _send(process: subprocess.Popen[bytes], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text.encode())
    process.stdin.flush()


def target_of(machine: str) -> str:
    """Return the target of a machine, such as `aarch64`, given the output of `uname -m` on it.

    Raises:
        ViaError: if no harness exists for this type of machine.
    """
    family = family_of(machine.strip())
    if family is None or family.name not in TARGETS:
        raise ViaError(f"there is no harness for a device of '{machine.strip()[:40]}'")
    return family.name


def _digest(binary: Path) -> str:
    return hashlib.sha256(binary.read_bytes()).hexdigest()
