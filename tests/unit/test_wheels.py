"""Wheels of other platforms, derived from one: their names, tags and lists of files."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import platform
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import setuptools

from deploy import wheels
from deploy.wheels import (
    HARNESSES,
    LIBRARY,
    PLATFORMS,
    ROOT,
    Platform,
    contents,
    copy_sources,
    is_binary,
    make_wheels,
)
from tilewright.tuner.measure.harness import build as harness_build
from tilewright.tuner.measure.harness.binary import harness_path
from tilewright.tuner.measure.harness.build import HarnessError, harness

INFORMATION = "tilewright-1.0.dist-info"
MADE = {
    "compiler/__init__.py": b"",
    "compiler/runtime/_native.cpython-311-x86_64-linux-gnu.so": b"of this machine",
    f"{INFORMATION}/METADATA": b"Name: tilewright\n",
    f"{INFORMATION}/WHEEL": b"Wheel-Version: 1.0\nGenerator: s\nRoot-Is-Purelib: false\n"
    b"Tag: cp311-cp311-linux_x86_64\n\n",
    f"{INFORMATION}/RECORD": b"old",
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Wheels by the ends of their names; setuptools and zig are stand-ins."""

    def build(folder: Path, version: str | None = None) -> Path:
        path = folder / "tilewright-1.0-cp311-cp311-linux_x86_64.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in MADE.items():
                archive.writestr(name, data)
        return path

    def compile_(platform: Platform, output: Path) -> None:
        output.write_bytes(platform.zig.encode())

    monkeypatch.setattr(wheels, "build_python", build)
    monkeypatch.setattr(wheels, "compile_runtime", compile_)
    paths = make_wheels(tmp_path / "dist", PLATFORMS)
    return {path.name.split("-py3-none-")[1]: path for path in paths}


def test_each_platform_has_its_wheel(made: dict[str, Path]) -> None:
    assert "any.whl" in made and len(made) == 1 + len(PLATFORMS)
    assert "manylinux_2_17_x86_64.manylinux2014_x86_64.whl" in made
    for kind in ("many", "musl"):
        for machine in ("x86_64", "aarch64", "armv7l", "riscv64"):
            (name,) = (n for n in made if n.startswith(kind) and n.endswith(f"{machine}.whl"))
            with zipfile.ZipFile(made[name]) as archive:
                zig = archive.read(LIBRARY).decode()
            assert ("gnu" if kind == "many" else "musl") in zig
            assert zig.startswith({"armv7l": "arm-"}.get(machine, machine))


def test_a_wheel_says_what_is_in_it(made: dict[str, Path]) -> None:
    for name, path in made.items():
        tags = name.removesuffix(".whl").split(".")
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            modes = {each.filename: each.external_attr >> 16 for each in archive.infolist()}
            files = {entry: archive.read(entry) for entry in archive.namelist()}
        said = files[f"{INFORMATION}/WHEEL"].decode().splitlines()
        assert [line for line in said if line.startswith("Tag")] == [
            f"Tag: py3-none-{tag}" for tag in tags
        ]
        assert (f"Root-Is-Purelib: {'true' if tags == ['any'] else 'false'}") in said
        libraries = [entry for entry in files if entry.endswith(".so")]
        assert libraries == ([] if tags == ["any"] else [LIBRARY])
        executable = {entry for entry, mode in modes.items() if mode & 0o111}
        assert executable == {entry for entry in modes if is_binary(entry)}
        assert all(map(stat.S_ISREG, modes.values())), "pip executes regular files only"
        listed = {
            row[0]: row[1:]
            for row in csv.reader(files[f"{INFORMATION}/RECORD"].decode().splitlines())
        }
        assert listed.pop(f"{INFORMATION}/RECORD") == ["", ""]
        del files[f"{INFORMATION}/RECORD"]
        assert listed == {
            entry: [
                "sha256="
                + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("="),
                str(len(data)),
            ]
            for entry, data in files.items()
        }


def test_equal_sources_make_equal_wheels(made: dict[str, Path], tmp_path: Path) -> None:
    again = {
        path.name.split("-py3-none-")[1]: path for path in make_wheels(tmp_path / "2", PLATFORMS)
    }
    assert {n: p.read_bytes() for n, p in again.items()} == {
        n: p.read_bytes() for n, p in made.items()
    }


