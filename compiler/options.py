"""How a model is compiled for this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.runtime.native import check_threads
from tilewright.compiler.targets.host import check_runs_here, resolve_target
from tilewright.compiler.targets.target import Target

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

NUMERICS = ("fast", "strict", "loose")

PRECISIONS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
"""What values between products are stored as, and products formed of."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How a model is compiled for this process.

    Attributes:
        target: `host`, or the name of a described target that this machine can run.
        threads: threads that a run uses, the calling one included.
        dims: sizes of named dimensions: a number, or a range such as "1..512", "32..640:32" or
            range(1, 513). The sizes that a run may have are within the range. Size hints may follow
            ("1..512@32,128") or stand alone ("@32"), which keep the default range: a default
            program does not depend on them, and a planner may ask for schedules at them.
        schedules: where tuned schedules are looked up; None compiles with the defaults.
        numerics: "strict" turns off algorithms that change rounding (Winograd, Strassen), "loose"
            lets the search use those that lose more than a digit (Winograd's F(6)).
        weight_limit_bytes: most memory that packed weights may take; algorithms that expand them
            (Winograd, Strassen) give way first.
        timings: counts the time of every stage.
        planner: makes the plans instead of the rules. It makes each plan before the schedules of
            that plan's workloads are looked up.
        precision: "bfloat16" or "float16" store the values of a float32 model between its first and
            its last product in 16 bits, and multiply them so; sums, normalisations, inputs and
            outputs stay float32. A planner has its own.
        own_sizes: sizes of open dimensions that are compiled for their own sake when they are first
            met, though they are within the ranges.
        kernels: what other compilations of this process have compiled, and what this one adds.
    """

    target: str = "host"
    threads: int = 1
    dims: Mapping[str, SizeRange] = field(default_factory=dict)
    schedules: ScheduleSource | None = None
    numerics: str = "fast"
    weight_limit_bytes: int | None = None
    timings: Timings | None = None
    planner: ModelPlanner | None = None
    precision: str = DType.FLOAT32
    own_sizes: Collection[Sizes] = ()
    kernels: KernelCache | None = field(default=None, repr=False, compare=False)

    def machine(self) -> Target:
        """The target. Raises CompilerError if it does not run here, or an option is impossible."""
        check_numerics(self.numerics)
        check_precision(self.precision)
        check_threads(self.threads)
        return check_runs_here(resolve_target(self.target))


def check_numerics(numerics: str) -> None:
    """Raises InvalidArgumentError unless it is one of NUMERICS."""
    if numerics not in NUMERICS:
        raise InvalidArgumentError(f"numerics is '{numerics}', known are {', '.join(NUMERICS)}")


def check_precision(precision: str) -> None:
    """Raises InvalidArgumentError unless it is one of PRECISIONS."""
    if precision not in PRECISIONS:
        raise InvalidArgumentError(f"precision is '{precision}', known are {', '.join(PRECISIONS)}")
