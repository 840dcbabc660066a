"""Known times of a target's kernels and relayouts, and layout costs made from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.layout import ROW_MAJOR
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.choices import GraphChoice
from tilewright.compiler.plan.fusion import Group
from tilewright.compiler.plan.layouts.costs import WEIGHT_MACS
from tilewright.compiler.plan.layouts.options import ESTIMATES, Option, Options
from tilewright.compiler.plan.placement import Placement, same_bytes
from tilewright.compiler.plan.workload import Boundary, Workload, make_workload
from tilewright.compiler.schedule.problem import anchor
from tilewright.compiler.schedule.select import untuned_schedules
from tilewright.tuner.graph.planner import operations
from tilewright.tuner.measure.measurement import RecordKey
from tilewright.tuner.store import RecordStore

COPY = "copy"
"""The kind of relayouts."""


def kind_of(workload: Workload) -> str:
    """The kind of a workload, within which times are compared: its anchor's operator, if any."""
    return _kind(anchor(workload), workload.operators)


def _kind(main: Node | None, operators: Sequence[str]) -> str:
    if main is not None:
        return main.op
    return COPY if tuple(operators) == ("identity",) else "elementwise"


class Ratio:
    """The ratio of seconds to what was expected, of each kind of kernel and of all kinds."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, kind: str, seconds: float, expected: float) -> None:
        """Count one kernel in."""
        for name in (kind, ""):
            known = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = known[0] + seconds, known[1] + expected

    def known(self, kind: str = "") -> float | None:
        """The ratio of a kind, or of all kinds without a name; None if nothing is known of it."""
        seconds, expected = self._sums.get(kind, (0.0, 0.0))
        return seconds / expected if seconds and expected else None

    def of(self, kind: str) -> float:
        """The ratio of a kind; else that of all kinds, else 1."""
        return self.known(kind) or self.known() or 1.0


class KernelTimes:
    """Seconds of kernels, from the store of records and trials.

    A kernel with a record takes the time of the record. One with an untuned default takes the time
    that tuning will probably leave, by the gain of kernels of its kind that have both: so tuned
    kernels and others can be added up. A kernel that was never measured is estimated from its
    operations, at the rate of its kind. Kernels that differ in numbers alone (`Workload.family`)
    take the same time.
    """

    def __init__(
        self,
        store: RecordStore,
        mode: Mode,
        codegen_version: str,
    ) -> None:
        self._store = store
        self._mode = mode
        self._version = codegen_version
        self._best: dict[Workload, float | None] = {}
        self._default: dict[Workload, float | None] = {}
        self._relatives: dict[str, Workload] = {}
        self._gains = Ratio()
        self._rates = Ratio()

    def load(self, workloads: Sequence[Workload], *, again: bool = False) -> None:
        """Read what the store knows of these; with `again`, also of those without a time so far."""
        for workload in workloads:
            if workload in self._best and not (again and not self.is_known(workload)):
                continue
            key = RecordKey(workload.key, *self._mode.key)
            record = self._store.best_record(key)
            current = record is not None and record.codegen_version == self._version
            best = record.run_seconds if record is not None and current else None
            default = self._default_seconds(workload, key)
            self._best[workload], self._default[workload] = best, default
            if best is not None or default is not None:
                self._relatives.setdefault(workload.family, workload)
            kind = kind_of(workload)
            if best is not None and default is not None:
                self._gains.add(kind, best, default)
            if best is not None or default is not None:
                self._rates.add(kind, best or default or 0.0, operations(workload))

    def is_known(self, workload: Workload) -> bool:
        """Whether it or a relative was measured, be it tuned or not."""
        return self._times(workload) != (None, None)

    def measured(self, workload: Workload) -> float | None:
        """Seconds of one run, of it or of a relative; None if it was never measured."""
        best, default = self._times(workload)
        if best is not None:
            return best
        return None if default is None else default * self._gains.of(kind_of(workload))

    def seconds(self, workload: Workload) -> float:
        """Seconds of one run, measured or estimated."""
        known = self.measured(workload)
        if known is not None:
            return known
        return operations(workload) * self._rates.of(kind_of(workload))

    def total(self, counts: Mapping[Workload, int]) -> float:
        """Seconds of all these kernels, one after the other."""
        return sum(count * self.seconds(workload) for workload, count in counts.items())

    def bare(self) -> dict[Workload, float]:
        """The fastest time measured of each workload, by the workload without halos."""
        found: dict[Workload, float] = {}
        for workload in self._best:
            seconds = self.measured(workload)
            if seconds is not None:
                bare = without_halos(workload)
                found[bare] = min(seconds, found.get(bare, seconds))
        return found

    def _times(self, workload: Workload) -> tuple[float | None, float | None]:
        """Seconds of the record and of the untuned default, as far as they are known."""
        if workload not in self._best:
            self.load([workload])
        own = self._best[workload], self._default[workload]
        if own != (None, None):
            return own
        relative = self._relatives.get(workload.family, workload)
        return self._best[relative], self._default[relative]

    def _default_seconds(self, workload: Workload, key: RecordKey) -> float | None:
        trials = self._store.trials(key)
        if not trials:
            return None
        default = next(untuned_schedules(workload, self._mode))
        times = [
            trial.measurement.run_seconds
            for trial in trials
            if trial.codegen_version == self._version
            and trial.schedule == default
            and not trial.withdrawn
        ]
        return min((seconds for seconds in times if seconds is not None), default=None)


def without_halos(workload: Workload) -> Workload:
    """The workload without halos, which hardly change its time."""
    inputs = tuple(replace(boundary, halo=()) for boundary in workload.inputs)
    return Workload(workload.graph, inputs, replace(workload.output, halo=()))


class MeasuredCosts:
    """Layout costs in seconds: measured kernels and relayouts, and estimates scaled to them.

    If an option was not measured, its cost is its estimate times a ratio of seconds to estimates:
    that of the group's other options, else of all groups of its kind, else of the whole graph. A
    relayout that was not measured takes the ratio of those that were.
    """

    def __init__(
        self,
        graph: Graph,
        groups: Sequence[Group],
        lanes: int,
        choice: GraphChoice,
        times: Mapping[Workload, float],
        weight_macs: float = WEIGHT_MACS,
    ) -> None:
        """`times` has seconds by workloads without halos, relayouts among them."""
        self._graph = graph
        self._times = times
        self._ratios = Ratio()
        self._own: dict[str, Ratio] = {}
        options = Options(graph, lanes, choice.copied, weight_macs)
        for group in groups:
            own = self._own[group.output] = Ratio()
            for option in options.of(group):
                seconds = self._measured(group, option)
                if seconds is not None and option.cost:
                    own.add(_kind_of_group(group), seconds, option.cost)
                    self._ratios.add(_kind_of_group(group), seconds, option.cost)
        for workload, seconds in times.items():
            if kind_of(workload) == COPY:
                ends = Placement(workload.inputs[0].layout), Placement(workload.output.layout)
                expected = ESTIMATES.copy(workload.output.type, *ends)
                if expected:
                    self._ratios.add(COPY, seconds, expected)

    def kernel(self, group: Group, option: Option) -> float:
        """Seconds of a group's kernel with this option."""
        if option.cost == 0.0:
            return 0.0  # a view, or a kernel that has no other option
        seconds = self._measured(group, option)
        if seconds is not None:
            return seconds
        own = self._own[group.output].known()
        return option.cost * (own or self._ratios.of(_kind_of_group(group)))

    def copy(self, kind: TensorType, source: Placement, target: Placement) -> float:
        """Seconds of a relayout; 0 if both placements are the same bytes."""
        if same_bytes(kind.shape, source, target):
            return 0.0
        seconds = self._times.get(relayout(kind, source, target))
        if seconds is not None:
            return seconds
        return ESTIMATES.copy(kind, source, target) * self._ratios.of(COPY)

    def _measured(self, group: Group, option: Option) -> float | None:
        if group.is_view or group.is_native or option.cost == 0.0:
            return None
        return self._times.get(self.cut(group, option))

    def cut(self, group: Group, option: Option) -> Workload:
        """The workload that a group would be with this option, without halos."""
        types = self._graph.types
        boundaries = {
            value: Boundary(types[value], wish.layout or ROW_MAJOR)
            for value, wish in option.choice.demands.items()
            if value not in self._graph.constants
        }
        boundaries[group.output] = Boundary(types[group.output], option.choice.output)
        return make_workload(self._graph, [node.name for node in group.nodes], boundaries)


def _kind_of_group(group: Group) -> str:
    return _kind(group.anchor, [node.op for node in group.nodes])


def relayout(kind: TensorType, source: Placement, target: Placement) -> Workload:
    """The workload that copies a value from one layout to another, without halos."""
    graph = Graph(
        "relayout",
        ("x",),
        ("y",),
        (Node("y", "identity", ("x",), ("y",), ()),),
        {"x": kind, "y": kind},
        {},
    )
    ends = {"x": Boundary(kind, source.layout), "y": Boundary(kind, target.layout)}
    return make_workload(graph, ["y"], ends)
