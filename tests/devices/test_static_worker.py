"""A job for the worker in C on an emulated machine, whose binary is made for that.

Here it is linked with the C library of the emulated system, because zig takes minutes to compile
its own for a static one; the rest is the same.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.static_worker import build, zig_compiler
from tests.devices.conftest import ALL_MACHINES, Service
from tests.devices.emulators import Emulated, zig_environment
from tests.devices.machines import CORTEX_A15, CORTEX_A72, RISCV64
from tests.devices.packages import UnavailableError
from tests.devices.test_jobs import TOLERANCE, save_model

TRIALS = 4
START_SECONDS = 60.0
NAMES = {"aarch64": "aarch64", "armv7l": "armv7", "riscv64": "riscv64"}

pytestmark = [pytest.mark.devices, pytest.mark.timeout(600)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The machine that people have, or all of them where the command line asks for that."""
    if "machine" in metafunc.fixturenames:
        rare = [CORTEX_A15, RISCV64] if metafunc.config.getoption(ALL_MACHINES, False) else []
        metafunc.parametrize("machine", [CORTEX_A72, *rare], ids=lambda machine: machine.name)


def names(service: Service) -> set[str]:
    with service.client() as client:
        return {worker.name for worker in client.workers()}


def test_a_job_is_done_there(service: Service, emulated: Emulated, tmp_path: Path) -> None:
    machine = emulated.machine
    try:
        environment = zig_environment()
    except UnavailableError as error:
        pytest.skip(str(error))
    compiler = zig_compiler(NAMES[machine.architecture], "gnu")
    build([*compiler, "-O1"], tmp_path / "binary", environment)
    (tmp_path / "token").write_text(service.token)
    command = [*emulated.python[:-1], str(tmp_path / "binary"), "--server", service.url]
    command += ["--token-file", str(tmp_path / "token"), "--spool", str(tmp_path / "spool")]
    save_model(tmp_path / "small.onnx")
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen([*command, "--name", "phone"], stdout=log, stderr=log)
        try:
            ends = time.monotonic() + START_SECONDS
            while "phone" not in names(service):
                assert time.monotonic() < ends and worker.poll() is None
                time.sleep(0.05)
            submit = ["submit", str(tmp_path / "small.onnx"), "--target", "phone"]
            printed = service.run(*submit, "--trials", str(TRIALS))
            worker.terminate()
            assert worker.wait(START_SECONDS) == 0
        finally:
            worker.kill()
            worker.wait()
            sys.stderr.write((tmp_path / "log").read_text())  # shown where it fails
    (job,) = re.findall(r"^job (\w+)$", printed, re.MULTILINE)
    with service.client() as client:
        done = client.job(job)
    storage = service.storage()
    target, _ = storage.workloads.target(done.target_key or "")
    measured = [trial.measurement for trial in storage.records.trials_of_job(job)]
    storage.close()
    assert target == machine.target
    assert done.result is not None and done.result["verified"]
    assert done.result["largest_error"] <= TOLERANCE
    assert done.result["device"]["facts"]["model"] == machine.model
    measured = [each for each in measured if each.measure_seconds]
    assert measured and all(each.device["model"] == machine.model for each in measured)
    assert any(each.certified for each in measured)
