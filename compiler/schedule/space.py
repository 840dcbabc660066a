"""The schedule space of a workload: its valid schedules, grouped by algorithm.

Constraints exclude schedules that would be slow on the target, for example because they need too
many registers. `unconstrained` removes these constraints. The space then has every schedule that
lowers, for a search that does not rely on the description of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from tilewright.compiler.schedule.schedule import Choice, Schedule


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter of a schedule: its name, and its values, ordered so that neighbours are
    similar."""

    name: str
    values: tuple[Choice, ...]

    def with_value(self, value: Choice) -> Knob:
        """Return the knob with an additional value.

        If all values are integers, they stay sorted. Otherwise, the new value is appended.
        """
        if value in self.values:
            return self
        values = (*self.values, value)
        numbers = all(type(each) is int for each in values)
        return Knob(self.name, tuple(sorted(values)) if numbers else values)


Constraint = Callable[[Mapping[str, Choice]], bool]
"""Returns whether an assignment of the knobs belongs to the schedule space."""


def always_true(choice: Mapping[str, Choice]) -> bool:
    """Return true for every assignment of values to knobs: the constraint of an unconstrained
    space.
    """
    return True


@dataclass(frozen=True)
class SubSpace:
    """The schedules of one algorithm.

    An assignment gives each knob (tuning parameter) one of its values.

    Attributes:
        algorithm: name of the algorithm.
        knobs: its knobs, each with all its values.
        constraint: whether an assignment is valid on any machine: loops fit together, and the code
            is small enough to compile.
        default: the schedule of an untuned workload. It is always one of the valid schedules, even
            if `machine` rejects it, which happens for tiny workloads.
        machine: whether an assignment suits the target: it has enough registers and cache, and
            little work is wasted in partial tiles.
    """

    algorithm: str
    knobs: tuple[Knob, ...]
    constraint: Constraint
    default: Schedule
    machine: Constraint = always_true

    def unconstrained(self) -> SubSpace:
        """Return the same schedules without the constraint `machine`."""
        return replace(self, machine=always_true)

    @cached_property
    def points(self) -> tuple[Schedule, ...]:
        """All valid schedules, including the default, in the order of the knobs' values."""
        names, default = [knob.name for knob in self.knobs], dict(self.default.choices)
        return tuple(
            Schedule.of(self.algorithm, **assignment)
            for values in product(*[knob.values for knob in self.knobs])
            if self._takes(assignment := dict(zip(names, values, strict=True)))
            or assignment == default
        )

    def __contains__(self, schedule: Schedule) -> bool:
        """Whether a schedule is one of `points`, without enumerating them."""
        if schedule == self.default:
            return True
        choice = dict(schedule.choices)
        return (
            schedule.algorithm == self.algorithm
            and choice.keys() == {knob.name for knob in self.knobs}
            and all(choice[knob.name] in knob.values for knob in self.knobs)
            and self._takes(choice)
        )

    def _takes(self, choice: Mapping[str, Choice]) -> bool:
        return self.constraint(choice) and self.machine(choice)


@dataclass(frozen=True)
class ScheduleSpace:
    """All schedules of a workload on a target: one `SubSpace` per algorithm.

    The first subspace is that of the default schedule's algorithm.
    """

    subspaces: tuple[SubSpace, ...]

    @cached_property
    def points(self) -> tuple[Schedule, ...]:
        return tuple(point for space in self.subspaces for point in space.points)

    def default(self) -> Schedule:
        """Return the schedule of a workload that has not been tuned."""
        return self.subspaces[0].default

    def unconstrained(self) -> ScheduleSpace:
        """Return the space without the constraints `machine`; its default is unchanged."""
        return ScheduleSpace(tuple(space.unconstrained() for space in self.subspaces))

    def starting_with(self, default: Schedule) -> ScheduleSpace:
        """Return the space with another default schedule, whose algorithm is added if necessary.

        The default's values are added to the knobs of its algorithm. If the default has no value
        for a knob, it gets the knob's first value. The default may lack a knob if it was chosen for
        other sizes of the workload. For example, the knob that divides a sum among threads exists
        only for few rows.
        """
        own = [s for s in self.subspaces if s.algorithm == default.algorithm]
        others = [s for s in self.subspaces if s.algorithm != default.algorithm]
        knobs = tuple(Knob(name, (value,)) for name, value in default.choices)
        first = own or [SubSpace(default.algorithm, knobs, always_true, default)]
        chosen = {knob.name: knob.values[0] for space in first for knob in space.knobs}
        chosen |= dict(default.choices)
        default = Schedule.of(default.algorithm, **chosen)
        return ScheduleSpace(
            (
                *(
                    replace(
                        space,
                        default=default,
                        knobs=tuple(knob.with_value(chosen[knob.name]) for knob in space.knobs),
                    )
                    for space in first
                ),
                *others,
            )
        )

    def __contains__(self, schedule: Schedule) -> bool:
        return any(schedule in space for space in self.subspaces)

    def __len__(self) -> int:
        return sum(len(space.points) for space in self.subspaces)

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self.points)
