"""How a model is compiled for this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.compiler.mode import Mode

if TYPE_CHECKING:
    from typing import TypeAlias

    from tilewright.compiler.graph.ir import Graph
    from tilewright.compiler.plan.plan import GraphPlan
    from tilewright.compiler.program.kernels import KernelCache, ScheduleSource
    from tilewright.compiler.runtime.ports import Sizes
    from tilewright.compiler.sizes.ranges import SizeRange
    from tilewright.compiler.timings import Timings

    ModelPlanner: TypeAlias = Callable[[Graph, Mapping[str, int] | None], GraphPlan]
    """Makes the plan of an imported graph, given the sizes of the model's named dimensions; those
    with a range are the graph's. None is for a stage of a model that is cut."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How a model is compiled for this process.

    Attributes:
        mode: how code is generated; its target must be one that this machine can run.
        dims: sizes of named dimensions: a number, or a range such as "1..512", "32..640:32" or
            range(1, 513). The sizes that a run may have are within the range. Size hints may follow
            ("1..512@32,128") or stand alone ("@32"), which keep the default range: a default
            program does not depend on them, and a planner may ask for schedules at them.
        schedules: where tuned schedules are looked up; None compiles with the defaults.
        weight_limit_bytes: most memory that packed weights may take; algorithms that expand them
            (Winograd, Strassen) give way first.
        timings: counts the time of every stage.
        planner: makes the plans instead of the rules. It makes each plan before the schedules of
            that plan's workloads are looked up, and has a precision of its own.
        own_sizes: sizes of open dimensions that are compiled for their own sake when they are first
            met, though they are within the ranges.
        kernels: what other compilations of this process have compiled, and what this one adds.
    """

    mode: Mode = field(default_factory=Mode)
    dims: Mapping[str, SizeRange] = field(default_factory=dict)
    schedules: ScheduleSource | None = None
    weight_limit_bytes: int | None = None
    timings: Timings | None = None
    planner: ModelPlanner | None = None
    own_sizes: Collection[Sizes] = ()
    kernels: KernelCache | None = field(default=None, repr=False, compare=False)
