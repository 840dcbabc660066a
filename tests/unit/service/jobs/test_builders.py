"""The builder that settings name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tilewright.service.jobs.process.builders import default_builders, open_builder
from tilewright.service.settings import Settings
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.dask_builder import DaskBuilder


def test_processes_are_the_default() -> None:
    made = open_builder(Settings())
    assert isinstance(made, ProcessBuilder) and default_builders() >= 1
    made.close()


def test_a_scheduler_by_its_address() -> None:
    made = open_builder(Settings(builders="dask+tls://build-host:8786"))
    assert isinstance(made, DaskBuilder) and made.address == "tls://build-host:8786"
    made.close()


@pytest.mark.parametrize("name", ["-1", "many", "dask://host", "tcp://host:1", "dask://:1 x"])
def test_nonsense_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="builders"):
        Settings(builders=name)
