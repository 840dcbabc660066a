"""The worker as one static binary: `python -m deploy.static_worker --target aarch64 -o FILE`.

For devices without Python. It is C11: the sources in service/worker/static and the C runtime,
compiled by zig (`pip install ziglang`), which needs no system root, or for this machine by its own
compiler.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.compiler.runtime.native_build import SOURCES

FOLDER = Path(__file__).parents[1] / "service" / "worker" / "static"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-pthread")

TARGETS: Mapping[str, str] = {
    "aarch64": "aarch64-linux-{}",
    "armv7": "arm-linux-{}eabihf",
    "riscv64": "riscv64-linux-{}",
    "x86-64": "x86_64-linux-{}",
}
"""What zig calls them, for one of its C libraries."""


def zig_compiler(target: str, library: str = "musl") -> list[str]:
    """The command that compiles for one of TARGETS, wherever this is.

    musl goes into a static binary, which runs on every Linux, Android's too; `gnu` is the library
    of usual systems.
    """
    features = ["-mcpu=generic+v7a+vfp3"] if target == "armv7" else []
    name = TARGETS[target].format(library)
    return [sys.executable, "-m", "ziglang", "cc", "-target", name, *features]


def host_compiler() -> list[str]:
    """The command of this machine's compiler, whose binaries need its libraries.

    Raises:
        FileNotFoundError: if there is none.
    """
    found = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)
    if found is None:
        raise FileNotFoundError("there is no C compiler: pip install ziglang")
    return [found]


def build(
    compiler: Sequence[str], output: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Compile the worker.

    Args:
        compiler: its command, with options.
        environment: in which it runs; None: this process's.

    Raises:
        CalledProcessError: if it refuses.
    """
    sources = [*sorted(FOLDER.glob("*.c")), *SOURCES]
    command = [*compiler, *FLAGS, *map(str, sources), "-lm", "-o", str(output)]
    subprocess.run(command, env=environment, check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile for one target; the exit status is 1 where no compiler can."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", choices=TARGETS, required=True)
    parser.add_argument("-o", "--output", type=Path, default=Path("tilewright-worker"))
    given = parser.parse_args(arguments)
    if importlib.util.find_spec("ziglang") is not None:
        compiler = zig_compiler(given.target)
    elif given.target.replace("-", "_") == platform.machine() and sys.platform == "linux":
        compiler = host_compiler()
    else:
        print(f"for {given.target} zig is needed: pip install ziglang", file=sys.stderr)
        return 1
    try:
        build([*compiler, "-O2", "-static", "-s"], given.output)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{given.output.stat().st_size / 1024:.0f} KiB  {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
