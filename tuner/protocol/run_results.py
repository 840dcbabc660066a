"""Results of runs of whole programs (`runs`), and their JSON form."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, ClassVar, Self

import numpy as np

from tilewright.compiler.runtime.codec import JsonValue, decode
from tilewright.compiler.runtime.json_form import JsonForm, Length, Via
from tilewright.compiler.runtime.speeds import Speeds
from tilewright.tuner.measure.statistics import MOST_SAMPLES, Comparison
from tilewright.tuner.protocol.measurement import ErrorText
from tilewright.tuner.protocol.version import PROTOCOL, ProtocolError, RequestKind, check_protocol

FETCH_BYTES = 16 << 20
"""Limit of the outputs in one result, in bytes."""


class RunStatus(StrEnum):
    """The outcome of a run."""

    OK = "ok"
    FAILED = "failed"
    """A program could not be loaded or run."""
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    REFUSED = "refused"
    """The device did not begin: it lacks the space for the blobs, or the memory for the run."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Race:
    """A comparison of each variant of a model with the first one, the incumbent.

    Attributes:
        incumbent_seconds: the time of the incumbent's fastest run.
        comparisons: the comparisons of the other variants, in order.
        worker: the id of the worker that ran all of them; "" for no or several workers.
    """

    incumbent_seconds: float
    comparisons: tuple[Comparison, ...]
    worker: str = ""


_OutputError = Annotated[
    float,
    Via(
        float | None,
        lambda data, _: math.inf if data is None else data,
        lambda error: error if math.isfinite(error) else None,  # JSON has no infinity
    ),
]


@dataclass(frozen=True, slots=True)
class _Race:
    """The JSON form of a race.

    Each comparison is a pair of the variant that it was compared with and the time ratios.
    """

    incumbent_seconds: float
    comparisons: tuple[tuple[str, Annotated[tuple[float, ...], Length(1, MOST_SAMPLES)]], ...]


_RaceJson = Annotated[
    Race,
    Via(
        _Race,
        lambda data, _: Race(
            data.incumbent_seconds, tuple(Comparison(*each) for each in data.comparisons)
        ),
        lambda race: _Race(
            race.incumbent_seconds, tuple((c.against, c.ratios) for c in race.comparisons)
        ),
    ),
]


@dataclass(frozen=True, slots=True)
class RunResult(JsonValue):
    """The result of a run. Only the fields for its kind of work are set.

    Attributes:
        status: whether the run succeeded, or how it failed.
        error: one sentence about a failure; empty after success.
        errors: largest errors of a check, by output name (`model_runs.largest_error`).
        fetched: outputs returned by a check, as .npy files by output name.
        race: the result of a race.
        seconds: the seconds of a profile, one value per instruction.
        speeds: the measured peaks of the machine.
        worker: the id of the worker that ran it.
    """

    kind: ClassVar[RequestKind] = RequestKind.RUN
    json_form: ClassVar[JsonForm] = JsonForm(
        "run result",
        ProtocolError,
        constants={"kind": RequestKind.RUN.value},
        leading=("protocol", "request_id", "worker"),
    )

    request_id: str
    status: RunStatus
    error: ErrorText = ""
    errors: Mapping[str, _OutputError] = field(default_factory=dict)
    fetched: Mapping[str, bytes] = field(default_factory=dict)
    race: _RaceJson | None = None
    seconds: tuple[float, ...] = ()
    speeds: Speeds | None = None
    worker: str = ""
    protocol: int = PROTOCOL

    def by(self, worker_id: str) -> Self:
        """Return a copy of the result with this worker id; the original id is not trusted."""
        return replace(self, worker=worker_id)

    def arrays(self) -> dict[str, np.ndarray]:
        """Decode the fetched outputs; return them by output name.

        Raises:
            ProtocolError: if an output is not an .npy file.
        """
        try:
            return {
                name: np.load(io.BytesIO(data), allow_pickle=False)
                for name, data in self.fetched.items()
            }
        except (ValueError, OSError, EOFError) as error:
            raise ProtocolError(f"an output of the run is malformed: {error!r}") from error

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Decode a result.

        Raises:
            ProtocolError: if it has another protocol version, or a field is missing or invalid.
        """
        check_protocol(data)
        return decode(cls, data)
