"""The packages that mutants are made of, and the tests that judge them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.mutant_judges import CONTRACTS, JUDGES

ROOT = Path(__file__).parents[3]


def test_every_package_and_every_judge_exists() -> None:
    judges = [test for tests in JUDGES.values() for test in tests]
    paths = [*JUDGES, *judges, *CONTRACTS, *CONTRACTS.values()]
    assert [path for path in paths if not (ROOT / path).exists()] == []
