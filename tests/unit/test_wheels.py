"""Wheels of other platforms, derived from one: their names, tags and lists of files."""

from __future__ import annotations

import base64
import csv
import hashlib
import tomllib
import zipfile
from pathlib import Path

import pytest

from deploy import wheels
from deploy.wheels import LIBRARY, PLATFORMS, ROOT, Platform, make_wheels
from tilewright.tuner.measure.harness import build as harness_build
from tilewright.tuner.measure.harness.build import HarnessError, harness, harness_path

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
            files = {entry: archive.read(entry) for entry in archive.namelist()}
        said = files[f"{INFORMATION}/WHEEL"].decode().splitlines()
        assert [line for line in said if line.startswith("Tag")] == [
            f"Tag: py3-none-{tag}" for tag in tags
        ]
        assert (f"Root-Is-Purelib: {'true' if tags == ['any'] else 'false'}") in said
        libraries = [entry for entry in files if entry.endswith(".so")]
        assert libraries == ([] if tags == ["any"] else [LIBRARY])
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
            if path.is_file() and path.suffix not in (".pyc", ".so"):
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
    original = harness_build.harness_path
    monkeypatch.setattr(
        harness_build,
        "harness_path",
        lambda target, folder: original(
            target, package if folder == harness_build.FOLDER else folder
        ),
    )
    monkeypatch.setattr(harness_build, "zig_compiler", lambda target: ["no-such-compiler"])
    found = harness("riscv64", tmp_path / "spool")
    assert found.read_bytes() == b"a binary" and found.stat().st_mode & 0o100
    harness_path("riscv64", package).chmod(0o755)
    assert harness("riscv64", tmp_path / "unused").parent == package, "it can be run where it is"
    with pytest.raises(HarnessError, match="the harness for armv7 cannot be compiled"):
        harness("armv7", tmp_path / "spool")
