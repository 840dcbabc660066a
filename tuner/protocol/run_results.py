"""The results that devices return for runs of whole programs (`runs`)."""

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
"""Limit of the output arrays in one result, in bytes."""


class RunStatus(StrEnum):
    """The outcome of a run of whole programs on a device."""

    OK = "ok"
    FAILED = "failed"
    """A program could not be loaded or run."""
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    REFUSED = "refused"
    """The device did not start the run, because it lacks disk space for the blobs or memory for the
    run."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Race:
    """The result of timing several variants of a model against the first one, the incumbent.

    Attributes:
        incumbent_seconds: the time of the incumbent's fastest run.
        comparisons: the comparison of each other variant with the incumbent, in the order of the
            variants.
        worker: the id of the worker that ran all variants; empty if several workers did, or none.
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
    """The JSON form of a `Race`.

    Each comparison consists of the id of the incumbent, with which the variant was compared, and
    the ratios of their times.
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
    """The result of a `RunRequest`. Only the attributes for its kind of work are set.

    Attributes:
        status: whether the run succeeded, or how it failed.
        error: one sentence about a failure; empty after success.
        errors: after a check, the largest error of each output, by name
            (`model_runs.largest_error`).
        fetched: after a check, the requested outputs as .npy files, by output name.
        race: after a race, its result.
        seconds: after a profile, the time of each instruction of the program.
        speeds: after a measurement of the machine's peaks, these peaks.
        worker: the id of the worker that executed the run.
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
        """Return a copy of the result that states `worker_id` as the worker.

        The service uses the authenticated id, because a faulty worker may have written the id of
        another worker.
        """
        return replace(self, worker=worker_id)

    def arrays(self) -> dict[str, np.ndarray]:
        """Decode the outputs in `fetched`, and return the arrays by output name.

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
        """Decode a result from its JSON form.

        Raises:
            ProtocolError: if its protocol version is not this release's, or if a field is missing
                or invalid.
        """
        check_protocol(data)
        return decode(cls, data)
