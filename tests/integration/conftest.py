"""An option of the tests that draw models by a seed."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-seed", type=int, default=None, help="the first seed that is drawn")
