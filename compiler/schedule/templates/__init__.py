"""Templates: one file an anchor kind. Each says for which problems it applies, derives its knobs
from the loop structure and the target, and lowers a schedule to a loop nest.

A template is a module-level object named TEMPLATE; modules are found by walking this package, and
those without one hold what templates share.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Protocol

from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import SubSpace
from tilewright.compiler.targets.target import Target

FALLBACK = 0.0
"""Preference of a template that is right for anything and good at little."""

LAST = -1.0
"""Preference of the template that takes any workload, and is good at none."""


class Template(Protocol):
    """One way to make a loop nest of a workload."""

    algorithms: tuple[str, ...]
    """Names under which its schedules are kept."""

    def space(self, workload: Workload, mode: Mode) -> SubSpace | None:
        """Its knobs for a workload; None where it does not apply or may not change rounding."""
        ...

    def preference(self, workload: Workload, target: Target) -> float:
        """Orders templates that apply, before anything is measured: larger is tried first."""
        ...

    def lower(
        self, workload: Workload, schedule: Schedule, target: Target, *, threads: int
    ) -> Kernel:
        """The loop nest of a schedule; raises ScheduleError where it does not fit."""
        ...


@cache
def templates() -> tuple[Template, ...]:
    """Every template, in the order of the module names."""
    found: list[Template] = []
    for module in pkgutil.iter_modules(__path__):
        template = getattr(importlib.import_module(f"{__name__}.{module.name}"), "TEMPLATE", None)
        if template is not None:
            found.append(template)
    return tuple(found)
