"""A job for a machine that is not the tuner's: from the model to the artifact that runs there.

The worker runs under qemu, with its own instruction set and the facts that its Linux would report.
Times are meaningless there, and no test here compares them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.devices.conftest import ALL_MACHINES, Service
from tests.devices.emulators import Emulated
from tests.devices.harnesses import put_harness
from tests.devices.machines import CORTEX_A15, CORTEX_A72, HASWELL, RISCV64, Machine
from tests.devices.packages import UnavailableError
from tilewright.compiler.targets.device import find_device
from tilewright.service.api.schemas.lookups import LookupRequest

USUAL, RARE = [CORTEX_A72], [HASWELL, CORTEX_A15, RISCV64]

TRIALS = 12
TOLERANCE = 1e-4
"""Relative to the largest output. Sums of 72 products in another order differ by 72 x 2^-24, which
is 4e-6, of the sum of their magnitudes; Winograd's transforms may multiply that by ten."""

RUN = """\
import sys
import numpy as np
from tilewright import load_artifact
inputs = np.load(sys.argv[2])
np.save(sys.argv[3], load_artifact(sys.argv[1]).run(dict(inputs))[0])
"""

pytestmark = [pytest.mark.devices, pytest.mark.timeout(900)]


def save_model(path: Path) -> None:
    """A convolution with a bias and a ReLU, and a product."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        scale = np.float32(np.prod(shape[1:]) ** -0.5)
        return rng.standard_normal(shape, dtype=np.float32) * scale

    parameters = {
        "w1": weights(16, 8, 3, 3),
        "b1": weights(16),
        "w2": weights(16, 10),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], "pool"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "w2"], ["y"], "fc"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 10, 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(array, name) for name, array in parameters.items()],
    )
    # ONNX Runtime reads it too, and may be older than onnx
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The usual machines, or all of them if the command line asks for that."""
    if "machine" in metafunc.fixturenames:
        more = metafunc.config.getoption(ALL_MACHINES, default=False)
        machines = [*USUAL, *(RARE if more else [])]
        metafunc.parametrize("machine", machines, ids=lambda machine: machine.name)


def test_a_job_is_done_on_the_device(service: Service, emulated: Emulated, tmp_path: Path) -> None:
    machine = emulated.machine
    model, artifact = tmp_path / "small.onnx", tmp_path / "artifact"
    save_model(model)
    worker = f"{machine.name}-board"
    try:
        service.start_via(emulated, put_harness, worker)
    except UnavailableError as error:
        pytest.skip(str(error))

    printed = service.run(
        *("job", "submit", str(model), "--target", worker, "--trials", str(TRIALS)),
        *("-o", str(artifact)),
    )
    (job,) = re.findall(r"^job (\w+)$", printed, re.MULTILINE)

    check_whole_model(service, machine, job, printed)
    check_measurements(service, machine, job)
    check_explained(service, machine, model, worker)
    check_records(service, machine, model)
    check_the_tuner_appears_nowhere(service, machine)
    check_artifact(emulated, artifact, model)


def check_whole_model(service: Service, machine: Machine, job: str, printed: str) -> None:
    """The certificate and the race are the device's, and so are the fields of the answer about
    them."""
    with service.client() as client:
        done = client.job(job)
        (worker,) = client.workers()
    storage = service.storage()
    target, _ = storage.workloads.target(done.target_key)
    storage.close()
    assert target == machine.target, "the best one that it runs"
    assert done.worker_id == worker.id
    result = done.result
    assert result is not None and result["verified"] and not result["not_verified"]
    assert result["largest_error"] <= TOLERANCE
    verdict = result["end_to_end"]
    assert verdict["outcome"] in ("same", "faster", "tie", "slower"), verdict["reason"]
    if verdict["outcome"] != "same":
        assert verdict["device"] == machine.model
    if verdict["comparison"] is None and verdict["outcome"] != "same":
        # the emulator's times are noise, so that its second race may contradict the first
        assert verdict["served"] == "default" and "found it" in verdict["reason"], verdict
    elif verdict["outcome"] != "same":
        assert len(verdict["comparison"]["ratios"]) > 1
    facts = result["device"]["facts"]
    assert (facts["model"], facts["memory_bytes"]) == (machine.model, machine.memory_kib << 10)
    assert worker.name in printed


def check_explained(service: Service, machine: Machine, model: Path, worker: str) -> None:
    """Kernels are timed in their places there, against the roofline of that machine."""
    report = json.loads(service.run("show", "kernels", str(model), "--on", worker, "--json"))
    assert (report["device"], report["target"]) == (machine.model, machine.target)
    assert all(kernel["seconds"] > 0 for kernel in report["kernels"])
    sizes = [level["bytes"] for level in report["speeds"]["levels"]]
    assert sizes == [c.bytes for c in machine.caches if c.kind != "instruction"] + [0]


def check_measurements(service: Service, machine: Machine, job: str) -> None:
    """Each was measured by the worker, which reports its machine."""
    with service.client() as client:
        (worker,) = client.workers()
    storage = service.storage()
    trials = storage.records.trials_of_job(job)
    storage.close()
    # the others were not built, or refused because of their assembly before they were sent
    measured = [trial.measurement for trial in trials if trial.measurement.measure_seconds]
    assert len(measured) > TRIALS // 2
    for measurement in measured:
        assert measurement.worker == worker.id
        found = measurement.device
        assert (found["model"], found["architecture"]) == (machine.model, machine.architecture)
        assert found["memory_bytes"] == machine.memory_kib << 10
        assert [cache["bytes"] for cache in found["caches"]] == [c.bytes for c in machine.caches]


def check_records(service: Service, machine: Machine, model: Path) -> None:
    """Every kernel that is kept was compared with the references on the device."""
    with service.client() as client:
        digest = client.upload(model).digest
        lookup = client.lookup(LookupRequest(model=digest, target=machine.target))
    assert lookup.schedules and lookup.known == len(lookup.schedules)
    for entry in lookup.schedules:
        assert entry.record is not None
        measurement = entry.record.measurement
        assert measurement["device"]["model"] == machine.model
        assert measurement["checks"] > 1
        assert measurement["max_error"] <= measurement["tolerance"]


def check_the_tuner_appears_nowhere(service: Service, machine: Machine) -> None:
    """This machine's name is in no row of the database."""
    host = find_device()
    stored = b"".join(path.read_bytes() for path in service.database_files())
    assert machine.model.encode() in stored
    assert host.model and host.model.encode() not in stored


def check_artifact(emulated: Emulated, artifact: Path, model: Path) -> None:
    """It loads on the device, where its output is that of ONNX Runtime here."""
    x = np.random.default_rng(1).standard_normal((1, 8, 10, 10), dtype=np.float32)
    inputs, output = artifact.parent / "inputs.npz", artifact.parent / "output.npy"
    np.savez(inputs, x=x)
    done = subprocess.run(
        [*emulated.python, "-c", RUN, str(artifact), str(inputs), str(output)],
        cwd=emulated.packages,
        env={**os.environ, "PYTHONPATH": str(emulated.packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    found = np.load(output)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()
