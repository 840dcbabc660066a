"""The behaviour of every harness, behind the real application: the C program on this machine, the
same through a shell, and JavaScript in Node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernel_code import library_of, module_of
from tests.small_program import K, N, compile_program
from tests.unit.service.added_arrays import measure
from tests.unit.service.leased import loadable
from tilewright.compiler.targets.host import host_target, resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.db.stores.workers import Health
from tilewright.service.api.worker_page import FOLDER
from tilewright.service.jobs.device.device import DeviceError
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.model_runs import draw_inputs
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status

SEED = 5
KERNELS = """
#define KERNEL(name) \\
  void name(void *const *buffers, void *scratch, const long long *sizes, long long lo, long long hi)
#define ADD \\
  (void)scratch, (void)sizes, (void)lo, (void)hi; \\
  const float *a = buffers[0], *b = buffers[1]; float *out = buffers[2]; \\
  for (int i = 0; i < 256; i++) out[i] = a[i] + b[i];
static volatile int damage;
KERNEL(good) { ADD }
KERNEL(also_good) { ADD out[0] = a[0] + b[0]; }
KERNEL(wrong) { ADD out[7] += 1.0f; }
KERNEL(unfinished) { ADD out[9] = ((const float *)scratch)[0]; }
KERNEL(traps) { ADD __builtin_trap(); }
KERNEL(beyond) { ADD *(volatile float *)BEYOND = 1.0f; }
KERNEL(hangs) { ADD for (volatile int r = 0; r < 1; ) {} }
KERNEL(damages) { ADD damage = 1; }
KERNEL(suffers) { ADD if (damage) __builtin_trap(); }
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """A harness behind the application.

    Attributes:
        target: of the programs that it runs.
        threads: the most that it uses for a program.
        link: makes a library of C.
        processor: the system that it names in its facts.
    """

    device: LeasedDevice
    target: Target
    threads: int
    link: Callable[[str], bytes]
    system: str

    def measured(self, *names: str, phase: Phase = Phase.SCREEN) -> dict[str, Measurement]:
        """Kernels of KERNELS, as the harness measured them."""
        return measure(self.device, self.target, self.link(KERNELS), names, phase)


def command_of(kind: str, folder: Path) -> list[str]:
    """The command with which a user starts a worker of a kind."""
    python = [sys.executable, "-m", "tilewright.service.worker"]
    if kind == "here":
        return python
    if kind == "node":
        return ["node", str(FOLDER / "node.mjs")]
    # through a shell, with another home that stands for the device's
    return [*python, "--via", f"env HOME={folder}/home XDG_CACHE_HOME="]


@pytest.fixture(params=["here", "shell", "node"])
def bench(
    request: pytest.FixtureRequest, server: Any, storage: Storage, tmp_path: Path
) -> Iterator[Bench]:
    """A worker with a token that measures and does nothing else."""
    kind = request.param
    lacks = ("node", "ziglang") if kind == "node" else ("gcc",)
    if not all(shutil.which(name) or find_spec(name) for name in lacks):
        pytest.skip(f"{kind} needs {' and '.join(lacks)}")
    target = resolve_target("wasm32") if kind == "node" else host_target()
    secret, _ = storage.tokens.create("board", [Scope.MEASURE], lifetime_seconds=600)
    (tmp_path / "token").write_text(secret)
    command = [*command_of(kind, tmp_path), "--server", server.url, "--name", "board"]
    command += ["--token-file", str(tmp_path / "token"), "--spool", str(tmp_path / "spool")]

    def link(source: str) -> bytes:
        if kind == "node":
            return module_of(target, source, tmp_path)
        return library_of(source, tmp_path)

    name = "wasm32" if kind == "node" else "host"
    job = storage.jobs.create(storage.models.add(b"model", "m").digest, name, "host-key").id
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with LeasedDevice(storage, job, target, CancelToken(), CancelToken()) as device:
                system = "Node" if kind == "node" else os.uname().sysname
                yield Bench(device, target, 1 if kind == "node" else 2, link, system)
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
            sys.stderr.write((tmp_path / "log").read_text())  # shown where a test fails
    (gone,) = storage.workers.list()
    assert gone.health is Health.GONE and not storage.leases.in_hand()


def test_whole_programs_are_checked_raced_and_profiled(bench: Bench) -> None:
    device = bench.device
    model = loadable(compile_program(bench.target))
    x = draw_inputs(model.program.inputs, SEED)["x"]
    rng = np.random.default_rng(3)
    w1 = rng.standard_normal((K, N), dtype=np.float32) / np.float32(K**0.5)
    w2 = rng.standard_normal((N, 10), dtype=np.float32) / np.float32(N**0.5)
    expected = np.maximum(x @ w1, 0) @ w2
    checked = device.check(model, 1, SEED, {"y": expected}, ["y"])
    assert checked.errors["y"] < 1e-5
    assert np.allclose(checked.fetched["y"], expected, atol=1e-4)
    assert device.check(model, bench.threads, SEED, {"y": expected + 1}).errors["y"] > 0.1

    race = device.race([[model], [model]], 1)
    assert race.incumbent_seconds > 0 and len(race.comparisons[0].ratios) >= 2
    assert all(seconds > 0 for seconds in device.profile(model, 1, 3))
    speeds = device.speeds(bench.target)
    assert speeds.flops_per_second > 1e8 and speeds.levels[-1].name == "memory"
    assert device.facts is not None and device.facts.system == bench.system

    other = bench.link("void other(void);\nvoid other(void) {}")
    with pytest.raises(DeviceError):
        device.check(replace(model, link=lambda: other), 1, SEED, {})


def test_a_candidate_harms_nobody_but_itself(bench: Bench) -> None:
    statuses = {
        "good": Status.OK,
        "wrong": Status.WRONG_ANSWER,
        "traps": Status.CRASH,
        "unfinished": Status.WRONG_ANSWER,
        "hangs": Status.RUN_TIMEOUT,
        "beyond": Status.CRASH,
        "absent": Status.RUN_ERROR,
        "also_good": Status.OK,
    }
    measured = bench.measured(*statuses)
    assert {name: m.status for name, m in measured.items()} == statuses
    good = measured["good"]
    assert good.run_seconds is not None and good.checks == 1 and len(good.samples_seconds) > 1
    assert good.device["system"] == bench.system and good.speed is not None
    assert measured["hangs"].error == "no answer within 1 seconds"


def test_a_crash_that_another_candidate_caused_is_not_blamed_on_its_victim(bench: Bench) -> None:
    """The crash shows up later: its suspect is run alone, and survives."""
    measured = bench.measured("damages", "suffers", "good")
    assert {m.status for m in measured.values()} == {Status.OK}


def test_finalists_are_paired_with_the_incumbent(bench: Bench) -> None:
    measured = bench.measured("good", "also_good", phase=Phase.FINAL)
    compared = measured["also_good"].comparison
    assert compared is not None and compared.against == "good" and len(compared.ratios) > 1
    assert measured["good"].comparison is None
