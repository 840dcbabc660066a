"""The function `compile_model`, by which programs compile an ONNX model for this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.compiler.dtypes import DType
from tilewright.compiler.mode import Mode
from tilewright.compiler.options import CompileOptions
from tilewright.compiler.runtime.model import Model
from tilewright.compiler.specialise.store import CompilationCache, user_cache_folder
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
    """Compile an ONNX model for this machine, and return the compiled model.

    `CompileOptions` documents the options. A dimension that stays dynamic has a range of sizes: the
    range in `dims`, or 1 to 4096 by default. If the same code suits all sizes in the ranges, one
    program serves them all. Otherwise, the ranges are split into intervals with separate programs.
    At first, only the program for the typical sizes (the size hints) is compiled. Every other
    program is compiled when a run first needs it, and is then kept in memory. This includes
    programs for sizes outside a default range.

    If a tensor size or a branch depends on computed data, the model is divided into segments after
    the node that computes that data. A run then executes one program per segment.

    Args:
        model: a path, the bytes of a model, or a ModelProto.
        keep: whether to use the compilation cache, which the processes of this machine share
            (`CompilationCache`).

    Raises:
        CompilerError: if the model or an option is invalid or unsupported; the message names the
            reason.
    """
    options = CompileOptions(
        Mode(resolve_target(target), threads, numerics, precision),
        dims or {},
        schedules,
        weight_limit_bytes,
        timings,
        planner,
    )
    return CompilationCache(user_cache_folder() if keep else None).compile(model, options)
