"""A job for an emulated machine whose harness is driven from here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.devices.conftest import ALL_MACHINES, Service
from tests.devices.emulators import Emulated
from tests.devices.harnesses import put_harness
from tests.devices.machines import CORTEX_A15, CORTEX_A72, RISCV64
from tests.devices.packages import UnavailableError
from tests.devices.test_jobs import TOLERANCE, save_model
from tilewright.tuner.measure.harness.binary import harness_path
from tilewright.tuner.measure.harness.command import target_of

TRIALS = 4
SECONDS = 600.0
"""Limit for a job on a machine with other load; alone it takes a tenth."""

pytestmark = [pytest.mark.devices, pytest.mark.timeout(900)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The most common machine, or all of them if the command line asks for that."""
    rare = [CORTEX_A15, RISCV64] if metafunc.config.getoption(ALL_MACHINES, False) else []
    metafunc.parametrize("machine", [CORTEX_A72, *rare], ids=lambda machine: machine.name)


@pytest.fixture
def binary(emulated: Emulated, tmp_path: Path) -> Path:
    """The harness, where `put_harness` puts it."""
    try:
        target = put_harness(emulated.machine.architecture, tmp_path / "harness")
    except UnavailableError as error:
        pytest.skip(str(error))
    return harness_path(target, tmp_path / "harness")


def test_a_job_is_done_there(
    service: Service, emulated: Emulated, binary: Path, tmp_path: Path
) -> None:
    machine = emulated.machine
    looked = subprocess.run(
        [*emulated.python[:-1], str(binary), "--check", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = {each["name"]: each for each in json.loads(looked.stdout)}
    assert machine.model in found["features"]["found"]
    assert found["governor"]["found"] == "performance" and "(memory)" in found["noise"]["found"]
    save_model(tmp_path / "small.onnx")
    service.start_via(emulated, copied(binary), "phone")
    submit = ["job", "submit", str(tmp_path / "small.onnx"), "--target", "phone"]
    printed = service.run(*submit, "--trials", str(TRIALS), seconds=SECONDS)
    (job,) = re.findall(r"^job (\w+)$", printed, re.MULTILINE)
    with service.client() as client:
        done = client.job(job)
    storage = service.storage()
    target, _ = storage.workloads.target(done.target_key)
    measured = [trial.measurement for trial in storage.records.trials_of_job(job)]
    storage.close()
    assert target == machine.target
    assert done.result is not None and done.result["verified"]
    assert done.result["largest_error"] <= TOLERANCE
    assert done.result["device"]["facts"]["model"] == machine.model
    measured = [each for each in measured if each.measure_seconds]
    assert measured and all(each.device["model"] == machine.model for each in measured)
    assert any(each.certified for each in measured)


def copied(binary: Path) -> Callable[[str, Path], str]:
    """As `put_harness`, of one that is compiled already."""

    def put(architecture: str, folder: Path) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        target = target_of(architecture)
        shutil.copy(binary, harness_path(target, folder))
        return target

    return put
