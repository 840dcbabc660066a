"""A model compiled in this process with what the database knows of it.

storage = open_storage(Settings())
known = KnownModel("model.onnx", storage)
executable = known.compile()
known.settled[0].verdict       # whether the tuned program is served, and why
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from compiler import driver
from compiler.dtypes import DType
from compiler.graph.ir import Graph
from compiler.plan import GraphPlan
from compiler.runtime.executable import Executable
from compiler.runtime.sized import SizedExecutable
from compiler.schedule.schedule import Schedule
from compiler.target import resolve_target
from db.storage import Storage
from service.jobs.known_plan import known_plan, model_digest
from service.jobs.no_regret import Settled, settle
from service.jobs.planning import ModelRequest, Planned


@dataclass(slots=True)
class KnownModel:
    """Plans and schedules of one model for this machine, settled size by size (`no_regret.settle`).

    Sizes of open dimensions are settled when they are first met. The race of a size decides for
    that size. A kernel that sizes share is that of the size that was met first.

    Attributes:
        settled: what was served, without the plans; one entry for each size that was compiled.
    """

    model: str | Path | bytes
    storage: Storage
    threads: int = 1
    numerics: str = "fast"
    precision: str = DType.FLOAT32
    settled: list[Settled] = field(default_factory=list, init=False)
    _schedules: dict[str, Schedule | None] = field(default_factory=dict, init=False)
    _source: Path | bytes = field(init=False)
    _digest: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._source = Path(self.model) if isinstance(self.model, str) else self.model

    def compile(self, dims: Mapping[str, int] | None = None) -> Executable | SizedExecutable:
        """Compile for sizes of named dimensions (`compiler.compile_model`).

        Raises:
            CompilerError: naming what is wrong with the model or the arguments.
        """
        return driver.compile_whole(
            self._source,
            threads=self.threads,
            dims=dims,
            schedules=self,
            numerics=self.numerics,
            precision=self.precision,
            planner=self._plan,
        )

    def best(
        self, workload_key: str, target_key: str, threads: int, numerics: str
    ) -> Schedule | None:
        """The schedule that is served (`compiler.program_builder.ScheduleSource`)."""
        return self._schedules.get(workload_key)

    def _plan(self, graph: Graph, sizes: Mapping[str, int]) -> GraphPlan:
        """The plan that is served; from now on `best` knows the schedules of its workloads."""
        if not self._digest:
            self._digest = model_digest(self._source)
        request = ModelRequest(
            self._source,
            "host",
            self.threads,
            self.numerics,
            sizes,
            self._digest,
            self.precision,
        )
        target = resolve_target("host")
        optimised = driver.optimise(graph, target, self.numerics, precision=self.precision)
        plan = driver.make_plan(optimised, target, self.numerics)
        planned = known_plan(Planned(request, graph, plan, target), self.storage)
        settled = settle([planned], self.storage)
        (served,) = settled.planned
        for workload, _ in served.workloads:
            schedule = settled.schedules.best(workload.key, target.key, self.threads, self.numerics)
            self._schedules.setdefault(workload.key, schedule)
        # the graphs go: a model's weights are in them
        self.settled.append(replace(settled, planned=()))
        return served.plan
