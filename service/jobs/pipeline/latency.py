"""Measures the latency of a model at its size hints (expected sizes), untuned and tuned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.program.kernels import KernelCache
from tilewright.service.jobs.device.device import Device, DeviceError, Variant
from tilewright.service.jobs.device.loadables import of_compiled
from tilewright.service.jobs.evidence.end_to_end import FixedSchedules, SelectedSchedules, Served
from tilewright.service.jobs.plan.planning import Planned
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.measurement import Sizes

log = structlog.get_logger("tilewright.latency")

MOST_TIMED = 4
"""Limit of the sizes that are timed one by one. The race of each size takes seconds."""


@dataclass(frozen=True, slots=True)
class Latency:
    """The time of one run of a model at some sizes, untuned and with the selected schedules.

    Attributes:
        sizes: the sizes of the dynamic dimensions.
        before_seconds: the time of the untuned program.
        after_seconds: the time of the program with the selected schedules.
        low: the lower end of the confidence interval of `after_seconds`; None if all selected
            schedules are defaults, so that the two programs are the same.
        high: the upper end of the interval; None if `low` is None.
    """

    sizes: Sizes
    before_seconds: float
    after_seconds: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, sizes: Sizes, untuned_seconds: float, served: Comparison | None) -> Latency:
        """Compute the latency from the time of the untuned program and a ratio of times.

        Args:
            sizes: the sizes of the dynamic dimensions.
            untuned_seconds: the time of the untuned program.
            served: the time of the program with the selected schedules, divided by the time of the
                untuned program; None if the two programs are the same.
        """
        if served is None:
            return cls(sizes, untuned_seconds, untuned_seconds)
        ratio, interval = served.ratio, served.interval
        return cls(
            sizes,
            untuned_seconds,
            untuned_seconds * ratio,
            untuned_seconds * interval.low,
            untuned_seconds * interval.high,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "sizes": dict(self.sizes),
            "before_seconds": self.before_seconds,
            "after_seconds": self.after_seconds,
            "low_seconds": self.low,
            "high_seconds": self.high,
        }


def latencies(
    selected: SelectedSchedules,
    device: Device,
    kernels: KernelCache | None = None,
    weight_limit_bytes: int | None = None,
) -> tuple[Latency, ...]:
    """Measure the latency of a model at each of the first `MOST_TIMED` size hints (expected sizes).

    The schedules were selected by a race, an interleaved timing of the tuned and the untuned
    program. With one size, the race has already measured the latency. With several sizes, the race
    timed all sizes together. So the two programs are then timed again at each size.

    Args:
        selected: the selected schedules of the model.
        device: the device that runs the programs.
        kernels: the cache of compiled kernels.
        weight_limit_bytes: the limit of the packed weights; None for no limit.

    Returns:
        the latencies; empty if the device does not run the model.

    Raises:
        CompilerError: if a program does not compile.
    """
    first, verdict = selected.planned[0], selected.verdict
    sizes = _sizes(selected.planned)
    if len(sizes) == 1 and verdict.untuned_seconds is not None:
        served = None if verdict.served is Served.DEFAULT else verdict.comparison
        return (Latency.of(sizes[0], verdict.untuned_seconds, served),)
    if not device.runs(first.target):
        return ()
    builder = ProgramBuilder(FixedSchedules({}), first.mode, weight_limit_bytes, kernels=kernels)
    builders = [builder]
    if selected.records:
        builders.append(builder.variant(selected.schedules))
    builder.reserve([each.served_plan for each in selected.planned], spare=len(builders))
    found = []
    try:
        for at, variants in _variants(selected.planned, builders):
            race = device.race(variants, first.mode.threads)
            compared = race.comparisons[0] if race.comparisons else None
            found.append(Latency.of(at, race.incumbent_seconds, compared))
    except DeviceError as error:
        # the latencies only inform the user, and the job continues without them
        log.warning("not timed", reason=str(error))
    return tuple(found)


def _sizes(planned: Sequence[Planned]) -> list[Sizes]:
    """Return the sizes that are timed separately.

    A model with data-dependent sizes runs as several programs, which are timed together. For such a
    model, the only entry is empty.
    """
    if planned[0].stages is not None:
        return [()]
    return [
        at
        for each in planned
        for at in ([each.sizes] if each.open is None else [d.sizes for d in each.open.drawn])
    ]


def _variants(
    planned: Sequence[Planned], builders: Sequence[ProgramBuilder]
) -> Iterator[tuple[Sizes, list[Variant]]]:
    """Yield (sizes, compiled programs) for each of the first MOST_TIMED sizes of a model.

    A program is compiled when its size is reached.

    Args:
        planned: the plans of the model.
        builders: compile the model, each with other schedules; each size has a program per builder.
    """
    sizes = iter(_sizes(planned)[:MOST_TIMED])
    if planned[0].stages is not None:
        made = [
            [of_compiled(one) for p in planned for one in p.programs(b.build(p.served_plan))]
            for b in builders
        ]
        yield next(sizes), list[Variant](made)
        return
    for each in planned:
        programs = [each.programs(builder.build(each.served_plan)) for builder in builders]
        for together, at in zip(zip(*programs, strict=True), sizes, strict=False):
            yield at, [[of_compiled(program)] for program in together]