def test_wheels_have_every_file_of_a_package_and_what_is_stated_is_there() -> None:
    """A file that no pattern of pyproject.toml names is missing where pip installs a wheel."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns: dict[str, list[str]] = stated["package-data"]
    folders = sorted(path for path in (ROOT / "tilewright").iterdir() if path.is_dir())
    packages = [path.parent for top in folders for path in Path(f"{top}/").rglob("__init__.py")]
    named: set[Path] = set()
    for package in packages:
        name = ".".join(package.relative_to(ROOT).parts)
        for pattern in patterns.get(name, ()):
            found = set(package.glob(pattern))
            assert found, f"{name} has no {pattern}"
            named |= found
    assert (ROOT / "tilewright" / "py.typed").exists(), "the package is said to be typed"
    for folder in folders:
        for path in folder.rglob("*"):
            compiled = path.suffix in (".pyc", ".so") or path.name.startswith("harness-")
            if path.is_file() and not compiled:
                module = path.suffix == ".py" and path.parent in packages
                assert module or path in named, f"no wheel has {path.relative_to(ROOT)}"


def test_a_harness_of_a_wheel_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name identifies its sources: one built from other sources is not used."""
    package = tmp_path / "package"
    package.mkdir()
    harness_path("riscv64", package).write_bytes(b"a binary")
    (package / "harness-armv7-0123456789abcdef").write_bytes(b"of other sources")
    monkeypatch.setattr(harness_build, "PACKAGED", package)
    monkeypatch.setattr(harness_build, "zig_compiler", lambda target: ["no-such-compiler"])
    found = harness("riscv64", tmp_path / "spool")
    assert found.read_bytes() == b"a binary" and found.stat().st_mode & 0o100
    harness_path("riscv64", package).chmod(0o755)
    assert harness("riscv64", tmp_path / "unused").parent == package, "it can be run where it is"
    with pytest.raises(HarnessError, match="the harness for armv7 cannot be compiled"):
        harness("armv7", tmp_path / "spool")


COMPILER = """#!/bin/sh
case "$*" in *REFUSED*) echo "error: REFUSED" >&2; exit 1;; esac
while [ $# -gt 0 ]; do [ "$1" = -o ] && output=$2; shift; done
echo compiled > "$output" && chmod 755 "$output"
"""
"""Refuses a command with the word REFUSED, and makes a file of any other."""


@pytest.mark.skipif(sys.platform != "linux", reason="the harness is for Linux")
@pytest.mark.skipif(
    int(setuptools.__version__.split(".")[0]) < 77, reason="setuptools 77 reads pyproject.toml"
)
@pytest.mark.parametrize("refused", ["-nothing-", " -static "])
def test_a_wheel_of_the_sdist_has_the_harness_of_its_machine(refused: str, tmp_path: Path) -> None:
    """A dynamic harness is not packaged, as `--via` copies it to other devices. A compiler that
    cannot build a static one does not stop the installation."""
    source = tmp_path / "source"
    copy_sources(source)
    (tmp_path / "gcc").write_text(COMPILER.replace("*REFUSED*", f'*"{refused}"*'))
    (tmp_path / "gcc").chmod(0o755)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(setuptools.__file__).parents[1]),
        "CC": str(tmp_path / "gcc"),
        "LDSHARED": f"{tmp_path}/gcc -shared",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }

    def run(command: str, folder: Path) -> Path:
        """Run a command of setup.py, and return the path of its result."""
        arguments = [sys.executable, "setup.py", "-q", command, "-d", str(tmp_path / command)]
        subprocess.run(arguments, cwd=folder, env=environment, check=True, capture_output=True)
        (made,) = (tmp_path / command).iterdir()
        return made

    with tarfile.open(run("sdist", source)) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    built = run("bdist_wheel", unpacked)
    with zipfile.ZipFile(built) as archive:
        binaries = [each for each in archive.infolist() if "/harness-" in each.filename]
    found = {each.filename: each.external_attr >> 16 & 0o111 for each in binaries}
    name = harness_path(platform.machine().lower(), Path(HARNESSES))
    assert found == ({} if "static" in refused else {str(name): 0o111})
    assert not found.keys() & contents(built).keys()
