"""The back end of CPUs: LLVM IR, object code, and shared libraries."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from tilewright.compiler.codegen import link, object, out_of_process
from tilewright.compiler.codegen.backend import Backend, KernelCode, Library, StageCode
from tilewright.compiler.codegen.cpu.lower import (
    lower_nest,
    scratch_layout,
    stage_extent,
    stage_symbol,
)
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings, timed

_UNPROVEN = ("half", "bfloat")
"""LLVM's names of the types whose code is compiled in a separate process, because instruction
selection may abort or hang. This depends on the target and on surrounding operations: masked
vectors of 8 bfloat16 elements failed on Neoverse V1. For all other types, every operation was
tested to compile on every described target."""


class CpuBackend:
    """The back end of CPUs: implements `Backend` with LLVM, a linker and the modules of this
    folder."""

    def lower(self, nest: LoopNest, target: Target) -> KernelCode:
        sizes = nest.sizes
        text = lower_nest(nest, target, sizes)
        digest = hashlib.sha256(f"{target.key}\n{text}".encode()).hexdigest()
        name = f"tw_{digest[:24]}"
        # All stages are renamed in one pass: a concatenation has as many stages as pieces.
        text = text.replace(f"@{nest.name}_s", f"@{name}_s")
        stages = tuple(
            StageCode(stage_symbol(name, number), stage_extent(stage))
            for number, stage in enumerate(nest.stages)
        )
        return KernelCode(name, text, digest, stages, scratch_layout(nest)[1], sizes)

    def compile(self, text: str, target: Target, timings: Timings | None = None) -> bytes:
        if not _is_unproven(text):
            return object.emit_object(text, target, timings)
        with timed(timings, "LLVM codegen"):
            return out_of_process.emit_object(text, target)

    def assembly(self, text: str, target: Target) -> str:
        emit = out_of_process.emit_assembly if _is_unproven(text) else object.emit_assembly
        return emit(text, target)

    def link(self, objects: Sequence[bytes], output: str | Path) -> None:
        link.link_shared(objects, output)

    def load(self, objects: Sequence[bytes]) -> Library:
        return object.load_objects(objects)


def _is_unproven(text: str) -> bool:
    return any(name in text for name in _UNPROVEN)


BACKEND: Backend = CpuBackend()
