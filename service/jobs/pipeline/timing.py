"""Times a model with its tuned schedules on a device, and compares it with the untuned program."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.program.kernels import ScheduleSource
from tilewright.service.jobs.device.device import Device
from tilewright.service.jobs.device.loadables import of_compiled
from tilewright.service.jobs.evidence.end_to_end import FixedSchedules
from tilewright.service.jobs.plan.planning import Planned
from tilewright.tuner.measure.statistics import Comparison


@dataclass(frozen=True, slots=True)
class ModelTiming:
    """The time of a program with tuned schedules, and its speed-up over the untuned program.

    Attributes:
        seconds: the fastest run of the tuned program.
        untuned: the ratio of the untuned program's time to the tuned program's time, from pairs of
            runs.
    """

    seconds: float
    untuned: Comparison


def time_model(served: Planned, schedules: ScheduleSource, device: Device) -> ModelTiming:
    """Time a program with given schedules, interleaved with the untuned program of the same
    plan.

    Args:
        served: the plan of the model.
        schedules: the tuned schedules.
        device: the device that runs the programs.

    Raises:
        CompilerError: if a workload does not compile.
        DeviceError: if the device cannot run the programs.
    """
    builder = ProgramBuilder(schedules, served.mode)
    builder.reserve([served.served_plan], spare=2)
    programs = [
        [of_compiled(one) for one in served.programs(each.build(served.served_plan))]
        for each in (builder, builder.variant(FixedSchedules({})))
    ]
    race = device.race(programs, served.mode.threads)
    return ModelTiming(race.incumbent_seconds, race.comparisons[0])
