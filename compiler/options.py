"""Options of a compilation whose result runs on this machine."""

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
    """Computes the plan of an imported graph, given the fixed sizes of the model's named
    dimensions; dimensions with a range are dynamic in the graph. The sizes are None for a segment
    of a segmented model."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of a compilation whose result runs in this process.

    Attributes:
        mode: how code is generated; its target must be one that this machine can run.
        dims: the size of each named dimension: a number, or a range of the sizes that runs may use.
            A range is text such as "1..512" or "32..640:32" (multiples of 32), or range(1, 513).
            Size hints, the typical sizes, may follow a range ("1..512@32,128"). Hints alone ("@32")
            keep the default range. Code with default schedules does not depend on hints; a planner
            may look up schedules that were tuned for them.
        schedules: the source of tuned schedules; None compiles with the default schedules.
        weight_limit_bytes: maximum memory of packed weights. To stay below it, algorithms that
            enlarge weights (Winograd, Strassen) are replaced by others.
        timings: records the time of each compilation stage.
        planner: a function that returns the plan of a graph (its kernels and their memory layouts),
            and also decides the precision. It replaces `optimise` and `make_plan`, and is called
            before tuned schedules are looked up for the kernels.
        own_sizes: combinations of sizes that get their own program with fixed sizes on first use,
            although the program for the ranges could serve them.
        kernels: a cache of kernels, shared with other compilations of this process.
    """

    mode: Mode = field(default_factory=Mode)
    dims: Mapping[str, SizeRange] = field(default_factory=dict)
    schedules: ScheduleSource | None = None
    weight_limit_bytes: int | None = None
    timings: Timings | None = None
    planner: ModelPlanner | None = None
    own_sizes: Collection[Sizes] = ()
    kernels: KernelCache | None = field(default=None, repr=False, compare=False)
