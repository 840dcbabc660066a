"""`tilewright doctor`: each finding on installations that something is wrong with."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.codegen import link
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.targets import granted_cores
from tilewright.service import doctor
from tilewright.service.cli import run as run_cli
from tilewright.service.settings import Settings
from tilewright.service.worker.check import DeviceFinding, Grade


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_folder=tmp_path / "data")


@pytest.fixture
def look(settings: Settings, tmp_path: Path) -> Any:
    def found(name: str) -> DeviceFinding:
        findings = doctor.check_installation(settings, tmp_path)
        return next(each for each in findings if each.name == name)

    return found


def test_an_installation_that_works(settings: Settings, tmp_path: Path) -> None:
    findings = doctor.check_installation(settings, tmp_path)
    wrong = [each for each in findings if each.grade is not Grade.FINE and each.name != "disk"]
    assert not wrong
    assert not settings.data_folder.exists()  # a look changes nothing
    assert "none yet" in {each.name: each.found for each in findings}["database"]


def test_folders_that_cannot_be_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beyond = tmp_path / ("x" * 300)
    monkeypatch.setenv("TILEWRIGHT_KEPT_FOLDER", str(beyond))
    findings = doctor.check_installation(Settings(data_folder=beyond), tmp_path)
    found = {each.name: each for each in findings}
    grades = {name: found[name].grade for name in ("disk", "kept", "database")}
    assert grades == {"disk": Grade.UNKNOWN, "kept": Grade.POOR, "database": Grade.WRONG}
    assert all("File name too long" in found[name].found for name in grades)


def test_without_the_compiler(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    found = look("compiler")
    assert found.grade is Grade.POOR and "llvmlite" in found.found
    assert "tilewright[compiler]" in found.do


def test_a_compiler_that_is_wrong(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executable, "run", lambda self, inputs: [np.zeros((8, 8), np.float32)])
    assert look("compiler").grade is Grade.WRONG and "wrong" in look("compiler").found

    def refuses(self: Executable, inputs: object) -> None:
        raise CompilerError("no code")

    monkeypatch.setattr(Executable, "run", refuses)
    assert (look("compiler").grade, look("compiler").found) == (Grade.WRONG, "no code")


@pytest.mark.parametrize(
    ("commands", "grade", "said"),
    [
        ((), Grade.POOR, "none"),
        ((("/usr/bin/ld", "-shared"),), Grade.POOR, "'ld' links for this machine alone"),
        ((("/usr/bin/ld",), ("python", "-m", "ziglang", "ld.lld")), Grade.FINE, "every target"),
    ],
)
def test_linkers(
    look: Any, monkeypatch: pytest.MonkeyPatch, commands: Any, grade: Grade, said: str
) -> None:
    monkeypatch.setattr(link, "linkers", lambda: commands)
    found = look("linker")
    assert found.grade is grade and said in found.found
    assert bool(found.do) is (grade is not Grade.FINE)


def test_a_container_with_less_time_than_cores(
    look: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (doctor, granted_cores):
        monkeypatch.setattr(module, "available_cores", lambda: set(range(8)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("200000 100000")
    found = look("quota")
    assert found.grade is Grade.POOR and found.found.startswith("2 of 8")


@pytest.mark.parametrize(
    ("free", "grade"), [(1 << 20, Grade.WRONG), (1 << 30, Grade.POOR), (1 << 40, Grade.FINE)]
)
def test_disks(look: Any, monkeypatch: pytest.MonkeyPatch, free: int, grade: Grade) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert look("disk").grade is grade and f"{free >> 20} MiB" in look("disk").found


def test_kept_models(look: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kept"
    assert "no compiled models" in look("kept").found
    monkeypatch.setenv("TILEWRIGHT_KEPT_FOLDER", str(folder))
    assert look("kept").found.startswith("0 compiled models")
    folder.mkdir(mode=0o700)
    (folder / ("a" * 64)).mkdir()
    (folder / ("a" * 64) / "file").write_bytes(bytes(3 << 20))
    assert look("kept").found.startswith("1 compiled models, 3 of at most 4096 MiB")
    folder.chmod(0o777)
    assert look("kept").grade is Grade.POOR and look("kept").do == f"chmod 700 '{folder}'"
    monkeypatch.setenv("TILEWRIGHT_KEPT_BYTES", "much")
    assert look("kept").grade is Grade.WRONG and "much" in look("kept").found


def test_databases(look: Any, settings: Settings) -> None:
    settings.data_folder.mkdir()
    file = settings.data_folder / "tilewright.db"
    file.write_bytes(b"no database" * 100)
    assert look("database").grade is Grade.WRONG and "tilewright.db" in look("database").found
    file.unlink()
    from tilewright.service.storage import open_storage

    open_storage(settings).close()
    assert (look("database").grade, look("database").found[-6:]) == (Grade.FINE, "0 jobs")


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    status = run_cli(["doctor", "--json"])
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert {"python", "compiler", "linker", "database", "cores", "memory", "noise"} <= found.keys()
    grades = {each["grade"] for each in found.values()}
    assert status == (1 if "wrong" in grades else 3 if "poor" in grades else 0)
    assert found["compiler"]["grade"] == "fine"
