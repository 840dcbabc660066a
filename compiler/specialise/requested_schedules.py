"""Recording of the schedules that a source returns while a model is compiled.

The compilation cache uses the record to find out whether a cached model is still current.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

from tilewright.compiler.errors import ArtifactError

if TYPE_CHECKING:
    from tilewright.compiler.mode import Mode
    from tilewright.compiler.program.kernels import ScheduleSource
    from tilewright.compiler.schedule.schedule import Schedule


Answers: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of a workload key and the schedule that a source returned for it, as text. The text is
empty if the source has no schedule."""


class RequestedSchedules:
    """A `ScheduleSource` that queries another source and records its results.

    Args:
        source: the source to query.
    """

    def __init__(self, source: ScheduleSource) -> None:
        self._source = source
        self._answers: dict[str, Schedule | None] = {}

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        """Query the source for the schedule of a workload, record the result, and return it.

        The result is None if the source has no schedule.
        """
        found = self._answers[workload_key] = self._source.best(workload_key, mode)
        return found

    def answers(self) -> Answers:
        """Return the recorded queries: pairs of a workload key and the schedule as JSON text.

        The text is empty if the source had no schedule.
        """
        return tuple((key, _text(self._answers[key])) for key in sorted(self._answers))


def check_answers(answers: Answers, source: ScheduleSource, mode: Mode) -> None:
    """Check that a source still returns the recorded schedules.

    Raises:
        ArtifactError: if the source now returns another schedule for a workload, or none.
    """
    for workload_key, said in answers:
        if _text(source.best(workload_key, mode)) != said:
            raise ArtifactError("a schedule has changed")


def _text(schedule: Schedule | None) -> str:
    return "" if schedule is None else json.dumps(schedule.to_json(), sort_keys=True)
