"""The phases of a job as shown to users, and the time of each."""

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
"""The phase of each stage of a job; all others belong to planning."""

BESIDE: Mapping[str, str] = {
    **dict.fromkeys(("lower", "emit LLVM IR", "LLVM parse", "LLVM codegen", "spills"), "build"),
    "references": "references",
}
"""The stages that run in a job's builders, concurrently with tuning."""


def phase_seconds(timings: Timings, beside: Timings | None = None) -> dict[str, float]:
    """Sum the seconds of a job's stages by phase; phases that took no time are missing.

    `timings` has the stages of the job, `beside` the stages of its builders. Building and
    references run concurrently with tuning, so the sum may exceed the wall time.
    """
    found = dict.fromkeys(PHASES, 0.0)
    for stage, seconds in timings.seconds().items():
        found[OF_STAGE.get(stage, "plan")] += seconds
    for stage, seconds in ({} if beside is None else beside.seconds()).items():
        if stage in BESIDE:
            found[BESIDE[stage]] += seconds
    return {phase: seconds for phase, seconds in found.items() if seconds}
