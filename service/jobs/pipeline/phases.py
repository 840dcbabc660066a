"""The phases of a job as shown to users, and the seconds spent in each."""

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
"""The reported phase of each timed step of a job. Steps that are not listed belong to planning."""

BESIDE: Mapping[str, str] = {
    **dict.fromkeys(("lower", "emit LLVM IR", "LLVM parse", "LLVM codegen", "spills"), "build"),
    "references": "references",
}
"""The reported phase of each timed step that runs concurrently with tuning: the steps of building a
candidate, and the computation of expected outputs."""


def phase_seconds(timings: Timings, beside: Timings | None = None) -> dict[str, float]:
    """Return the seconds spent in each phase of a job; phases that took no time are missing.

    Candidates are built, and expected outputs are computed, concurrently with tuning. So the sum of
    all phases may exceed the wall time.

    Args:
        timings: the seconds of each step of the job.
        beside: the seconds of each step that ran concurrently with tuning; None if they are
            unknown.
    """
    found = dict.fromkeys(PHASES, 0.0)
    for stage, seconds in timings.seconds().items():
        found[OF_STAGE.get(stage, "plan")] += seconds
    for stage, seconds in ({} if beside is None else beside.seconds()).items():
        if stage in BESIDE:
            found[BESIDE[stage]] += seconds
    return {phase: seconds for phase, seconds in found.items() if seconds}
