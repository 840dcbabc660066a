"""`tune` accepts the models that `compile` accepts, and ends without a traceback: random cuts of
models, with open dimensions and quantised values, are tuned and compared with ONNX Runtime.

Few, and the same each time; many, and others each day, in `make fuzz`. To repeat seed 265: `pytest
tests/integration/test_main_job_fuzz.py --first-seed 265 -k 265`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import settings

from tests.examples import graphs
from tests.integration.cut_models import Cut, drawn, run
from tests.opened import dims_of, refusal
from tilewright import load_artifact
from tilewright.service.cli import run as run_cli
from tilewright.service.jobs.device import local_device
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs
from tilewright.service.jobs.process import builders
from tilewright.tuner.measure.builder import ProcessBuilder

EXAMPLES, PLANNED = 4, 20
TRIALS = 2
DAY, APART = 86400, 10000
"""Seconds, and how far the first seeds of two days are from each other."""

WITH_SAMPLES = 3
"""One of this many jobs has given inputs instead of random ones."""

CHOSEN = re.compile(r"^(\w+)=(\d+), since", re.MULTILINE)
"""A dimension that the job gave a size, which may differ from the sampled one."""

TOLERANCE = 2e-4
"""Sums of some tens of float32 products in eight nodes, relative to the largest element."""

ROUNDED = 0.05
"""Where values are rounded to steps, ties fall either way: of the norm of the difference."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first, count = span(metafunc.config, EXAMPLES)
        metafunc.parametrize("seed", range(first, first + count))


def span(config: pytest.Config, count: int) -> tuple[int, int]:
    """The first seed, and how many there are."""
    assert settings.default is not None
    of_today = 0 if settings.default.derandomize else int(time.time()) // DAY * APART
    stated: int | None = config.getoption("--first-seed", default=None)
    return of_today if stated is None else stated, graphs(config, count)


class SharedDevice(LocalDevice):
    """This machine for one job, with the runner and the speeds of all of them."""

    def __init__(self, given: GivenInputs, whole: LocalDevice) -> None:
        super().__init__(given)
        self._runner, self._speeds = whole.local_runner, whole._speeds

    def __exit__(self, *_: object) -> None:
        """The runner goes on."""


@pytest.fixture
def in_process(
    builder: ProcessBuilder, device: LocalDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of this process share the builder and the runner, and find no records."""
    monkeypatch.setattr(
        local_device, "LocalDevice", lambda given=NONE_GIVEN: SharedDevice(given, device)
    )
    monkeypatch.setattr(builder, "close", lambda: None)
    monkeypatch.setattr(builders, "open_builder", lambda settings, timings=None: builder)
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))


@pytest.mark.graphs
def test_a_job_plans_what_is_imported_at_a_size(request: pytest.FixtureRequest) -> None:
    """Of many more cuts, since nothing is measured."""
    first, count = span(request.config, PLANNED)
    for seed in range(first, first + count):
        cut = drawn(seed)
        assert not (found := refusal(cut.proto, cut.feeds)), f"{seed}: {cut.told}\n{found}"


@pytest.mark.graphs
@pytest.mark.usefixtures("in_process")
def test_tune_takes_what_compile_takes(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = drawn(seed)
    model, artifact = tmp_path / "m.onnx", tmp_path / "artifact"
    onnx.save(cut.proto, model)
    command = ["tune", str(model), "--trials", str(TRIALS), "--json", "-o", str(artifact)]
    if given := seed % WITH_SAMPLES == 0:
        np.savez(tmp_path / "inputs.npz", **cut.feeds)
        command += ["--samples", str(tmp_path / "inputs.npz")]
    code = run_cli(command)
    printed = capsys.readouterr()
    told = f"{cut.told}\n{printed.err}"
    assert "Traceback" not in printed.err, told
    if code:
        assert asks(printed.err, given) or refused(model, tmp_path / "compiled"), told
        return
    assert json.loads(printed.out)["verified"], told
    if sizes := {name: int(size) for name, size in CHOSEN.findall(printed.err)}:
        cut = resized(cut, sizes)
    assert_agrees(cut, load_artifact(artifact).run(cut.feeds))


def refused(model: Path, output: Path) -> bool:
    """Whether `compile` makes no artifact of a model, either."""
    return bool(run_cli(["compile", str(model), "-o", str(output)]))


def asks(printed: str, given: bool) -> bool:
    """Whether an error names the input to provide: inputs, since random ones do not fit the model,
    or the size of a dimension."""
    return (not given and "--samples" in printed) or "give it one with --dim" in printed


def resized(cut: Cut, sizes: Mapping[str, int]) -> Cut:
    """The cut with inputs of other sizes."""
    feeds = {}
    for port in cut.proto.graph.input:
        array = cut.feeds[port.name]
        dims = zip(dims_of(port), array.shape, strict=True)
        feeds[port.name] = np.resize(array, [sizes.get(str(dim), size) for dim, size in dims])
    return replace(cut, feeds=feeds, expected=run(cut.proto, feeds))


def assert_agrees(cut: Cut, results: Any) -> None:
    for (name, expected), found in zip(cut.expected.items(), results, strict=True):
        told = f"{cut.told}: output '{name}'"
        assert found.dtype == expected.dtype, told
        if cut.rounded and expected.dtype.kind != "f":
            continue
        assert found.shape == expected.shape, told
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(found, expected, err_msg=told)
            continue
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected), err_msg=told)
        far = np.abs(np.where(np.isfinite(expected), found - expected, 0.0))
        scale = np.abs(expected[np.isfinite(expected)]).max(initial=1e-6)
        if cut.rounded:
            norms = np.linalg.norm(far), np.linalg.norm(np.nan_to_num(expected))
            assert norms[0] <= ROUNDED * norms[1] + TOLERANCE, f"{told} differs by {norms}"
        else:
            assert far.max(initial=0.0) <= TOLERANCE * scale, f"{told} differs by {far.max()}"
