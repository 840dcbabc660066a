"""Build the wheels for every architecture on any machine: `python -m deploy.wheels`.

The Python parts are built once, by setuptools. The C runtime is compiled for each platform by zig,
which needs no system root, and added to them. ctypes loads it, and it does not depend on Python, so
one wheel serves every version. The wheel for any platform has none; a device compiles its own. Each
wheel has the harnesses of all kinds of devices, for `tilewright-worker --via`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tilewright.compiler.runtime.native_build import FLAGS, SOURCES
from tilewright.tuner.measure.harness.binary import STATIC, build, harness_path
from tilewright.tuner.measure.harness.build import TARGETS, zig_compiler
from tilewright.tuner.protocol.generate import write_messages

ROOT = Path(__file__).parents[1]
# copied, the links in tilewright/ are folders
PARTS = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "tilewright")
"""Files from which a distribution is built."""

LIBRARY = "tilewright/compiler/runtime/_native.abi3.so"
HARNESSES = "tilewright/tuner/measure/harness"
ANY = "any"
DATE = (1980, 1, 1, 0, 0, 0)
"""Of every file: equal sources make equal wheels."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A kind of machine.

    Attributes:
        tags: what pip calls it, the widest last.
        zig: what zig calls it, with the oldest C library that it may have.
    """

    tags: tuple[str, ...]
    zig: str


PLATFORMS = tuple(
    Platform(tuple(tags.split(".")), zig)
    for tags, zig in {
        "manylinux_2_17_x86_64.manylinux2014_x86_64": "x86_64-linux-gnu.2.17",
        "manylinux_2_17_aarch64.manylinux2014_aarch64": "aarch64-linux-gnu.2.17",
        "manylinux_2_17_armv7l.manylinux2014_armv7l": "arm-linux-gnueabihf.2.17",
        "manylinux_2_31_riscv64": "riscv64-linux-gnu.2.31",
        "musllinux_1_2_x86_64": "x86_64-linux-musl",
        "musllinux_1_2_aarch64": "aarch64-linux-musl",
        "musllinux_1_2_armv7l": "arm-linux-musleabihf",
        "musllinux_1_2_riscv64": "riscv64-linux-musl",
    }.items()
)


def compile_runtime(
    platform: Platform, output: Path, environment: Mapping[str, str] | None = None
) -> None:
    """Compile the C runtime. Raises CalledProcessError if zig refuses.

    Args:
        environment: in which zig is found; None: this process's.
    """
    command = [sys.executable, "-m", "ziglang", "cc", "-target", platform.zig, *FLAGS, "-s"]
    subprocess.run([*command, *map(str, SOURCES), "-o", str(output)], env=environment, check=True)


def copy_sources(source: Path, version: str | None = None) -> None:
    """Copy what a distribution is built from into a new folder, as of another version if stated."""
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "harness-*", "build", "*.egg-info")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=ignore)
        else:
            shutil.copy(ROOT / part, source / part)
    if version is not None:
        project = source / "pyproject.toml"
        line = re.compile(r'^version = ".*"$', re.MULTILINE)
        project.write_text(line.sub(f'version = "{version}"', project.read_text(), count=1))


def build_python(folder: Path, version: str | None = None) -> Path:
    """The wheel of this machine, made by setuptools from a copy of the sources."""
    source = folder / "source"
    copy_sources(source, version)
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [sys.executable, "-m", "pip", "wheel", *quiet, "-w", str(folder), str(source)]
    subprocess.run(command, check=True)
    (made,) = folder.glob("*.whl")
    return made


def build_sdist(source: Path, output: Path) -> Path:
    """The sdist of a folder of sources, made by the setuptools that it asks for."""
    with TemporaryDirectory() as tools:
        quiet = ["--quiet", "--disable-pip-version-check"]
        pip = [sys.executable, "-m", "pip", "install", *quiet, "--target", tools]
        needed = tomllib.loads((source / "pyproject.toml").read_text())["build-system"]["requires"]
        subprocess.run([*pip, *needed], check=True)
        code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
        run = [sys.executable, "-c", code, str(output)]
        subprocess.run(
            run,
            cwd=source,
            env={**os.environ, "PYTHONPATH": tools},
            stdout=subprocess.DEVNULL,
            check=True,
        )
    (made,) = output.glob("*.tar.gz")
    return made


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel by name, without its list of them and what was compiled."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.endswith(("/", "/RECORD")) and not is_binary(name)
        }


def is_binary(name: str) -> bool:
    """Whether a file of a wheel was compiled: the C runtime, or a harness."""
    return name.endswith(".so") or name.startswith(f"{HARNESSES}/harness-")


def tagged(files: Mapping[str, bytes], tags: Sequence[str], pure: bool) -> dict[str, bytes]:
    """The same files as a wheel for other platforms."""
    (name,) = (each for each in files if each.endswith(".dist-info/WHEEL"))
    lines = files[name].decode().splitlines()
    kept = [line for line in lines if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    kept += [f"Root-Is-Purelib: {str(pure).lower()}", *(f"Tag: py3-none-{tag}" for tag in tags)]
    return {**files, name: ("\n".join(kept) + "\n").encode()}


def write_wheel(files: Mapping[str, bytes], path: Path) -> None:
    """Write files as a wheel, with the list that installers check them by."""
    (information,) = {name.split("/")[0] for name in files if name.endswith(".dist-info/WHEEL")}
    record = f"{information}/RECORD"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**files, record: _record(files, record)}.items():
            entry = zipfile.ZipInfo(name, DATE)
            # pip keeps the right to execute for regular files only
            mode = 0o755 if is_binary(name) else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)


def _record(files: Mapping[str, bytes], own: str) -> bytes:
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own},,\n"]).encode()


def compile_harness(target: str) -> tuple[str, bytes]:
    """The harness that `tilewright-worker --via` copies to devices: its name in a wheel, and it.

    Raises:
        CalledProcessError: if zig refuses.
    """
    write_messages()  # the name of a harness has the digest of its sources, this header too
    with TemporaryDirectory() as temporary:
        path = harness_path(target, Path(temporary))
        build([*zig_compiler(target), *STATIC], path)
        return f"{HARNESSES}/{path.name}", path.read_bytes()


def make_wheels(
    output: Path,
    platforms: Iterable[Platform],
    version: str | None = None,
    harnesses: Iterable[str] = (),
) -> list[Path]:
    """Write a wheel for each of the platforms, and one for any; returns where they are, that for
    any platform first.

    Args:
        harnesses: targets of devices that each wheel can measure on with `--via`, without zig.

    Raises:
        CalledProcessError: if setuptools or zig refuses.
    """
    output.mkdir(parents=True, exist_ok=True)
    made = []
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        built = build_python(folder, version)
        name, stated = built.name.split("-")[:2]
        files = {**contents(built), **dict(map(compile_harness, harnesses))}
        for platform in (None, *platforms):
            whole = tagged(files, (ANY,) if platform is None else platform.tags, platform is None)
            if platform is not None:
                compile_runtime(platform, folder / "library")
                whole[LIBRARY] = (folder / "library").read_bytes()
            tag = ANY if platform is None else ".".join(platform.tags)
            made.append(output / f"{name}-{stated}-py3-none-{tag}.whl")
            write_wheel(whole, made[-1])
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Make all wheels, or those of some architectures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the wheels")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of platforms' names")
    given = parser.parse_args(arguments)
    chosen = [p for p in PLATFORMS if any(part in p.tags[0] for part in given.only)]
    for path in make_wheels(given.output, chosen, harnesses=TARGETS):
        print(f"{path.stat().st_size / 1024:6.0f} KiB  {path.name}")


if __name__ == "__main__":
    main()
