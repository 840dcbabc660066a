"""The C runtime of a package that came without it, and the error if it cannot be built."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tilewright.compiler.runtime import native as module
from tilewright.compiler.runtime import native_build
from tilewright.compiler.runtime.native import LIBRARY_ABI, find_library
from tilewright.compiler.runtime.native_build import build_native


def test_the_library_is_compiled_once_where_it_belongs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = find_library(tmp_path)
    assert ctypes.CDLL(str(made)).tw_abi_version() == LIBRARY_ABI
    assert [path.name for path in tmp_path.iterdir()] == [made.name], "and nothing else"
    monkeypatch.setattr("tilewright.compiler.runtime.native.build_native", lambda path: 1 / 0)
    assert find_library(tmp_path) == made


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SOURCES", [], "holds no sources of it"),
        ("SOURCES", [Path("/absent/x.c")], "does not compile: .*error"),
        ("_compiler", lambda: ("/absent/cc",), "does not compile: .*No such file"),
        ("_compiler", lambda: ("false",), "does not compile"),
        ("os.access", lambda path, mode: False, "cannot be written: install the package"),
    ],
)
def test_what_stands_in_the_way_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, said: str
) -> None:
    monkeypatch.setattr(f"tilewright.compiler.runtime.native_build.{name}", value)
    with pytest.raises(ImportError, match=said):
        build_native(tmp_path / "_native.so")
    assert not [*tmp_path.iterdir()]


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout may keep one that was built before its sources changed."""
    monkeypatch.setattr(module, "LIBRARY_ABI", LIBRARY_ABI + 1)
    with pytest.raises(ImportError, match=f"has ABI {LIBRARY_ABI}, .*: build it again"):
        module.native.__wrapped__()


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """zig's is used if no other is installed."""
    monkeypatch.setattr(native_build.shutil, "which", lambda name: None)
    monkeypatch.setattr(native_build.importlib.util, "find_spec", lambda name: name)
    assert native_build._compiler()[1:] == ("-m", "ziglang", "cc")
    monkeypatch.setattr(native_build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"apt install gcc, or pip install ziglang"):
        build_native(tmp_path / "_native.so")
