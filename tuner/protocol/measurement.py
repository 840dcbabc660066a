"""Results of measurements, and the data that are stored from them.

A `Trial` is one measured candidate. A `TuningRecord` is the best known schedule of a workload. If a
candidate does not build, crashes or computes a wrong output, its `Measurement` has the status of
the failure and an error message. Devices use this module, so it imports only the standard library,
and modules with the same restriction.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from tilewright.compiler.limits import LARGEST_SIZE
from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import Between, Length, Via, pairs
from tilewright.tuner.measure.speed import Speed
from tilewright.tuner.measure.statistics import (
    MOST_SAMPLES,
    Comparison,
    Interval,
    undisturbed,
)

if TYPE_CHECKING:
    from tilewright.compiler.schedule.schedule import Schedule


MOST_ERROR = 4000
"""Limit of the characters of an error text in a message."""

LONGEST_SECONDS = 1e9

CERTIFICATE_CHECKS = 3
"""Number of sets of random inputs on which a schedule's output must be correct before it becomes a
record."""


class Status(StrEnum):
    """The outcome of a candidate's measurement."""

    OK = "ok"
    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    SPILLS = "spills"
    """Not measured, because the candidate's code spills too many vectors to the stack."""
    CRASH = "crash"
    RUN_ERROR = "run_error"
    """The candidate could not be run, because its library or its buffers did not fit the device."""
    RUN_TIMEOUT = "run_timeout"
    WRONG_ANSWER = "wrong_answer"
    NO_REFERENCE = "no_reference"
    """Not measured, because the expected output is missing. Another job may try the candidate."""
    WORKER_LOST = "worker_lost"
    CANCELLED = "cancelled"

    @property
    def says_something_of_the_candidate(self) -> bool:
        """Whether the candidate alone caused the outcome, so that a repetition would not change it.

        False if something else may be the cause: for example, if the worker was lost.
        """
        return self not in (Status.NO_REFERENCE, Status.WORKER_LOST, Status.CANCELLED)


class Phase(StrEnum):
    """The purpose of a measurement.

    Screening finds good candidates with few samples. The final phase compares the best of them with
    the incumbent (the best schedule so far). A confirmation measures a stored best schedule a
    second time.
    """

    SCREEN = "screen"
    FINAL = "final"
    CONFIRM = "confirm"


@dataclass(frozen=True, slots=True)
class RecordKey(JsonValue):
    """The key under which a record, the best known schedule of a workload, is stored.

    Attributes:
        workload_key: a hash of the workload.
        target_key: a hash of the target.
        threads: number of threads.
        numerics: the numerics mode: "strict", "fast" or "loose".
    """

    workload_key: str
    target_key: str
    threads: int = 1
    numerics: str = "fast"


Sizes = Annotated[
    tuple[tuple[str, int], ...], pairs(Mapping[str, Annotated[int, Between(0, LARGEST_SIZE)]])
]
"""Sizes of dynamic dimensions, as pairs of name and size."""

SizeWeights = tuple[tuple[Sizes, float], ...]
"""The sizes at which a workload with dynamic dimensions is measured, each with the weight of its
time."""


Positive = Annotated[float, Between(0.0, math.inf, above=True)]
AnyNumber = Annotated[float, Between(-math.inf, math.inf, finite=False)]
"""A number that a faulty kernel or device may have reported, possibly infinite or NaN. It is stored
unchanged, so code that reads it must check it."""

ErrorText = Annotated[
    str,
    Via(
        Annotated[str, Length(0, MOST_ERROR)],
        lambda text, _: text,
        lambda text: text[:MOST_ERROR],
    ),
]
"""The text of an error. Messages contain only its first `MOST_ERROR` characters."""

Seconds = Annotated[float, Between(0.0, LONGEST_SECONDS)]
UnixTime = Annotated[float, Between(0.0, 1e11)]
"""Unix time in seconds, up to the year 5138. A time in 1970 is valid, because a board without a
clock reports it."""


@dataclass(frozen=True, slots=True)
class TimesAt(JsonValue):
    """The times of a candidate for one choice of sizes of a workload's open dimensions.

    Attributes:
        sizes: the size of each open dimension, by name.
        weight: factor of these times in the candidate's total time.
        samples_seconds: the time of one run in seconds, for each sample.
    """

    sizes: Sizes
    weight: Positive
    samples_seconds: Annotated[tuple[Positive, ...], Length(1, MOST_SAMPLES)]

    @property
    def run_seconds(self) -> float:
        """Return the time of the fastest sample in seconds."""
        return min(self.samples_seconds)


