"""The refusals of a release: other versions, files with the wrong contents, and failing checks."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy import release as releasing
from deploy import wheels
from deploy.release import (
    Clean,
    ReleaseError,
    check_wheel,
    notes_of,
    release,
    version_here,
    version_of,
)
from deploy.wheels import HARNESSES, LIBRARY, copy_sources, tagged, write_wheel
from tilewright.tuner.measure.harness.binary import harness_path
from tilewright.tuner.measure.harness.build import TARGETS

INFORMATION = "tilewright-1.0.dist-info"
TAGS = ("manylinux_2_17_x86_64", "manylinux2014_x86_64")
NAME = f"tilewright-1.0-py3-none-{'.'.join(TAGS)}.whl"


def elf(machine: int = 62, needed: bytes = b"GLIBC_2.2.5\0GLIBC_2.17") -> bytes:
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little") + needed


HARNESS = {target: str(harness_path(target, Path(HARNESSES))) for target in TARGETS}
FILES = {
    "compiler/__init__.py": b"",
    f"{INFORMATION}/METADATA": b"Metadata-Version: 2.4\nName: tilewright\nVersion: 1.0\n",
    f"{INFORMATION}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: old\n",
    LIBRARY: elf(),
    **{
        HARNESS[target]: elf({"aarch64": 183, "armv7": 40, "riscv64": 243, "x86_64": 62}[target])
        for target in TARGETS
    },
}


def wheel(folder: Path, files: Mapping[str, bytes] = FILES, name: str = NAME) -> Path:
    write_wheel(tagged(files, TAGS, False), folder / name)
    return folder / name


def test_a_wheel_that_is_whole(tmp_path: Path) -> None:
    check_wheel(wheel(tmp_path), "1.0")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({LIBRARY: elf(183)}, "not of its processor"),
        ({LIBRARY: b"MZ" + elf()[2:]}, "not of its processor"),
        ({LIBRARY: elf(needed=b"GLIBC_2.9\0GLIBC_2.28")}, "needs glibc 2.28"),
        ({"compiler/other.so": b""}, "has the libraries"),
        ({f"{HARNESSES}/harness-armv7-0123456789abcdef": elf(40)}, "has not the harnesses for"),
        ({HARNESS["riscv64"]: elf(62)}, "the harness for riscv64 .* is not of its processor"),
        ({f"{INFORMATION}/METADATA": b"Name: tilewright\nVersion: 1.1\n"}, "another version"),
    ],
)
def test_a_wheel_that_is_not_what_it_says(
    changed: Mapping[str, bytes], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ReleaseError, match=said):
        check_wheel(wheel(tmp_path, {**FILES, **changed}), "1.0")


def test_a_wheel_under_another_name(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"not of version 1\.1"):
        check_wheel(wheel(tmp_path), "1.1")
    other = NAME.replace("x86_64", "aarch64")
    with pytest.raises(ReleaseError, match="has the tags"):
        check_wheel(wheel(tmp_path, name=other), "1.0")


@pytest.mark.parametrize("what", ["changed", "added"])
def test_a_wheel_whose_list_is_not_of_its_files(what: str, tmp_path: Path) -> None:
    whole = wheel(tmp_path)
    with zipfile.ZipFile(whole) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    entry = "compiler/__init__.py" if what == "changed" else "compiler/added.py"
    files[entry] = b"x = 1"
    with zipfile.ZipFile(whole, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    with pytest.raises(ReleaseError, match="its list says" if what == "changed" else "other files"):
        check_wheel(whole, "1.0")


def test_the_version_is_the_tags() -> None:
    assert version_of("1.2", ["v1.2", "nightly"], 7, "abc") == "1.2"
    assert version_of("1.2", ["nightly"], 7, "abc") == "1.2.dev7+gabc"
    assert version_of("1.2", [], 7, "abc") == "1.2.dev7+gabc"
    with pytest.raises(ReleaseError, match=r"tag v1\.3, pyproject\.toml says 1\.2"):
        version_of("1.2", ["v1.3"], 7, "abc")
    with pytest.raises(ReleaseError, match=r"v1\.2, v1\.3"):
        version_of("1.2", ["v1.2", "v1.3"], 7, "abc")


def repository(folder: Path, changelog: str) -> None:
    (folder / "pyproject.toml").write_text('[project]\nversion = "1.2"\n')
    (folder / "CHANGELOG.md").write_text(changelog)
    who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def test_a_tag_needs_a_heading_and_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releasing, "ROOT", tmp_path)
    repository(tmp_path, "# Changelog\n\n## Unreleased\n\n### Models\n\n- More.\n")
    version = version_here()
    assert version.startswith("1.2.dev1+g")
    assert notes_of(version) == "### Models\n\n- More.\n"
    subprocess.run(["git", "tag", "v1.2"], cwd=tmp_path, check=True)
    with pytest.raises(ReleaseError, match=r"no heading '## 1\.2'"):
        version_here()
    (tmp_path / "CHANGELOG.md").write_text("## 1.2 - 2027-01-01\n")
    with pytest.raises(ReleaseError, match="has changes"):
        version_here()


def test_the_notes_of_a_release_are_its_dated_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(releasing, "ROOT", tmp_path)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(
        "# Changelog\n\n## Unreleased\n\n- New.\n\n## 1.2 - 2027-01-01\n\n### Models\n\n- More.\n\n"
        "## [1.1] - unreleased\n\n- Old.\n"
    )
    assert notes_of("1.2") == "### Models\n\n- More.\n"
    assert notes_of("1.2.dev7+gabc") == "- New.\n"
    with pytest.raises(ReleaseError, match=r"'## \[1\.1\] - unreleased' .* has no date"):
        notes_of("1.1")


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tilewright-0.9.tar.gz").touch()
    with pytest.raises(ReleaseError, match=r"not empty: tilewright-0\.9"):
        release(tmp_path, "1.0", [], everything=False)


def test_sources_are_of_the_stated_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "PARTS", ("pyproject.toml", "README.md"))
    copy_sources(tmp_path / "source", "9.8.dev1+gabc")
    text = (tmp_path / "source" / "pyproject.toml").read_text()
    assert 'version = "9.8.dev1+gabc"' in text and 'python_version = "3.11"' in text


def test_what_fails_in_a_new_environment_is_told(tmp_path: Path) -> None:
    clean = object.__new__(Clean)
    clean._bin, clean._here = Path(sys.executable).parent, tmp_path
    with pytest.raises(ReleaseError, match=r"(?s)ended with 1.*no such thing"):
        clean.run("python", "-c", "raise SystemExit('no such thing')")
