"""The compile function of builder processes: from JSON to an object file."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from tilewright.compiler.codegen.spills import spilling_loop
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.registry import operators
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import LoweredKernel, compile_lowered, lower_workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.templates import templates
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings

KEPT_OBJECTS = 64
"""Number of object files that a process caches. Other schedules of a batch may lower to the same
code."""


def warm_up() -> None:
    """Load all operators and templates, so that the first candidate does not wait for them."""
    operators()
    templates()


def compile_candidate(
    text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Compile a workload with a schedule to an object file.

    Args:
        text: the workload's text (`Workload.text`).
        schedule: the schedule as JSON.
        mode: the mode as JSON: target, threads and numerics.

    Returns:
        A dict with `object` (the object file), `spec` (the `KernelSpec` as JSON), `digest` (of the
            object with the kernel's name replaced, so that equal code has equal digests), `spills`
            (a message if the code spills too many vectors, otherwise empty) and `stages` (the
            seconds of each compilation step).

    Raises:
        CompilerError: if the schedule is invalid for the workload, or LLVM rejects the code.
    """
    timings = Timings()
    chosen, parsed = Mode.from_json(mode), Schedule.from_json(dict(schedule))
    lowered = lower_workload(_workload(text), parsed, chosen, timings)
    code = _objects.get(lowered.digest)
    if code is None:
        code = _objects[lowered.digest] = _compile(lowered, chosen.target, timings)
        while len(_objects) > KEPT_OBJECTS:
            _objects.popitem(last=False)
    stages = {stage.stage: stage.seconds for stage in timings.stages}
    return {**code, "spec": lowered.spec.to_json(), "stages": stages}


def _compile(lowered: LoweredKernel, target: Target, timings: Timings) -> Mapping[str, Any]:
    code = compile_lowered(lowered, target, timings).object
    with timings.stage("spills"):
        loop = spilling_loop(code, lambda: lowered.assembly(target), target)
    complaint = ""
    if loop is not None:
        complaint = (
            f"{loop.spills} of the {len(loop.instructions)} instructions of an innermost loop move "
            f"vectors to or from the stack, for {loop.fmas} multiply-adds"
        )
    neutral = code.replace(lowered.nest.name.encode(), b"kernel")
    return {
        "object": code,
        "digest": hashlib.sha256(neutral).hexdigest(),
        "spills": complaint,
    }


_objects: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
"""The object files that this process compiled last, by the digest of their LLVM IR."""


@memo(64)
def _workload(text: str) -> Workload:
    return Workload.parse(text)
