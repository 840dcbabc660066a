"""Linking of objects into a shared library, for an artifact or a batch of candidates.

No C library is linked in: the functions that a kernel may call (memcpy, memset) are in the process
that loads it. Libraries are the same, byte for byte, for the same objects and the same linker.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.targets.families import families

_FLAGS = ("-shared", "--gc-sections", "-s", "--build-id=none", "-z", "noexecstack")
_MODULE = b"\0asm"
_MODULE_FLAGS = ("--no-entry", "--export-all", "--strip-all", "--stack-first", "-z")
_MODULE_STACK = "stack-size=1048576"
_TIMEOUT_SECONDS = 120.0


class LinkerError(CompilerError):
    """The error if this machine has no linker, or a linker reported an error."""


def link_shared(objects: Sequence[bytes], output: str | Path) -> None:
    """Link objects into a shared library at `output`, which is replaced atomically.

    Linkers are tried in this order: `ld.lld`, the system's `ld`, zig's linker (`pip install
    ziglang`), and the C compiler. `ld.lld` and zig's linker support every target, the others only
    this machine. Zig's linker is started through Python, and takes ten times as long as `ld`.
    WebAssembly objects are linked by `wasm-ld` or zig, to a module that exports its functions and
    has its own memory.

    Raises:
        LinkerError: if no linker is found, or every linker found reports an error.
    """
    if not objects:
        raise LinkerError("there are no objects to link")
    commands = module_linkers() if objects[0].startswith(_MODULE) else linkers()
    if not commands:
        raise LinkerError(
            "there is no linker: install a C compiler, lld, or the package 'ziglang' "
            "(pip install 'tilewright[linker]')"
        )
    output = Path(output)
    with tempfile.TemporaryDirectory(prefix=".link-", dir=output.parent) as folder:
        names = []
        for number, code in enumerate(objects):
            path = Path(folder, f"{number}.o")
            path.write_bytes(code)
            names.append(path.name)
        # A response file, because a batch may be too long for a command line.
        Path(folder, "objects").write_text("\n".join(names))
        refusals: list[str] = []
        for command in commands:
            refusal = _link(command, Path(folder))
            if refusal is None:
                os.replace(Path(folder, "library"), output)
                return
            refusals.append(refusal)
    machine = _machine(objects[0])
    if machine and machine != _machine(_head(Path(sys.executable))):
        raise LinkerError(
            f"cannot link '{output.name}': the linkers of this machine do not know "
            f"{_machine_name(machine)}: install lld, or the package 'ziglang' "
            "(pip install 'tilewright[linker]')"
        )
    raise LinkerError(f"cannot link '{output.name}': {'; '.join(refusals)}")


@cache
def linkers() -> tuple[tuple[str, ...], ...]:
    """Return the command lines of the linkers on this machine, in the order of attempts."""
    found: list[tuple[str, ...]] = []
    lld = shutil.which("ld.lld")
    if lld:
        found.append((lld, *_FLAGS))
    system = shutil.which("ld")
    if system and sys.platform == "linux":
        found.append((system, *_FLAGS))
    if importlib.util.find_spec("ziglang") is not None:
        found.append((sys.executable, "-m", "ziglang", "ld.lld", *_FLAGS))
    zig = shutil.which("zig")
    if zig:
        found.append((zig, "ld.lld", *_FLAGS))
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler:
        found.append((compiler, "-shared", "-nostdlib"))
    return tuple(found)


@cache
def module_linkers() -> tuple[tuple[str, ...], ...]:
    """Return the command lines of the WebAssembly linkers on this machine, in the order of
    attempts."""
    found: list[tuple[str, ...]] = []
    if linker := shutil.which("wasm-ld"):
        found.append((linker,))
    if importlib.util.find_spec("ziglang") is not None:
        found.append((sys.executable, "-m", "ziglang", "wasm-ld"))
    return tuple((*command, *_MODULE_FLAGS, _MODULE_STACK) for command in found)


def _machine(code: bytes) -> int:
    """Return the machine number (`e_machine`) in an ELF header; 0 for any other file."""
    return int.from_bytes(code[18:20], "little") if code[:4] == b"\x7fELF" else 0


def _machine_name(machine: int) -> str:
    names = {family.elf_machine: family.name for family in families() if family.elf_machine}
    return names.get(machine, f"ELF machine {machine}")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)


def _link(command: tuple[str, ...], folder: Path) -> str | None:
    """Run a linker on the objects in a folder, to a file named `library`.

    Return the error message, or None if linking succeeded.
    """
    try:
        done = subprocess.run(
            [*command, "-o", "library", "@objects"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    if done.returncode == 0:
        return None
    lines = (done.stderr or done.stdout).strip().splitlines()
    return f"{command[0]}: {lines[0] if lines else f'exit status {done.returncode}'}"
