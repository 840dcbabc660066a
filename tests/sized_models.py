"""Models of several sizes, of programs that tests make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel, unsegmented
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import ModelPorts, Sizes
from tilewright.compiler.runtime.segments import (
    LiveIn,
    LiveIns,
    ModelSegment,
    SegmentBoundary,
    SegmentGuard,
)
from tilewright.compiler.sizes import Dimension


def sized_model(
    ports: ModelPorts,
    make: Callable[[Sizes], Executable],
    served: Sequence[Sizes] | None = None,
    ranges: Mapping[str, Dimension] | None = None,
    ranged: Executable | None = None,
    reason: str = "",
    own: Collection[Sizes] = (),
) -> GuardedModel:
    """A model that is not cut. `make` gives the program for sizes, when they are first needed; the
    rest is as of `unsegmented`."""

    def made(
        cut: SegmentBoundary[Executable], facts: SegmentGuard, values: Mapping[str, Array]
    ) -> ModelSegment[Executable]:
        program = make(tuple(sorted(facts.sizes)))
        stage = cut.made[facts] = ModelSegment(program, tuple(ports.outputs), None)
        return stage

    crossings = tuple(
        LiveIn(name, "", DType.FLOAT32, dims, deciding=False) for name, dims in ports.inputs.items()
    )
    reads = LiveIns(crossings, ranges or {})
    return GuardedModel(ports, unsegmented(reads, ports, ranged, served, own, reason), made)
