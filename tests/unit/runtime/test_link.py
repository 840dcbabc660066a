"""Linking with each linker that this machine has."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.compiler.codegen import link
from tilewright.compiler.codegen.link import LinkerError, link_shared, linkers
from tilewright.compiler.errors import CompilerError


def compile_c(source: str, folder: Path) -> bytes:
    folder.mkdir(exist_ok=True)
    (folder / "f.c").write_text(source)
    subprocess.run(["cc", "-c", "-O1", "-fPIC", "-o", folder / "f.o", folder / "f.c"], check=True)
    return (folder / "f.o").read_bytes()


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("objects")
    return [
        compile_c("int one(void) { return 1; }", folder / "1"),
        compile_c(
            "#include <string.h>\nint one(void);\n"
            "int two(const int *p, unsigned long n) "
            "{ int a[64]; memcpy(a, p, n * sizeof *a); return a[n - 1] + one(); }",
            folder / "2",
        ),
    ]


def check(path: Path) -> None:
    library = ctypes.CDLL(str(path))
    assert library.two((ctypes.c_int * 3)(5, 6, 7), ctypes.c_ulong(3)) == 8


def test_objects_link_into_a_library(objects: list[bytes], tmp_path: Path) -> None:
    link_shared(objects, tmp_path / "k.so")
    check(tmp_path / "k.so")
    first = (tmp_path / "k.so").read_bytes()
    link_shared(objects, tmp_path / "again.so")
    assert (tmp_path / "again.so").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.so", "k.so"]


@pytest.mark.parametrize("command", linkers(), ids=lambda command: Path(command[0]).name)
def test_each_linker(
    objects: list[bytes],
    tmp_path: Path,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "linkers", lambda: (command,))
    link_shared(objects, tmp_path / "k.so")
    check(tmp_path / "k.so")
    has_symbols = b".symtab" in (tmp_path / "k.so").read_bytes()
    assert has_symbols is ("-nostdlib" in command)  # only the C compiler keeps them


def test_linkers_are_tried_in_the_documented_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    for has_package, packaged in ((object(), [(sys.executable, "-m")]), (None, [])):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, has=has_package: has)
        commands = [command[:2] for command in linkers.__wrapped__()]
        assert commands == [
            ("/bin/ld.lld", "-shared"),
            ("/bin/ld", "-shared"),
            *packaged,
            ("/bin/zig", "ld.lld"),
            ("/bin/cc", "-shared"),
        ]


def test_refusals_are_told(tmp_path: Path, objects: list[bytes]) -> None:
    (tmp_path / "k.so").write_text("old")
    with pytest.raises(LinkerError, match=r"cannot link 'k.so': "):
        link_shared([b"this is no object"], tmp_path / "k.so")
    with pytest.raises(LinkerError, match=r"cannot link 'k.so': /"):
        link_shared([objects[0], objects[0]], tmp_path / "k.so")
    assert (tmp_path / "k.so").read_text() == "old"
    with pytest.raises(LinkerError, match="no objects"):
        link_shared([], tmp_path / "k.so")


def test_a_target_that_no_linker_here_knows(tmp_path: Path, objects: list[bytes]) -> None:
    foreign = bytearray(objects[0])
    foreign[18:20] = (4242).to_bytes(2, "little")
    with pytest.raises(LinkerError, match=r"do not know ELF machine 4242: install lld"):
        link_shared([bytes(foreign)], tmp_path / "k.so")


def test_no_linker(objects: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "linkers", lambda: ())
    with pytest.raises(CompilerError, match="there is no linker"):
        link_shared(objects, tmp_path / "k.so")


def test_a_second_linker_is_tried(
    objects: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = (("/nowhere/ld",), ("false",), *linkers())
    monkeypatch.setattr(link, "linkers", lambda: commands)
    link_shared(objects, tmp_path / "k.so")
    check(tmp_path / "k.so")
