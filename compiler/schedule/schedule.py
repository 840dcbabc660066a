"""Schedules: one choice for every knob of a workload."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import JsonForm, Via

Choice = int | str | bool


@dataclass(frozen=True, slots=True)
class Schedule(JsonValue):
    """A schedule: the name of an algorithm, and pairs of a knob and its value, sorted by knob."""

    json_form: ClassVar[JsonForm] = JsonForm("schedule", ScheduleError)

    algorithm: str
    choices: Annotated[
        tuple[tuple[str, Choice], ...],
        Via(Mapping[str, Choice], lambda found, _: tuple(sorted(found.items())), dict),
    ] = ()

    @staticmethod
    def of(algorithm: str, **choices: Choice) -> Schedule:
        return Schedule(algorithm, tuple(sorted(choices.items())))

    def __getitem__(self, knob: str) -> Choice:
        for name, value in self.choices:
            if name == knob:
                return value
        raise ScheduleError(f"schedule '{self}' has no knob '{knob}'")

    def integer(self, knob: str) -> int:
        """Return the value of a knob with integer values.

        Raises:
            ScheduleError: if the schedule has no such knob, or its value is not an integer.
        """
        value = self[knob]
        if not isinstance(value, int):
            raise ScheduleError(f"knob '{knob}' of '{self}' is not a number")
        return value

    def text(self, knob: str) -> str:
        """Return the value of a knob with named choices.

        Raises:
            ScheduleError: if the schedule has no such knob, or its value is not a name.
        """
        value = self[knob]
        if not isinstance(value, str):
            raise ScheduleError(f"knob '{knob}' of '{self}' is not a name")
        return value

    def __str__(self) -> str:
        return " ".join((self.algorithm, *(f"{name}={value}" for name, value in self.choices)))

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON form, in hexadecimal."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
