"""A builder for all tests of jobs: it stands for the one that a tuner keeps between its jobs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewright.tuner.measure.builder import ProcessBuilder


@pytest.fixture(scope="session")
def builder() -> Iterator[ProcessBuilder]:
    made = ProcessBuilder(1)
    yield made
    made.close()
