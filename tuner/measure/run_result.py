"""What came of a run, and its wire format."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from tilewright.compiler.runtime.speeds import Speeds
from tilewright.tuner.measure.measurement import MOST_ERROR
from tilewright.tuner.measure.model_runs import Race
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.measure.wire import PROTOCOL, ProtocolError, check_protocol

FETCH_BYTES = 16 << 20
"""Outputs that one result may bring back, in bytes."""


class RunStatus(StrEnum):
    """How a run ended."""

    OK = "ok"
    FAILED = "failed"
    """A program could not be loaded or run."""
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    REFUSED = "refused"
    """The device did not begin: it has no room for the blobs or the run."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a run. Only the fields of its kind of work are filled.

    Attributes:
        status, error: how it ended, and one sentence if it is not OK.
        errors: of a check, by output (`model_runs.largest_error`).
        fetched: of a check, .npy files by output.
        race: of a race.
        seconds: of a profile, one for each instruction.
        speeds: of the roofline.
        worker: who ran it.
    """

    request_id: str
    status: RunStatus
    error: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)
    fetched: Mapping[str, bytes] = field(default_factory=dict)
    race: Race | None = None
    seconds: tuple[float, ...] = ()
    speeds: Speeds | None = None
    worker: str = ""
    protocol: int = PROTOCOL

    def arrays(self) -> dict[str, np.ndarray]:
        """The fetched outputs.

        Raises:
            ProtocolError: if one is no .npy file.
        """
        try:
            return {
                name: np.load(io.BytesIO(data), allow_pickle=False)
                for name, data in self.fetched.items()
            }
        except (ValueError, OSError, EOFError) as error:
            raise ProtocolError(f"malformed output of a run: {error!r}") from error

    def to_json(self) -> dict[str, Any]:
        race = self.race
        return {
            "kind": "run",
            "protocol": self.protocol,
            "request_id": self.request_id,
            "worker": self.worker,
            "status": self.status.value,
            "error": self.error[:MOST_ERROR],
            # JSON has no infinity.
            "errors": {k: v if math.isfinite(v) else None for k, v in self.errors.items()},
            "fetched": {k: base64.b64encode(v).decode() for k, v in self.fetched.items()},
            "race": None
            if race is None
            else {
                "incumbent_seconds": race.incumbent_seconds,
                "comparisons": [[c.against, list(c.ratios)] for c in race.comparisons],
            },
            "seconds": list(self.seconds),
            "speeds": None if self.speeds is None else self.speeds.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunResult:
        """Read a result.

        Raises:
            ProtocolError: if it is of another protocol version, or a field is missing or wrong.
        """
        check_protocol(data)
        try:
            race, speeds = data["race"], data["speeds"]
            return cls(
                request_id=str(data["request_id"]),
                status=RunStatus(data["status"]),
                error=str(data["error"]),
                errors={
                    str(k): math.inf if v is None else float(v) for k, v in data["errors"].items()
                },
                fetched={
                    str(k): base64.b64decode(v, validate=True) for k, v in data["fetched"].items()
                },
                race=None if race is None else _race_from_json(race),
                seconds=tuple(map(float, data["seconds"])),
                speeds=None if speeds is None else Speeds.from_json(speeds),
                worker=str(data["worker"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
            raise ProtocolError(f"malformed run result: {error!r}") from error


def _race_from_json(data: Mapping[str, Any]) -> Race:
    comparisons = []
    for against, ratios in data["comparisons"]:
        if not ratios:
            raise ValueError("a comparison without pairs")
        comparisons.append(Comparison(str(against), tuple(map(float, ratios))))
    return Race(float(data["incumbent_seconds"]), tuple(comparisons))
