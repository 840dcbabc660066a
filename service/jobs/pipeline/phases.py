"""The phases of a job as its user knows them, and the time of each."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.compiler.timings import Timings

PHASES = (
    "import",
    "plan",
    "build",
    "references",
    "tuning",
    "confirmation",
    "race",
    "verification",
    "artifact",
)

OF_STAGE: Mapping[str, str] = {
    "import": "import",
    "tune": "tuning",
    "confirm": "confirmation",
    "race": "race",
    "verify": "verification",
    **dict.fromkeys(
        ("schedules", "memory plan", "pack weights", "wait for LLVM", "link", "write"), "artifact"
    ),
}
"""What a job's own stages belong to; all others are planning."""

BESIDE: Mapping[str, str] = {
    **dict.fromkeys(("lower", "emit LLVM IR", "LLVM parse", "LLVM codegen", "spills"), "build"),
    "references": "references",
}
"""What runs beside a job, in its builders, while it tunes."""


def phase_seconds(timings: Timings, beside: Timings | None = None) -> dict[str, float]:
    """Seconds of the phases that took any, in their order.

    Building and references run beside the tuning: with them, the sum may be more than the wall
    time.
    """
    found = dict.fromkeys(PHASES, 0.0)
    for stage, seconds in timings.seconds().items():
        found[OF_STAGE.get(stage, "plan")] += seconds
    for stage, seconds in ({} if beside is None else beside.seconds()).items():
        if stage in BESIDE:
            found[BESIDE[stage]] += seconds
    return {phase: seconds for phase, seconds in found.items() if seconds}
