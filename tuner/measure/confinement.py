"""What a sandbox's child may do, as a value that its keeper gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tilewright.compiler.runtime.codec import JsonValue


class SandboxGuard(StrEnum):
    """What keeps a candidate from what is not its business; each is on where it can be had."""

    LIMITS = "limits"
    """Memory, files, and no core dump."""
    USER = "own user"
    """A user of its own, to whom nothing belongs."""
    NETWORK = "no network"
    """A network of its own, with nothing in it."""
    PROCESSES = "few processes"
    PRIVILEGES = "no privileges"
    """No capabilities, and no program that has more of them."""
    FILES = "few files"
    """Reads the interpreter and the blobs, writes nothing (Landlock)."""
    CALLS = "few system calls"
    """No sockets, programs, signals to others, changes of files (seccomp)."""


ON = ""
"""What is reported of a guard that is on; of others, why not."""

Guards = Mapping[str, str]
"""SandboxGuard -> ON, or the reason why it is off."""


@dataclass(frozen=True, slots=True)
class Confinement(JsonValue):
    """Settings of the guards.

    Attributes:
        user: number of the user and group that candidates run as; None: the keeper's.
        memory_bytes: most address space; 0: as much as the machine has memory.
        cores: logical cores that candidates run on; empty: all that the keeper may use.
        folder: where the files of jobs lie; empty: anywhere, and reading is not limited.
    """

    user: int | None = None
    memory_bytes: int = 0
    cores: tuple[int, ...] = ()
    folder: str = ""

    def name_of(self, file: Path) -> str:
        """A file as the child names it: it may not be allowed to look above the folder."""
        return f"./{file.name}" if self.folder and file.parent == Path(self.folder) else str(file)

    def open_folder(self) -> None:
        """Let the child's user reach the files of the folder by name. Raises OSError."""
        if self.folder and self.user is not None:
            Path(self.folder).chmod(0o711)

    def open_file(self, file: Path) -> None:
        """Let the child's user read a file. Raises OSError."""
        if self.user is not None and file.stat().st_mode & 0o444 != 0o444:
            file.chmod(0o644)


PLAIN = Confinement()
"""What needs no settings."""
