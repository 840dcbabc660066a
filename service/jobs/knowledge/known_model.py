"""Compiles a model in this process with the tuned schedules of a database.

storage = open_storage(Settings())
known = KnownModel("model.onnx", storage)
executable = known.compile()
known.selected[0].verdict       # whether tuned schedules are used, and why
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.compiler import driver
from tilewright.compiler.frontend.dimensions import model_ports
from tilewright.compiler.frontend.model_file import read_model
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.options import CompileOptions
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.runtime.model import Model
from tilewright.compiler.runtime.ports import Sizes
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.sizes.hinted_ranges import Shares, as_hinted, hinted_shares
from tilewright.compiler.sizes.ranges import SizeRange
from tilewright.db.storage import Storage
from tilewright.service.jobs.evidence.end_to_end import SelectedSchedules, select_schedules
from tilewright.service.jobs.plan.planning import (
    DynamicPlan,
    ModelRequest,
    Planned,
    model_digest,
    planned_for_ranges,
    profiled,
)


@dataclass(slots=True)
class KnownModel:
    """Compiles one model for this machine with the tuned schedules of a database.

    If the model has dynamic dimensions, one program supports all sizes within their ranges. A
    separate program is compiled for each combination of sizes at which a job tuned the model, and
    for each combination outside the ranges, at its first use. The schedules of each program are
    selected by `end_to_end.select_schedules`. If several programs share a kernel, the kernel has
    the schedule of the program that was compiled first.

    Attributes:
        model: an ONNX file, or its bytes.
        storage: the database.
        mode: the mode in which code is generated.
        selected: for each compiled program, its schedules and why they were selected. The attribute
            `planned` of each entry is empty, to free memory.
    """

    model: str | Path | bytes
    storage: Storage
    mode: Mode = field(default_factory=Mode)
    selected: list[SelectedSchedules] = field(default_factory=list, init=False)
    _schedules: dict[str, Schedule | None] = field(default_factory=dict, init=False)
    _source: Path | bytes = field(init=False)
    _digest: str = field(default="", init=False)
    _given: frozenset[str] = field(default=frozenset(), init=False)
    """Names of the dimensions for which the caller gave sizes or ranges."""
    _shares: Shares = field(default_factory=dict, init=False)
    """Size hints from the caller, by dimension, with the fraction of runs for each hint."""

    def __post_init__(self) -> None:
        self._source = Path(self.model) if isinstance(self.model, str) else self.model

    def compile(
        self, dims: Mapping[str, SizeRange] | None = None, into: Path | None = None
    ) -> Model:
        """Compile the model like `tilewright.compile_model`, with the schedules of the database.

        Args:
            dims: the size or range of each named dimension.
            into: the folder for an artifact. An artifact is written only if the model has a single
                program (`tilewright.compiler.driver.compile_with`).

        Raises:
            CompilerError: if the model or an argument is invalid; the message says what is wrong.
        """
        self._shares = hinted_shares({name: [size] for name, size in (dims or {}).items()})
        self._given = frozenset(
            n for n, size in (dims or {}).items() if as_hinted(n, size).dimension is not None
        )
        return driver.compile_with(
            self._source,
            CompileOptions(
                self.mode,
                dims=dims or {},
                schedules=self,
                planner=self._plan,
                own_sizes=self._tuned_sizes(dims or {}),
            ),
            into,
        )

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        """Return the schedule that was selected for a workload (a fused subgraph), or None.

        None stands for the default schedule. It is also the result before the program of the
        workload is planned, because planning selects the schedules. This method implements
        `tilewright.compiler.program.kernels.ScheduleSource`.

        Args:
            workload_key: the key of the workload.
            mode: not used; all schedules of a `KnownModel` are for one mode.
        """
        return self._schedules.get(workload_key)

    def _tuned_sizes(self, dims: Mapping[str, SizeRange]) -> list[Sizes]:
        """Return the sizes of dynamic dimensions at which jobs tuned this model.

        If `dims` fixes dimensions, only jobs with the same sizes of these dimensions count. The
        fixed dimensions are left out of the result.
        """
        given = {n: d for n, d in dims.items() if isinstance(d, int)}
        known = self.storage.tuned_sizes.list(self._model_digest(), self.mode)
        return [
            tuple(sorted((name, size) for name, size in each.items() if name not in given))
            for each in known
            if given.items() <= each.items() and len(each) > len(given)
        ]

    def _model_digest(self) -> str:
        if not self._digest:
            self._digest = model_digest(self._source)
        return self._digest

    def _plan(self, graph: Graph, sizes: Mapping[str, int] | None) -> GraphPlan:
        """Plan a program of the model and select its schedules, which `best` then returns."""
        digest = self._model_digest()
        dims = dict(sizes or {})
        request = ModelRequest(self._source, self.mode, dims, digest)
        plan = driver.make_plan(driver.optimise(graph, self.mode), self.mode)
        if graph.dimensions:
            ports = model_ports(read_model(self._source).proto.graph)
            free = [d for d in graph.dimensions if d.name not in self._given]
            known = {d.name for d in graph.dimensions}
            shares = {name: each for name, each in self._shares.items() if name in known}
            open_plan = profiled(DynamicPlan(plan, graph, graph.dimensions), ports, free, shares)
            planned = planned_for_ranges(request, open_plan)
        else:
            planned = Planned(request, graph, plan)
        selected = select_schedules([planned], self.storage)
        (served,) = selected.planned
        for workload, _ in served.workloads:
            schedule = selected.schedules.best(workload.key, self.mode)
            self._schedules.setdefault(workload.key, schedule)
        # the graphs are dropped, because they contain the model's weights
        self.selected.append(replace(selected, planned=()))
        return served.served_plan