@dataclass(frozen=True, slots=True)
class Measurement(JsonValue):
    """The result of measuring one candidate on a device, or of a build that failed.

    The attributes `checks`, `seeds`, `max_error`, `reference_digest` and `object_digest` are the
    certificate: the evidence that the output is correct.

    Attributes:
        samples_seconds: the time of one run of the kernel in seconds, for each sample. It is CPU
            time with one thread, and wall time with several threads. For a workload with dynamic
            sizes, it is the weighted sum of the times in `at_sizes`.
        at_sizes: for a workload with dynamic sizes, the times at each measured combination of
            sizes.
        comparison: the comparison with the incumbent, for finalists other than the incumbent.
        speed: the slowest reading of the device's speed before and after the batch.
        checks: number of sets of random inputs on which the output was checked.
        seeds: the seeds of these inputs.
        max_error: the largest error relative to the largest expected output.
        reference_digest: digest of the expected output for the first set.
        object_digest: digest of the checked code.
        measure_seconds: wall time from the candidate's check to its last sample, including samples
            of other candidates in between.
        worker: the id of the worker.
        device: the properties of the device, as JSON.
        measured_at: Unix time in seconds.
    """

    status: Status
    error: ErrorText = ""
    samples_seconds: Annotated[tuple[AnyNumber, ...], Length(0, MOST_SAMPLES)] = ()
    max_error: AnyNumber | None = None
    tolerance: float = 0.0
    seeds: Annotated[tuple[int, ...], Length(0, MOST_SAMPLES)] = ()
    reference_digest: str = ""
    object_digest: str = ""
    build_seconds: Seconds = 0.0
    measure_seconds: Seconds = 0.0
    worker: str = ""
    device: Mapping[str, Any] = field(default_factory=dict)
    measured_at: UnixTime = 0.0
    checks: int = 0
    comparison: Comparison | None = None
    speed: Speed | None = None
    at_sizes: tuple[TimesAt, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the candidate ran, its output was correct, and its times are positive and finite.

        Times are checked because a stored measurement may be from an older release, which did not
        check the results of devices.
        """
        return self.status is Status.OK and all(
            0.0 < seconds < math.inf for seconds in self.samples_seconds
        )

    @property
    def run_seconds(self) -> float | None:
        """Return the time in seconds by which candidates are ranked; None for a failure.

        It is the fastest sample. For a workload with dynamic sizes, it is the weighted sum of the
        fastest sample at each size, so that a disturbance at one size does not affect the others.
        """
        if not (self.ok and self.samples_seconds):
            return None
        if self.at_sizes:
            return sum(each.weight * each.run_seconds for each in self.at_sizes)
        return min(self.samples_seconds)

    @property
    def distribution(self) -> SizeWeights:
        """Return the sizes at which the candidate was timed, with their weights.

        The tuple is empty for a workload with fixed sizes.
        """
        return tuple((each.sizes, each.weight) for each in self.at_sizes)

    @property
    def certified(self) -> bool:
        """Whether the output was correct on CERTIFICATE_CHECKS sets of random inputs.

        Only such a candidate can become the stored best schedule of its workload. For a workload
        with dynamic sizes, the first set is checked at each measured size, and counts once.
        """
        return self.ok and self.checks >= CERTIFICATE_CHECKS - 1 + max(1, len(self.at_sizes))

    @property
    def interval(self) -> Interval | None:
        """Return a confidence interval for the time without disturbances, in seconds.

        Return None for a failure, or if there are fewer than two samples.
        """
        return undisturbed(self.samples_seconds) if self.ok else None

    @property
    def disturbed(self) -> bool:
        """Whether the device was too slow during the measurement, so that times are unreliable."""
        return self.speed is not None and self.speed.disturbed


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was measured, with its measurement, as stored in the database.

    Attributes:
        id: the result of `trial_id`. A trial that is reported twice has the same id.
        phase: the purpose of the measurement.
        codegen_version: the version of code generation that compiled the candidate.
        origin: the source of the candidate: "default", or a name given by the search strategy.
        withdrawn: whether the trial is invalid because its worker is no longer trusted. Searches
            ignore such a trial, and its id is not used again.
    """

    id: str
    key: RecordKey
    schedule: Schedule
    measurement: Measurement
    phase: Phase = Phase.SCREEN
    job_id: str = ""
    codegen_version: str = ""
    origin: str = ""
    withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """The best known schedule of a workload on a target, with its measurement.

    The measurement includes the certificate: the evidence that the output is correct.
    """

    key: RecordKey
    schedule: Schedule
    measurement: Measurement
    trial_id: str = ""
    codegen_version: str = ""
    compiler_version: str = ""

    @property
    def run_seconds(self) -> float:
        """The time of one run in seconds (`Measurement.run_seconds`).

        Raises:
            ValueError: if the measurement failed, so that it should not be part of a record.
        """
        seconds = self.measurement.run_seconds
        if seconds is None:
            raise ValueError(f"a record of a failed measurement: {self.measurement.status}")
        return seconds

    def holds(self, codegen_version: str) -> bool:
        """Whether the record can be used by the given version of code generation.

        The record must be of the same version, because the same schedule may give other code in
        another version. Its output must have been checked (`Measurement.certified`).
        """
        return self.codegen_version == codegen_version and self.measurement.certified


def trial_id(
    key: RecordKey, schedule_digest: str, phase: Phase, job_id: str, serial: int | str = 0
) -> str:
    """Return the id of a trial, 32 hexadecimal digits.

    The id is a hash of the arguments, so it does not change if the job is restarted. `serial`
    distinguishes repeated measurements of one candidate in one job. It is a number, or the id of
    the record that is measured again.
    """
    parts = (
        key.workload_key,
        key.target_key,
        str(key.threads),
        key.numerics,
        schedule_digest,
        phase.value,
        job_id,
        str(serial),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
