"""Requests to measure batches of candidates, and their results.

A request has one batch of candidates of one workload. It states the SHA-256 of the shared library
with the candidates, lists the kernels in it, and gives the distributions of the random inputs. The
expected output is an .npy file, also identified by its SHA-256, which a device fetches once per
workload. Requests are JSON; the files (blobs) are sent separately. Devices use this module, so it
imports only the standard library and NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from tilewright.compiler.limits import LARGEST_SIZE
from tilewright.compiler.runtime.codec import JsonValue, decode
from tilewright.compiler.runtime.json_form import Between, JsonForm, Length, Via
from tilewright.tuner.protocol.measurement import Measurement, Phase, Positive, RecordKey, Sizes
from tilewright.tuner.protocol.version import PROTOCOL, ProtocolError, RequestKind, check_protocol

LEAST_SECONDS = 5e-10
"""Lower bound of the time of any kernel, in seconds: a call and a return."""


COLD_BYTES = 1 << 20
"""Size of a kernel's weights in bytes from which they are evicted from the caches before each timed
run. When a model runs, such weights are not in the caches either."""


class Distribution(StrEnum):
    """The probability distribution of the elements of a random input."""

    NORMAL = "normal"
    """Standard normal distribution."""
    POSITIVE = "positive"
    """Uniform distribution on [0.25, 1.25), for workloads that are not defined on negative
    numbers."""
    WIDE = "wide"
    """Standard normal numbers times 10^u, with u uniform in [-2, 2). The magnitudes differ by four
    decades, so that a few terms dominate each sum."""
    INTEGERS = "integers"
    """Integers from a uniform distribution on [low, high)."""


@dataclass(frozen=True, slots=True)
class InputSpec(JsonValue):
    """A random input array, given by its type, its distribution and the seed of its generator.

    Attributes:
        shape: the logical shape, which does not depend on the layout in memory.
        dtype: the name of the element type, such as "float32".
        scale: a factor by which random floats are multiplied.
        low, high: the range of random integers, including `low` and excluding `high`.
    """

    shape: tuple[Annotated[int, Between(0, LARGEST_SIZE)], ...]
    dtype: str
    seed: int
    distribution: Distribution = Distribution.NORMAL
    scale: float = 1.0
    low: int = 0
    high: int = 2

    def draw(self) -> np.ndarray:
        """Generate the array, in row-major order; bfloat16 values are 16-bit patterns in uint16."""
        rng = np.random.default_rng(self.seed)
        values: np.ndarray
        match self.distribution:
            case Distribution.NORMAL:
                values = np.asarray(rng.standard_normal(self.shape, dtype=np.float32))
                values = np.asarray(values * np.float32(self.scale))
            case Distribution.POSITIVE:
                values = np.asarray(rng.random(self.shape, dtype=np.float32))
                values = np.asarray((values + np.float32(0.25)) * np.float32(self.scale))
            case Distribution.WIDE:
                values = np.asarray(rng.standard_normal(self.shape, dtype=np.float32))
                powers = 4.0 * rng.random(self.shape, dtype=np.float32) - 2.0
                values = np.asarray(values * np.float32(10.0) ** powers * np.float32(self.scale))
            case Distribution.INTEGERS:
                values = np.asarray(rng.integers(self.low, self.high, self.shape))
        if self.dtype == "bfloat16":
            bits = np.asarray(values, dtype=np.float32).view(np.uint32)
            return ((bits + 0x8000) >> 16).astype(np.uint16)
        return np.asarray(values, dtype=np.dtype(self.dtype), order="C")


@dataclass(frozen=True, slots=True)
class RepeatSettings(JsonValue):
    """The number of timed samples per candidate, and the rules by which timing ends early.

    Attributes:
        samples: number of rounds. Each round takes one sample of each candidate, in a random order.
            In the final phase, the number of pairs with the incumbent (the best schedule so far).
        sample_seconds: duration of a sample. It consists of as many runs as fit into this time,
            after one untimed run.
        round_seconds: smallest time between the starts of two rounds. Disturbances on a shared
            machine come in bursts of some tens of milliseconds. Without this time, a burst could
            affect all rounds of a small batch.
        abandon_ratio: a candidate gets no more samples once it takes this many times the fastest
            time of the batch or of the incumbent.
        margin: a candidate that is significantly slower than the fastest one, by more than this
            fraction, gets no more samples (`statistics.racing`).
        incumbent_seconds: the fastest known time of the task; None if unknown.
        limit_seconds: wall-time limit for each step of one candidate, such as its check or one
            sample.
        seed: the seed of the random orders.
    """

    samples: int = 5
    sample_seconds: float = 0.002
    round_seconds: float = 0.025
    abandon_ratio: float = 3.0
    margin: float = 0.02
    incumbent_seconds: float | None = None
    limit_seconds: float = 10.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Candidate(JsonValue):
    """One kernel of a batch, to be checked and timed.

    Attributes:
        trial_id: the id under which the measurement of the candidate will be stored.
        schedule: the schedule of the kernel as JSON.
        schedule_digest: digest of the schedule.
        spec: the interface of the kernel, such as its arguments (`KernelSpec`), as JSON.
        object_digest: digest of the compiled code.
        build_seconds: the time that the build took.
        origin: the source of the candidate, such as a search strategy; devices ignore it.
    """

    trial_id: str
    schedule: Mapping[str, Any]
    schedule_digest: str
    spec: Mapping[str, Any]
    object_digest: str = ""
    build_seconds: float = 0.0
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Case(JsonValue):
    """A set of inputs with the expected output, on which candidates are checked.

    Attributes:
        inputs: the random inputs.
        reference_digest: digest of the .npy file with the expected output (in row-major order).
        sizes: sizes of the workload's dynamic dimensions, by name.
        weight: factor by which the time for this case contributes to a candidate's time; 0 if
            candidates are only checked, not timed.
        least_seconds: lower bound of the time on any machine; a shorter time is implausible.
    """

    inputs: tuple[InputSpec, ...]
    reference_digest: str
    sizes: Sizes = ()
    weight: Annotated[float, Between(0.0, math.inf)] = 0.0
    least_seconds: Positive = LEAST_SECONDS


@dataclass(frozen=True, slots=True)
class MeasureRequest(JsonValue):
    """A request to check and time one batch of candidates of one workload.

    If the tuner is restarted, the request and its result suffice to store the measurements. No data
    of the earlier process are needed.

    Attributes:
        key: the workload, target, threads and numerics of the candidates (`RecordKey`).
        library_digest: digest of the shared library with all candidates.
        cases: the inputs on which every candidate is checked. Candidates are timed on the cases
            with a positive weight or, without such cases, on the first case.
        tolerance: the largest accepted error, relative to the largest expected value.
        least_seconds: lower bound of the workload's time on any machine.
        incumbent: trial id of the candidate with which each of the others is timed alternately;
            empty in screening.
        repeat: the settings for repeated timing.
        plain: for a device without NumPy, digests of the input arrays, and of a plan that says how
            to fill buffers from them (`tuner.measure.plain_form`); empty for other devices.
        protocol: the version of the message format.
    """

    kind: ClassVar[RequestKind] = RequestKind.MEASURE
    json_form: ClassVar[JsonForm] = JsonForm(
        "measure request",
        ProtocolError,
        constants={"kind": RequestKind.MEASURE.value},
        leading=("protocol",),
        sparse=("plain",),
        check=lambda request: request.check(),
    )

    request_id: str
    key: RecordKey
    candidates: tuple[Candidate, ...]
    library_digest: str
    cases: Annotated[tuple[Case, ...], Length(1)]
    tolerance: float
    least_seconds: float = LEAST_SECONDS
    incumbent: str = ""
    repeat: RepeatSettings = field(default_factory=RepeatSettings)
    phase: Phase = Phase.SCREEN
    job_id: str = ""
    codegen_version: str = ""
    plain: tuple[str, ...] = ()
    protocol: int = PROTOCOL

    @property
    def timed(self) -> tuple[Case, ...]:
        """Return the cases on which candidates are timed."""
        return tuple(case for case in self.cases if case.weight) or self.cases[:1]

    @property
    def has_sizes(self) -> bool:
        """Whether the workload has dynamic sizes; then results have a time for each timed case."""
        return bool(self.cases[0].sizes)

    @property
    def digests(self) -> tuple[str, ...]:
        """Return the digests of all blobs that a device needs to execute the request."""
        references = dict.fromkeys(c.reference_digest for c in self.cases)
        return (self.library_digest, *references, *self.plain)

    def check(self) -> None:
        """Check that all cases give sizes for the same dimensions.

        Raises:
            ValueError: if they do not.
        """
        if len({tuple(name for name, _ in case.sizes) for case in self.cases}) > 1:
            raise ValueError("the cases have sizes of other dimensions")

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Decode a request from its JSON form.

        Raises:
            ProtocolError: if its protocol version is not this release's, or if a field is missing
                or invalid.
        """
        check_protocol(data)
        return decode(cls, data)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The JSON form of one candidate's result."""

    trial_id: str
    measurement: Measurement


