"""Templates, each of which builds loop nests for one kind of workload, such as matrix products.

Each module of this package that defines the value TEMPLATE is a template; the other modules contain
shared code. A template decides which workloads it supports. It derives its knobs (tuning
parameters, such as tile sizes) from the loop structure and the target. It lowers a schedule, a
value for each knob, to a loop nest.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, TypeVar

from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob, SubSpace

FALLBACK = 0.0
"""Preference of a template that is correct for any workload, but fast only for a few."""

LAST = -1.0
"""Preference of the template that accepts any workload, but is not fast for any."""

Found = TypeVar("Found")
"""Type of the structure that a template recognises in a workload."""

Allowed = Callable[[Found, Mode, Mapping[str, Choice]], bool]
"""Returns whether an assignment of the knobs is allowed, given the workload's structure and the
mode."""


def always_allowed(found: Any, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    """Accept every assignment: the default constraint of a template."""
    return True


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Template(Generic[Found]):
    """A method to build loop nests for a kind of workload (a fused subgraph), such as convolutions.

    A schedule has a value for each of the template's knobs (tuning parameters), such as tile sizes.
    A mode is the target with the options of code generation.

    Attributes:
        algorithms: names of the algorithms that its schedules may select.
        analyse: returns the structure of a workload, which the following functions take; None if
            the template does not support the workload.
        preference: returns a number. Without measurements, the template with the largest number is
            tried first.
        knobs: returns the knobs. If a knob has no values, the template has no schedules.
        default: returns the schedule of an untuned workload, from structure, mode and knobs; None
            if no schedule is valid.
        lower: builds the kernel of a schedule; raises ScheduleError if the schedule is invalid.
        form: whether a choice of knob values is valid on any machine: the loops fit together, and
            the code is small enough to compile.
        machine: whether a choice of knob values suits the target: it has enough registers and
            cache, and little work is wasted in partial tiles.
        any_rows: returns a schedule for a matrix product with any number of rows, or None. The last
            argument states how the schedule is used: by one kernel with a dynamic number of rows
            (true), or by a separate kernel for each number of rows (false). The attribute is None
            if the template has no such schedules.
        transforms: whether the template replaces the workload's operations by others, as Winograd's
            algorithm does. Their rounding differs, so that strict numerics excludes the template.
        mixes: whether the template adds values of different rows or columns, as Strassen's
            algorithm does. Errors are then relative to the largest element of a whole matrix, not
            of a row or column (Higham, Accuracy and Stability of Numerical Algorithms, 23.2.2).
    """

    algorithms: tuple[str, ...]
    analyse: Callable[[Workload], Found | None]
    preference: Callable[[Found, Mode], float]
    knobs: Callable[[Found, Mode], tuple[Knob, ...]]
    default: Callable[[Found, Mode, tuple[Knob, ...]], Schedule | None]
    lower: Callable[[Found, Schedule, Mode], Kernel]
    form: Allowed[Found] = always_allowed
    machine: Allowed[Found] = always_allowed
    any_rows: Callable[[Found, Mode, bool], Schedule | None] | None = None
    transforms: bool = False
    mixes: bool = False

    def space(self, workload: Workload, mode: Mode) -> SubSpace | None:
        """Return the template's schedules for a workload.

        The result is None if the template does not apply or has no schedule in this mode. It is
        also None if the template would change the rounding and the mode requires strict numerics.
        """
        found = self._found(workload, mode)
        if found is None:
            return None
        knobs = self.knobs(found, mode)
        default = self.default(found, mode, knobs) if all(k.values for k in knobs) else None
        if default is None:
            return None
        form, machine = partial(self.form, found, mode), partial(self.machine, found, mode)
        return SubSpace(default.algorithm, knobs, form, default, machine)

    def kernel(self, workload: Workload, schedule: Schedule, mode: Mode) -> Kernel:
        """Lower a workload with a schedule to a kernel.

        Raises:
            ScheduleError: if the template does not apply, or the schedule does not fit.
        """
        found = self.analyse(workload)
        if found is None:
            raise ScheduleError(f"'{schedule.algorithm}' does not apply to this workload")
        return self.lower(found, schedule, mode)

    def any_rows_schedule(
        self, workload: Workload, mode: Mode, is_dynamic: bool
    ) -> Schedule | None:
        """Return a schedule for a matrix product with any number of rows.

        If `is_dynamic` is true, one kernel with a dynamic number of rows uses the schedule.
        Otherwise, a separate kernel for each number of rows uses it. The result is None if the
        template does not support the workload or has no such schedule.
        """
        if self.any_rows is None or (found := self._found(workload, mode)) is None:
            return None
        return self.any_rows(found, mode, is_dynamic)

    def preference_of(self, workload: Workload, mode: Mode) -> float | None:
        """Return the template's preference for a workload (`preference`).

        The template with the largest preference is tried first. The result is None if the template
        does not apply, or if it would change the rounding and the mode requires strict numerics.
        """
        found = self._found(workload, mode)
        return None if found is None else self.preference(found, mode)

    def _found(self, workload: Workload, mode: Mode) -> Found | None:
        left_out = self.transforms and mode.numerics == "strict"
        return None if left_out else self.analyse(workload)


@cache
def templates() -> tuple[Template[Any], ...]:
    """Return all templates, in the order of their modules' names."""
    found: list[Template[Any]] = []
    for module in pkgutil.iter_modules(__path__):
        template = getattr(importlib.import_module(f"{__name__}.{module.name}"), "TEMPLATE", None)
        if template is not None:
            found.append(template)
    return tuple(found)


def template_of(algorithm: str) -> Template[Any]:
    """Return the template whose `algorithms` include the algorithm with this name.

    Raises:
        ScheduleError: if no template has the algorithm.
    """
    for template in templates():
        if algorithm in template.algorithms:
            return template
    raise ScheduleError(f"no template has an algorithm '{algorithm}'")
