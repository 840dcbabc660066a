"""One full assignment of the knobs of a workload."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from tilewright.compiler.errors import ScheduleError

Choice = int | str | bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """An algorithm and a value for each of its knobs, sorted by name."""

    algorithm: str
    choices: tuple[tuple[str, Choice], ...] = ()

    @staticmethod
    def of(algorithm: str, **choices: Choice) -> Schedule:
        return Schedule(algorithm, tuple(sorted(choices.items())))

    def __getitem__(self, knob: str) -> Choice:
        for name, value in self.choices:
            if name == knob:
                return value
        raise ScheduleError(f"schedule '{self}' has no knob '{knob}'")

    def integer(self, knob: str) -> int:
        """The value of a knob that counts something."""
        value = self[knob]
        if not isinstance(value, int):
            raise ScheduleError(f"knob '{knob}' of '{self}' is not a number")
        return value

    def text(self, knob: str) -> str:
        """The value of a knob that names something."""
        value = self[knob]
        if not isinstance(value, str):
            raise ScheduleError(f"knob '{knob}' of '{self}' is not a name")
        return value

    def __str__(self) -> str:
        return " ".join((self.algorithm, *(f"{name}={value}" for name, value in self.choices)))

    def to_json(self) -> dict[str, object]:
        return {"algorithm": self.algorithm, "choices": dict(self.choices)}

    @staticmethod
    def from_json(data: object) -> Schedule:
        """Read what `to_json` gives.

        Raises:
            ScheduleError: if the form is another one.
        """
        match data:
            case {"algorithm": str(algorithm), "choices": dict(choices)} if all(
                isinstance(n, str) and isinstance(v, int | str | bool) for n, v in choices.items()
            ):
                return Schedule.of(algorithm, **choices)
            case _:
                raise ScheduleError(f"not a schedule: {json.dumps(data)[:80]}")

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON form, in hexadecimal."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
