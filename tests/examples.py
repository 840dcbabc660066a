"""The number of examples of property tests: few and the same each time, or many new ones.

Profiles of hypothesis, chosen with `--hypothesis-profile`:

- `repeatable`, unless another is named: three of five that a test asks for, derandomised, so that
  what passes once passes again.
- `fuzz`: twenty times as many as it asks for, at random. Failures are kept in `tests/cases`.
- `cases`: what is kept there, and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase, ReadOnlyDatabase

CASES = Path(__file__).parent / "cases"
"""Examples that failed once, as hypothesis keeps them: valid while their test reads the same."""

_FUZZ = 20
_PER_HUNDRED = 100
_REPEATED = 60
"""Of a hundred, in CI."""


def register_profiles() -> None:
    """Tell hypothesis the profiles, and load the first."""
    kept = DirectoryBasedExampleDatabase(CASES)
    settings.register_profile(
        "repeatable", max_examples=_REPEATED, derandomize=True, database=None, deadline=None
    )
    settings.register_profile(
        "fuzz", max_examples=_FUZZ * _PER_HUNDRED, database=kept, deadline=None, print_blob=True
    )
    settings.register_profile(
        "cases",
        phases=(Phase.explicit, Phase.reuse),
        database=ReadOnlyDatabase(kept),
        deadline=None,
    )
    settings.load_profile("repeatable")


def examples(count: int) -> int:
    """A test's number of examples in the profile that is loaded."""
    assert settings.default is not None
    return max(1, count * settings.default.max_examples // _PER_HUNDRED)


def graphs(config: pytest.Config, count: int) -> int:
    """Graphs to generate per operator: the value of `--graphs`, or as many as `examples`."""
    stated: int | None = config.getoption("--graphs", default=None)
    return examples(count) if stated is None else stated
