"""Build the wheels for every architecture on any machine: `python -m deploy.wheels`.

setuptools builds the Python files once. zig cross-compiles the C runtime for each platform, without
a system root, and the library is added to the Python files. The library is loaded by ctypes and
does not depend on Python's ABI, so that one wheel suffices for all Python versions. The
platform-independent wheel has no library; a device compiles it on first use. Each wheel has the
measurement harness for all architectures, because `tilewright-worker --via` copies it to devices.
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
# the links in tilewright/ become folders in the copy
PARTS = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "tilewright")
"""Files from which a distribution is built."""

LIBRARY = "tilewright/compiler/runtime/_native.abi3.so"
HARNESSES = "tilewright/tuner/measure/harness"
ANY = "any"
DATE = (1980, 1, 1, 0, 0, 0)
"""The modification date of every file in a wheel, so that equal sources produce equal wheels."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform for which a wheel is built: architecture, operating system and C library.

    Attributes:
        tags: the platform tags in the wheel's name, the most compatible last.
        zig: zig's name of the platform, with the oldest supported version of the C library.
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
    """Compile the C runtime for a platform.

    Args:
        platform: the platform.
        output: the path of the library.
        environment: environment variables with which Python finds zig; None for those of this
            process.

    Raises:
        CalledProcessError: if the compilation fails.
    """
    command = [sys.executable, "-m", "ziglang", "cc", "-target", platform.zig, *FLAGS, "-s"]
    subprocess.run([*command, *map(str, SOURCES), "-o", str(output)], env=environment, check=True)


def copy_sources(source: Path, version: str | None = None) -> None:
    """Copy the files from which a distribution is built to the new folder `source`.

    If `version` is given, it replaces the version in the copied pyproject.toml.
    """
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
    """Build the wheel of this machine with setuptools, and return its path.

    The wheel is built from a copy of the sources in `folder`.
    """
    source = folder / "source"
    copy_sources(source, version)
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [sys.executable, "-m", "pip", "wheel", *quiet, "-w", str(folder), str(source)]
    subprocess.run(command, check=True)
    (made,) = folder.glob("*.whl")
    return made


def build_sdist(source: Path, output: Path) -> Path:
    """Build an sdist from the folder `source`, and return the sdist's path.

    The versions of setuptools and other tools are those that pyproject.toml requires.
    """
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
    """Return the files of a wheel by name, except binaries and the file list RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.endswith(("/", "/RECORD")) and not is_binary(name)
        }


def is_binary(name: str) -> bool:
    """Whether a file in a wheel is a compiled file: the C runtime or a measurement harness."""
    return name.endswith(".so") or name.startswith(f"{HARNESSES}/harness-")


def tagged(files: Mapping[str, bytes], tags: Sequence[str], pure: bool) -> dict[str, bytes]:
    """Return the files of a wheel with other platform tags in their metadata.

    If `pure` is true, the metadata state that the wheel has no compiled library.
    """
    (name,) = (each for each in files if each.endswith(".dist-info/WHEEL"))
    lines = files[name].decode().splitlines()
    kept = [line for line in lines if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    kept += [f"Root-Is-Purelib: {str(pure).lower()}", *(f"Tag: py3-none-{tag}" for tag in tags)]
    return {**files, name: ("\n".join(kept) + "\n").encode()}


def write_wheel(files: Mapping[str, bytes], path: Path) -> None:
    """Write files as a wheel, with the list of checksums that installers verify (RECORD)."""
    (information,) = {name.split("/")[0] for name in files if name.endswith(".dist-info/WHEEL")}
    record = f"{information}/RECORD"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**files, record: _record(files, record)}.items():
            entry = zipfile.ZipInfo(name, DATE)
            # pip keeps the permission to execute only for regular files
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
    """Compile the measurement harness that `tilewright-worker --via` copies to devices.

    Args:
        target: the architecture.

    Returns:
        The harness's path in a wheel, and its content.

    Raises:
        CalledProcessError: if the compilation fails.
    """
    write_messages()  # a harness's name has a digest of its sources and of this header
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
    """Build the platform-independent wheel and a wheel for each platform, and return their paths.

    The platform-independent wheel is first.

    Args:
        output: the folder of the wheels.
        platforms: the platforms.
        version: the version of the wheels; None for that of pyproject.toml.
        harnesses: architectures for which each wheel contains a measurement harness, so that
            `--via` works without zig.

    Raises:
        CalledProcessError: if setuptools or zig fails.
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
    """Build the wheels for all platforms, or for those selected by `--only`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the wheels")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of platforms' names")
    given = parser.parse_args(arguments)
    chosen = [p for p in PLATFORMS if any(part in p.tags[0] for part in given.only)]
    for path in make_wheels(given.output, chosen, harnesses=TARGETS):
        print(f"{path.stat().st_size / 1024:6.0f} KiB  {path.name}")


if __name__ == "__main__":
    main()
