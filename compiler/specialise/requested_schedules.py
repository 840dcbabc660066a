"""What a source of schedules was asked while a model was compiled, and what it said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.compiler.errors import ArtifactError

if TYPE_CHECKING:
    from tilewright.compiler.program.kernels import ScheduleSource
    from tilewright.compiler.schedule.schedule import Schedule


class AskedSchedules:
    """A source of schedules that remembers (`compiler.program.kernels.ScheduleSource`).

    Args:
        source: answers.
    """

    def __init__(self, source: ScheduleSource) -> None:
        self._source = source
        self._answers: dict[tuple[str, str, int, str], Schedule | None] = {}

    def best(
        self, workload_key: str, target_key: str, threads: int, numerics: str
    ) -> Schedule | None:
        """What the source says."""
        key = workload_key, target_key, threads, numerics
        found = self._answers[key] = self._source.best(*key)
        return found

    def answers(self) -> list[list[Any]]:
        """Each question with its answer, as JSON has them."""
        return [[*key, _text(found)] for key, found in sorted(self._answers.items())]


def check_answers(answers: Any, source: ScheduleSource) -> None:
    """Raises ArtifactError if a source says something else now; TypeError or ValueError if these
    are no answers."""
    for workload_key, target_key, threads, numerics, said in answers:
        if _text(source.best(workload_key, target_key, threads, numerics)) != said:
            raise ArtifactError("a schedule has changed")


def _text(schedule: Schedule | None) -> object:
    return None if schedule is None else schedule.to_json()
