"""A job for the worker in C on an emulated machine, whose binary is made for that."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.devices.conftest import ALL_MACHINES, Service
from tests.devices.emulators import Emulated
from tests.devices.machines import CORTEX_A15, CORTEX_A72, RISCV64
from tests.devices.packages import UnavailableError
from tests.devices.static_workers import build_for
from tests.devices.test_jobs import TOLERANCE, save_model
from tests.unit.service.slow_service import slow_service

TRIALS = 4
SECONDS = 600.0
"""That a job may take on a machine that others use; alone it takes a tenth."""

pytestmark = [pytest.mark.devices, pytest.mark.timeout(900)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The machine that people have, or all of them where the command line asks for that."""
    if metafunc.function is test_a_job_is_done_there:
        rare = [CORTEX_A15, RISCV64] if metafunc.config.getoption(ALL_MACHINES, False) else []
        metafunc.parametrize("machine", [CORTEX_A72, *rare], ids=lambda machine: machine.name)
    elif "machine" in metafunc.fixturenames:  # of 32 bits; skipped without the option
        rare = [CORTEX_A15] if metafunc.config.getoption(ALL_MACHINES, False) else []
        metafunc.parametrize("machine", rare, ids=lambda machine: machine.name)


@pytest.fixture
def binary(emulated: Emulated, tmp_path: Path) -> Path:
    try:
        return build_for(emulated.machine.architecture, tmp_path / "binary")
    except UnavailableError as error:
        pytest.skip(str(error))


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
    service.start_static_worker(emulated, binary, "phone")
    submit = ["submit", str(tmp_path / "small.onnx"), "--target", "phone"]
    printed = service.run(*submit, "--trials", str(TRIALS), seconds=SECONDS)
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


def test_sizes_beyond_32_bits_are_refused(emulated: Emulated, tmp_path: Path, binary: Path) -> None:
    """A size that is cut to 32 bits would look like a small one, which is fetched and loaded."""
    slow = slow_service()
    size = (1 << 32) + len(b"a blob")
    slow.payload = {
        "kind": "run",
        "threads": 1,
        "limit_seconds": 5.0,
        "memory_bytes": 0,
        "programs": [],
        "work": {"do": "speeds", "library": "5" * 64},
        "blobs": {"5" * 64: size},
    }
    with ThreadingHTTPServer(("127.0.0.1", 0), slow) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}"
        command = [*emulated.python[:-1], str(binary), "--server", url]
        command += ["--spool", str(tmp_path / "spool"), "--cache-mib", "1048576"]
        done = subprocess.run(command, env={"TILEWRIGHT_TOKEN": "t"}, timeout=120, check=False)
        service.shutdown()
    assert done.returncode == 1 and not slow.failures
    (result,) = slow.results
    room = (1 << 30) - 1
    assert result["status"] == "refused"
    assert result["error"] == (
        f"the run needs {size} bytes of blobs, a process here has room for {room}"
    )
