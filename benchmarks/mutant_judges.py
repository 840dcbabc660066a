"""The tests that must detect mutants (deliberate mistakes) in each package."""

from __future__ import annotations

from collections.abc import Mapping

JUDGES: dict[str, tuple[str, ...]] = {
    "service": (
        *("tests/golden/service", "tests/unit/service", "tests/integration/test_service.py"),
    ),
    "db": (
        "tests/unit/db",
        *(
            f"tests/unit/service/api/test_{name}.py"
            for name in ("access", "housekeeping", "probes")
        ),
        *(f"tests/unit/service/jobs/test_{name}.py" for name in ("nearest", "record_exchange")),
    ),
    "compiler/passes": (
        *("tests/golden/passes", "tests/unit/passes", "tests/unit/plan", "tests/unit/frontend"),
    ),
    "compiler/plan": ("tests/golden/plans", "tests/unit/plan", "tests/unit/passes"),
    "compiler/ops": (
        *("tests/unit/ops", "tests/unit/frontend", "tests/unit/passes"),
        *(f"tests/integration/test_{name}.py" for name in ("branches", "loops", "scans")),
    ),
    "compiler/codegen": (
        *("tests/golden/kernels", "tests/unit/codegen", "tests/unit/schedule"),
        "tests/unit/runtime/test_link.py",
    ),
    "compiler/schedule": ("tests/golden/kernels", "tests/unit/schedule", "tests/unit/codegen"),
    "tuner": (
        "tests/unit/tuner",
        *(f"tests/unit/service/api/test_{name}.py" for name in ("results", "task_code")),
        *(f"tests/unit/service/jobs/test_{name}.py" for name in ("leased_device", "verification")),
    ),
}
"""For each package that is mutated, the tests that should detect its mutants."""

CONTRACTS: Mapping[str, str] = {"service": "tests/golden/service/test_golden_contract.py"}
"""Tests that compare all declarations of a package with a file, by the package's first folder. They
read objects that were created at import, and therefore execute few lines of the package."""
