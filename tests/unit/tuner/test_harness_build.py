"""The harness where no wheel brings it: built at its first use, or refused with a remedy."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

import pytest

from tilewright.compiler.targets.families import family_of
from tilewright.tuner.measure.harness import build as harness_build
from tilewright.tuner.measure.harness.binary import harness_path
from tilewright.tuner.measure.harness.build import TARGETS, HarnessError, harness, local_harness
from tilewright.tuner.measure.local_runner import LocalRunner

FAMILY = family_of(platform.machine())
pytestmark = pytest.mark.skipif(
    FAMILY is None or FAMILY.name not in TARGETS, reason="no harness runs here"
)


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package without a harness."""
    monkeypatch.setattr(harness_build, "PACKAGED", tmp_path / "package")
    (tmp_path / "package").mkdir()
    return tmp_path / "package"


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of caches; this machine has no compiler."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(harness_build, "_has_zig", lambda: False)
    return tmp_path / "caches"


def add_compiler(folder: Path, text: str) -> None:
    """A compiler that runs a script of the shell, as the only one on the path."""
    (folder / "gcc").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "gcc").chmod(0o755)


def test_the_first_use_builds_and_the_second_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    first = local_harness(tmp_path / "kept")
    assert os.access(first, os.X_OK) and list(first.parent.iterdir()) == [first]
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(harness_build, "_has_zig", lambda: False)
    assert local_harness(tmp_path / "kept") == first


@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_a_harness_that_was_built_with_the_package_is_found_by_the_systems_name(
    mode: int, package: Path, caches: Path, tmp_path: Path
) -> None:
    """Without the right to execute it, it is copied."""
    other = next(family for family in map(family_of, TARGETS) if family and family.machines)
    packaged = harness_path(other.machines[-1], package)
    packaged.write_bytes(b"a binary")
    packaged.chmod(mode)
    found = harness(other.name, caches)
    assert found == (packaged if mode & 0o111 else harness_path(other.name, caches))
    assert os.access(found, os.X_OK) and found.read_bytes() == b"a binary"


def test_a_machine_without_a_compiler_names_the_remedies(caches: Path) -> None:
    with pytest.raises(HarnessError) as raised:
        LocalRunner("w1", {})
    assert FAMILY is not None
    assert str(raised.value) == (
        f"kernels are measured by a C program, and no compiler for {FAMILY.name} is found: "
        "install gcc or clang, or pip install ziglang"
    )
    assert not [*(caches / "tilewright/harness").iterdir()]


def test_only_zig_builds_for_a_device_of_another_architecture(caches: Path) -> None:
    other = next(target for target in TARGETS if family_of(target) is not FAMILY)
    with pytest.raises(HarnessError, match=f"no compiler for {other} is found: pip install"):
        harness(other, caches)


def test_a_compiler_that_fails_is_quoted_with_the_remedy(caches: Path, tmp_path: Path) -> None:
    add_compiler(
        tmp_path,
        "echo 'a.c:1:10: fatal error: stdio.h: No such file or directory' >&2\n"
        "echo 'compilation terminated.' >&2\nexit 1",
    )
    assert FAMILY is not None
    with pytest.raises(HarnessError) as raised:
        local_harness(caches)
    assert str(raised.value) == (
        f"the harness for {FAMILY.name} cannot be compiled: "
        "a.c:1:10: fatal error: stdio.h: No such file or directory; "
        "pip install ziglang brings a compiler with all that it needs"
    )
    assert not harness_path(FAMILY.name, caches).exists() and not [*caches.iterdir()]
