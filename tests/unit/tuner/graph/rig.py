"""Graphs with decisions in doubt, and a store of kernels whose times a test makes up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.graphs import Maker
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import untuned_schedules
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.tuner.graph.planner import operations
from tilewright.tuner.graph.times import KernelTimes
from tilewright.tuner.measure.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    Trial,
    TuningRecord,
    trial_id,
)
from tilewright.tuner.store import MemoryStore

TARGET = resolve_target("x86-64-v4")
VERSION = "v1"
CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
POINT = CONV | {"pads": (0, 0, 0, 0)}


def layers(count: int = 2) -> Graph:
    """Layers of one shape: a product, a GELU, and a product back that is added to what came in."""
    g = Maker()
    x = g.input("x", 64, 256)
    for layer in range(count):
        wide = g("matmul", x, g.weight(f"u{layer}", 256, 512), name=f"wide{layer}")
        active = g("gelu", wide, name=f"active{layer}")
        narrow = g("matmul", active, g.weight(f"v{layer}", 512, 256), name=f"narrow{layer}")
        x = g("add", narrow, x, name=f"sum{layer}")
    return g.graph(x)


def branches() -> Graph:
    """Two convolutions that are added up."""
    g = Maker()
    x = g.input("x", 1, 32, 28, 28)
    early = g("conv", x, g.weight("w0", 32, 32, 1, 1), name="early", **POINT)
    late = g("conv", x, g.weight("w1", 32, 32, 3, 3), name="late", **CONV)
    return g.graph(g("add", early, late))


@dataclass
class Rig:
    """A store, and how long kernels are made up to take, in seconds of their operations."""

    factor: Callable[[Workload], float] = lambda workload: 1.0
    target: Target = TARGET
    store: MemoryStore = field(default_factory=MemoryStore)
    asked: list[Workload] = field(default_factory=list)

    def key(self, workload: Workload) -> RecordKey:
        return RecordKey(workload.key, self.target.key)

    def times(self) -> KernelTimes:
        return KernelTimes(self.store, Mode(self.target), VERSION)

    def measure(self, workloads: Sequence[Workload]) -> None:
        """Measure untuned defaults, as the search asks for it."""
        self.asked += workloads
        for workload in workloads:
            self.trial(workload, 1e-9 * operations(workload) * self.factor(workload))

    def default(self, workload: Workload) -> Schedule:
        return next(untuned_schedules(workload, Mode(self.target)))

    def trial(self, workload: Workload, seconds: float, version: str = VERSION) -> None:
        schedule, key = self.default(workload), self.key(workload)
        name = trial_id(key, schedule.digest, Phase.SCREEN, version)
        measured = Measurement(Status.OK, samples_seconds=(seconds,))
        self.store.add_trials([Trial(name, key, schedule, measured, codegen_version=version)])

    def record(self, workload: Workload, seconds: float, version: str = VERSION) -> None:
        measured = Measurement(Status.OK, samples_seconds=(seconds,))
        self.store.add_record(
            TuningRecord(
                self.key(workload), self.default(workload), measured, codegen_version=version
            )
        )
