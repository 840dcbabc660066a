"""The way in for who has a model and wants to run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.compiler.dtypes import DType
from tilewright.compiler.mode import Mode
from tilewright.compiler.options import CompileOptions
from tilewright.compiler.runtime.model import Model
from tilewright.compiler.specialise.store import KeptModels, own_folder
from tilewright.compiler.targets.host import resolve_target

if TYPE_CHECKING:
    from tilewright.compiler.driver import ModelSource
    from tilewright.compiler.options import ModelPlanner
    from tilewright.compiler.program.kernels import ScheduleSource
    from tilewright.compiler.sizes.ranges import SizeRange
    from tilewright.compiler.timings import Timings


def compile_model(
    model: ModelSource,
    target: str = "host",
    threads: int = 1,
    dims: Mapping[str, SizeRange] | None = None,
    schedules: ScheduleSource | None = None,
    numerics: str = "fast",
    weight_limit_bytes: int | None = None,
    timings: Timings | None = None,
    planner: ModelPlanner | None = None,
    precision: str = DType.FLOAT32,
    *,
    keep: bool = True,
) -> Model:
    """Compile an ONNX model for this machine; what the options mean, `CompileOptions` says.

    If dimensions stay open, one program serves all sizes of their ranges; those without a range
    have 1 to 4096. If what the compiler does depends on a size, it splits the range there, and
    compiles the part that holds the size hints. Other parts, and sizes outside of a range that
    nobody gave, are compiled when a run first needs them, and kept.

    If the data decide a size, or a branch, that other nodes have to know, the model is cut there: a
    program runs from cut to cut.

    Args:
        model: a path, the bytes of a model, or a ModelProto.
        keep: whether other processes of this machine load what this one compiles, and this one what
            they did (`KeptModels`).

    Raises:
        CompilerError: naming what is wrong with the model or the options.
    """
    options = CompileOptions(
        Mode(resolve_target(target), threads, numerics, precision),
        dims or {},
        schedules,
        weight_limit_bytes,
        timings,
        planner,
    )
    return KeptModels(own_folder() if keep else None).compile(model, options)
