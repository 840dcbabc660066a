"""Fixtures of tests that tune in this process, and an option of those that generate models from a
seed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.tuner.measure.builder import ProcessBuilder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-seed", type=int, default=None, help="the first seed that is drawn")


@pytest.fixture(scope="module")
def builder() -> Iterator[ProcessBuilder]:
    """Builder processes for all jobs: starting them takes longer than tuning."""
    shared = ProcessBuilder(1)
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def device() -> Iterator[LocalDevice]:
    """This machine with its runner, and its measured peak performance, determined once."""
    with LocalDevice() as here:
        yield here
