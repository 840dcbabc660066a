"""Behaviour that all devices share: the same cases on this machine and on a worker."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.small_program import compile_program
from tests.unit.service.leased import loadable, worker_thread
from tilewright.compiler.targets.detection import this_device
from tilewright.compiler.targets.host import host_target, resolve_target
from tilewright.db.storage import Storage
from tilewright.service.jobs.device.device import Device, DeviceError, Loadable
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.harness.build import HarnessError
from tilewright.tuner.measure.model_runs import draw_inputs

SEED = 11


@pytest.fixture(scope="module")
def model() -> Loadable:
    return loadable(compile_program())


@pytest.fixture(params=["local", "leased"])
def device(
    request: pytest.FixtureRequest, storage: Storage, owner: str, tmp_path: Path
) -> Iterator[Device]:
    if request.param == "local":
        with LocalDevice() as local:
            yield local
        return
    server = request.getfixturevalue("server")
    job = storage.jobs.create(storage.models.add(b"model", "m").digest, "host", "host-key").id
    with (
        worker_thread(server.url, owner, tmp_path / "spool"),
        LeasedDevice(storage, job, host_target(), CancelToken(), CancelToken()) as leased,
    ):
        leased.speeds(host_target())  # waits for the worker
        yield leased


def test_outputs_are_compared_and_fetched(device: Device, model: Loadable) -> None:
    """Errors are counted from the outputs that this process computes."""
    executable = model.load(1)
    (y,) = executable.run(draw_inputs(executable.program.inputs, SEED))
    exact = device.check(model, 1, SEED, {"y": y}, ["y"])
    assert exact.errors == {"y": 0.0}
    np.testing.assert_array_equal(exact.fetched["y"], y)
    assert exact.fetched["y"].dtype == y.dtype
    assert not device.check(model, 1, SEED, {}).errors

    beside = y.copy()
    beside[1, 2] += np.float32(0.5)
    (error,) = device.check(model, 2, SEED, {"y": beside}).errors.values()
    assert error == pytest.approx(0.5 / np.abs(beside).max(), rel=1e-5)
    beside[1, 2] = np.nan
    for wrong in (beside, y[:2], np.full_like(y, np.inf)):
        assert device.check(model, 1, SEED, {"y": wrong}).errors == {"y": math.inf}
    assert device.check(model, 1, SEED + 1, {"y": y}).errors["y"] > 0.1, "other inputs"


def test_variants_race_with_the_first_one(device: Device, model: Loadable) -> None:
    alone = device.race([[model]], 1)
    assert alone.incumbent_seconds > 0 and not alone.comparisons
    found = device.race([[model], [model, model], [model]], 2)
    assert [len(each.ratios) >= 1 for each in found.comparisons] == [True, True]


def test_every_instruction_has_its_time(device: Device, model: Loadable) -> None:
    seconds = device.profile(model, 1, 2)
    assert seconds.dtype == np.float64
    assert seconds.shape == (len(list(model.program.walk())),) and (seconds > 0).all()


def test_a_device_knows_itself(device: Device) -> None:
    target = host_target()
    assert device.facts == this_device()
    assert device.runs(target)
    foreign = "rv64gc" if target.arch != "riscv64" else "x86-64-v3"
    assert not device.runs(resolve_target(foreign))
    assert not device.runs(replace(target, features=(*target.features, "+unheard-of")))
    speeds = device.speeds(target)
    assert speeds.flops_per_second > 0
    assert [level.bytes for level in speeds.levels] == [
        *filter(None, map(this_device().cache_bytes, (1, 2, 3))),
        0,
    ]
    assert device.name


def test_a_machine_without_a_harness_says_what_to_do(
    model: Loadable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is refused, and a command that asks for a speed goes on without."""
    monkeypatch.setattr("tilewright.tuner.measure.harness.build.sys.platform", "darwin")
    with LocalDevice() as device:
        with pytest.raises(DeviceError, match="kernels are measured on Linux alone: tune there"):
            device.profile(model, 1, 2)
        with pytest.raises(HarnessError, match="tilewright-worker --via"):
            device.runner.resume()
