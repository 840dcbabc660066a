"""Wheels as pip installs them, in an otherwise empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.wheels import PLATFORMS, make_wheels
from tests.devices.emulators import zig_environment
from tests.devices.packages import UnavailableError, fetch

pytestmark = [pytest.mark.devices, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheel for any platform, and the wheel of this one."""
    here = os.uname().machine
    chosen = [p for p in PLATFORMS if p.tags[0].endswith(here) and "gnu" in p.zig]
    try:
        environment = zig_environment()
        with pytest.MonkeyPatch.context() as patch:
            for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR", "PYTHONPATH"):
                patch.setenv(name, environment[name])
            return make_wheels(tmp_path_factory.mktemp("dist"), chosen)
    except (UnavailableError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no wheels: {error}")


@pytest.mark.parametrize("index", [0, 1], ids=["any", "platform"])
def test_an_installed_worker_looks_at_its_machine(
    wheels: list[Path], tmp_path: Path, index: int
) -> None:
    """The wheel for any platform compiles its C runtime when it is first used."""
    programs = tmp_path / "clean/bin"
    # this environment's pip fills the other: one of its own takes seconds to unpack
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "-q"]
    pip += ["--no-compile", "--disable-pip-version-check"]
    venv = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "clean")]
    try:
        fetch(venv, "an environment")
        fetch([*pip, str(wheels[index])], "NumPy")
    except UnavailableError as error:
        pytest.skip(str(error))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [programs / "tilewright-worker", "--check", "--json", "--sandbox-users", "none"]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    findings = {each["name"]: each for each in json.loads(done.stdout)}
    assert done.returncode in (0, 3), findings
    assert "(arithmetic)" in findings["noise"]["found"]
    libraries = [*(tmp_path / "clean").rglob("_native*.so")]
    assert len(libraries) == 1
    assert libraries[0].name.startswith("_native.abi3") is bool(index)
