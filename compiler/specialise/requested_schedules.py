"""What a source of schedules was asked while a model was compiled, and what it said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.compiler.errors import ArtifactError

if TYPE_CHECKING:
    from tilewright.compiler.mode import Mode
    from tilewright.compiler.program.kernels import ScheduleSource
    from tilewright.compiler.schedule.schedule import Schedule


class AskedSchedules:
    """A source of schedules that remembers (`compiler.program.kernels.ScheduleSource`).

    Args:
        source: answers.
    """

    def __init__(self, source: ScheduleSource) -> None:
        self._source = source
        self._answers: dict[str, Schedule | None] = {}

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        """What the source says."""
        found = self._answers[workload_key] = self._source.best(workload_key, mode)
        return found

    def answers(self) -> list[list[Any]]:
        """Each question with its answer, as JSON has them."""
        return [[key, _text(found)] for key, found in sorted(self._answers.items())]


def check_answers(answers: Any, source: ScheduleSource, mode: Mode) -> None:
    """Raises ArtifactError if a source says something else now; TypeError or ValueError if these
    are no answers."""
    for workload_key, said in answers:
        if _text(source.best(workload_key, mode)) != said:
            raise ArtifactError("a schedule has changed")


def _text(schedule: Schedule | None) -> object:
    return None if schedule is None else schedule.to_json()
