"""Runs on a device that a worker stands for: a real worker process behind the real application."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.device import find_device
from compiler.target import host_target
from db.storage import Storage
from service.jobs.device import Loadable
from service.jobs.leased_device import LeasedDevice
from tests.unit.service.leased import compile_program, loadable, worker_process
from tuner.cancel import CancelToken
from tuner.measure.model_runs import draw_inputs
from tuner.measure.run_packing import pack_weights

SEED = 5


@pytest.fixture(scope="module")
def model() -> Loadable:
    return loadable(compile_program())


@pytest.fixture(scope="module")
def outputs(model: Loadable) -> dict[str, np.ndarray]:
    """What the model gives in this process."""
    executable = model.load(1)
    found = executable.run(draw_inputs(executable.inputs, SEED))
    return dict(zip(executable.output_names, found, strict=True))


@pytest.fixture
def job(storage: Storage) -> str:
    return storage.jobs.create(storage.models.add(b"model", "m").digest, "host").id


@pytest.fixture
def device(storage: Storage, job: str) -> Iterator[LeasedDevice]:
    with LeasedDevice(storage, job, host_target(), CancelToken(), CancelToken()) as found:
        yield found


@pytest.fixture
def worker(server: Any, owner: str, tmp_path: Path) -> Iterator[None]:
    with worker_process(server.url, owner, tmp_path / "spool", "--name", "board"):
        yield


@pytest.mark.usefixtures("worker")
def test_a_worker_does_all_that_a_device_does(
    device: LeasedDevice, model: Loadable, outputs: dict[str, np.ndarray], storage: Storage
) -> None:
    checked = device.check(model, 1, SEED, outputs, ["y"])
    assert checked.errors == {"y": 0.0}
    np.testing.assert_array_equal(checked.fetched["y"], outputs["y"])
    wrong = {"y": outputs["y"] + np.float32(1)}
    scale = float(np.abs(wrong["y"]).max())
    assert device.check(model, 1, SEED, wrong).errors["y"] == pytest.approx(1 / scale, rel=1e-3)

    found = device.race([[model], [model], [model, model]], 1)
    assert found.incumbent_seconds > 0 and len(found.comparisons) == 2
    assert all(ratio > 0 for each in found.comparisons for ratio in each.ratios)

    seconds = device.profile(model, 1, 3)
    assert seconds.shape == (len(model.program.instructions),) and (seconds > 0).all()

    speeds = device.speeds(host_target())
    assert speeds.flops_per_second > 1e8 and speeds.levels[-1].name == "memory"
    facts = device.facts
    assert facts == find_device()
    assert [level.bytes for level in speeds.levels[:-1]] == [
        size for level in (1, 2, 3) if (size := facts.cache_bytes(level))
    ]
    assert device.name == "board" and device.runs(host_target()) and device.workers == 1


@pytest.mark.usefixtures("worker")
def test_weights_stay_for_the_next_run_and_go_with_the_device(
    device: LeasedDevice, model: Loadable, outputs: dict[str, np.ndarray], storage: Storage
) -> None:
    before = set(storage.blobs.digests())
    with device:
        device.check(model, 1, SEED, outputs)
        _, weights = pack_weights(model.program, model.weights)
        assert set(storage.blobs.digests()) - before == weights.keys()
    assert set(storage.blobs.digests()) == before
