"""C toolchains: this machine's C compiler for its own target, or zig for any target."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.targets.target import Target

WARNINGS = ("-Wall", "-Wextra", "-Werror")
_FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O2", "-fPIC", "-ffunction-sections", *WARNINGS)
STACK_BYTES = 1 << 20
"""Stack size of each thread of a WebAssembly module, in bytes."""

_SECONDS = 600.0
"""Time limit of each compiler or linker command, in seconds. It is long because zig compiles a C
library before it links its first static executable."""


class ToolchainError(CompilerError):
    """The error if no C toolchain supports a target, or a compiler or linker reported an error."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The commands that compile and link C code for a target.

    Attributes:
        compiler: the command that compiles C and assembly, and links.
        archiver: the command that packs object files into a static library.
        static: options with which `compiler` links static executables; empty if it cannot link
            them.
        helpers: options that link the compiler's runtime library, such as `-lgcc`. They are set on
            target families whose code calls functions of that library (`Family.helpers`).
        linker: the command that links WebAssembly modules.
    """

    compiler: tuple[str, ...]
    archiver: tuple[str, ...]
    static: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    linker: tuple[str, ...] = ()

    def compile(
        self, folder: Path, source: str | Path, output: str, options: Sequence[str] = ()
    ) -> None:
        """Compile the file `source` in a folder to the object file `output`.

        Raises:
            ToolchainError: if the compiler fails, with the first lines of its output.
        """
        language = () if str(source).endswith(".S") else _FLAGS
        _run([*self.compiler, *language, *options, "-c", str(source), "-o", output], folder)

    def archive(self, folder: Path, objects: Sequence[str], output: str) -> None:
        """Pack object files into a static library, reproducibly.

        Raises:
            ToolchainError: if the archiver fails.
        """
        for i in range(0, len(objects), 500):  # systems limit the length of a command line
            _run([*self.archiver, "rcsD", output, *objects[i : i + 500]], folder)

    def link_shared(self, folder: Path, archive: str, exported: Sequence[str], output: str) -> None:
        """Link all objects of an archive into a shared library that exports only the given names.

        Raises:
            ToolchainError: if linking fails.
        """
        shown = " ".join(f"{name};" for name in exported)
        Path(folder, "exported").write_text(f"{{ global: {shown} local: *; }};\n")
        _run(
            [
                *self.compiler,
                "-shared",
                "-nostdlib",
                "-Wl,--version-script=exported",
                "-Wl,--gc-sections",
                "-Wl,-z,noexecstack",
                f"-Wl,-soname,{output}",
                "-Wl,--whole-archive",
                archive,
                "-Wl,--no-whole-archive",
                *self.helpers,
                "-o",
                output,
            ],
            folder,
        )
        Path(folder, "exported").unlink()

    def link_module(
        self,
        folder: Path,
        objects: Sequence[str],
        exported: Sequence[str],
        output: str,
        shared_bytes: int = 0,
    ) -> None:
        """Link a WebAssembly module with growable memory.

        Args:
            shared_bytes: if not 0, the module imports its memory, of at least this size, and
                threads share it.

        Raises:
            ToolchainError: if linking fails.
        """
        shown = [f"--export={name}" for name in exported]
        options = ["--no-entry", "--gc-sections", "--strip-all", "-z", f"stack-size={STACK_BYTES}"]
        if shared_bytes:
            options += ["--shared-memory", "--import-memory", "--max-memory=4294967296"]
            # kernels have no atomic instructions, and are equal with and without shared memory
            options += [f"--initial-memory={shared_bytes}", "--no-check-features"]
        _run([*self.linker, *options, *shown, *objects, "-o", output], folder)

    def link_executable(self, folder: Path, objects: Sequence[str], output: str) -> None:
        """Link object files into an executable, statically if the toolchain supports it.

        Raises:
            ToolchainError: if linking fails.
        """
        _run([*self.compiler, *self.static, "-s", *objects, "-o", output], folder)


def toolchain(target: Target, *, executable: bool = False) -> Toolchain:
    """Return the toolchain that compiles for a target on this machine.

    With `executable`, a toolchain that links statically is preferred, so that an executable needs
    no other files.

    Raises:
        ToolchainError: if this machine has no compiler for the target.
    """
    zig = (sys.executable, "-m", "ziglang")
    has_zig = importlib.util.find_spec("ziglang") is not None
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    archiver = shutil.which("ar")
    here = target.arch == platform.machine() and sys.platform == "linux"
    helpers = ("-lgcc",) if target.family.helpers else ()
    if compiler and archiver and here:
        # zig first compiles a C library, which takes half a minute
        static = ("-static",) if _has_static_library(compiler) else ()
        if static or not executable or not has_zig:
            return Toolchain((compiler,), (archiver,), static, helpers)
    if has_zig:
        library = "musl" if executable else "gnu"
        named = target.family.c_target or f"{target.arch}-linux-{{library}}"
        command = (*zig, "cc", "-target", named.format(library=library))
        return Toolchain(command, (*zig, "ar"), ("-static",), helpers)
    raise _absent(target)


def _has_static_library(compiler: str) -> bool:
    """Whether a C compiler can link static executables."""
    # the compiler prints the path of an existing file, else the bare name
    asked = [compiler, "-print-file-name=libc.a"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return Path(found).is_absolute()


def wasm_toolchain(target: Target, *, threads: bool = False) -> Toolchain:
    """Return zig's toolchain for WebAssembly modules, with or without threads.

    Raises:
        ToolchainError: if zig is not installed.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise _absent(target)
    zig = (sys.executable, "-m", "ziglang")
    features = "".join(f.replace("-", "_") for f in target.features)
    atomics = ("+atomics", ("-mthread-model", "posix")) if threads else ("", ())
    machine = f"-mcpu=generic{features}{atomics[0]}"
    command = (*zig, "cc", "-target", f"{target.arch}-wasi", machine, *atomics[1])
    return Toolchain(command, (*zig, "ar"), linker=(*zig, "wasm-ld"))


def _absent(target: Target) -> ToolchainError:
    return ToolchainError(
        f"there is no C compiler for '{target.name}' on this machine: install the package "
        "'ziglang' (pip install 'tilewright[linker]'), which compiles for every target"
    )


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{command[0]}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        reason = next((line for line in said if "error" in line), said[0] if said else "")
        raise ToolchainError(
            f"'{' '.join(command[:4])} ...' failed: {reason or f'exit status {done.returncode}'}"
        )
