"""Fixtures of the tests of workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.service.worker.harness_parts import build_parts


@pytest.fixture(scope="session")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test program of the harness's parts."""
    output = tmp_path_factory.mktemp("parts") / "parts"
    build_parts(output)
    return output