_MEASURED = Via(
    _Measured, lambda item, _: (item.trial_id, item.measurement), lambda pair: _Measured(*pair)
)


@dataclass(frozen=True, slots=True)
class MeasureResult(JsonValue):
    """The result of a `MeasureRequest`.

    Attributes:
        measurements: the trial id and the measurement of each candidate, in the order of the
            request.
        worker: the id of the worker that measured the batch.
    """

    kind: ClassVar[RequestKind] = RequestKind.MEASURE
    json_form: ClassVar[JsonForm] = JsonForm(
        "measure result",
        ProtocolError,
        constants={"kind": RequestKind.MEASURE.value},
        leading=("protocol", "request_id", "worker"),
    )

    request_id: str
    measurements: tuple[Annotated[tuple[str, Measurement], _MEASURED], ...]
    worker: str = ""
    protocol: int = PROTOCOL

    def by(self, worker_id: str) -> Self:
        """Return a copy of the result that states `worker_id` as the worker.

        The service uses the authenticated id, because a faulty worker may have written the id of
        another worker.
        """
        named = tuple((name, replace(m, worker=worker_id)) for name, m in self.measurements)
        return replace(self, measurements=named, worker=worker_id)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Decode a result from its JSON form.

        Raises:
            ProtocolError: if its protocol version is not this release's, or if a field is missing
                or invalid.
        """
        check_protocol(data)
        return decode(cls, data)
