"""An option of the tests that generate graphs."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--graphs", type=int, default=None, help="random graphs to draw for each operator"
    )
