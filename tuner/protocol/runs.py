"""Requests to run whole programs on a device. (The module `batches` has requests for kernels.)

A request contains programs and the work to do with them: check outputs, race several variants,
profile a program, or measure the machine's peaks. A program consists of instructions, code and
weights, which are blobs identified by digest. Weights are sent in parts, so that programs which
pack a weight identically share its blob, even at different positions. A request states in advance
the blobs, memory and time that it needs. Devices use this module, so it imports only the standard
library and NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Self, assert_never

from tilewright.compiler.limits import MAX_THREADS
from tilewright.compiler.runtime.codec import JsonValue, decode
from tilewright.compiler.runtime.json_form import Between, JsonForm, Length, Matching
from tilewright.compiler.runtime.speeds import DOTS
from tilewright.tuner.protocol.version import PROTOCOL, ProtocolError, RequestKind, check_protocol

BYTES_LIMIT = 1 << 46
ITEMS_LIMIT = 1_000_000
SECONDS_LIMIT = 86_400.0
SAMPLES_LIMIT = 100_000

RACE_PAIRS, RACE_LEAST_PAIRS = 16, 8
"""Largest number of pairs of samples per challenger, and the number of pairs that are measured even
after the time limit has passed."""

RACE_SECONDS, RACE_SAMPLE_SECONDS = 4.0, 0.005
"""Time limit in seconds for all pairs of a challenger, and minimum duration in seconds of one
sample. A sample of a small model has as many runs as necessary."""

RACE_RUNS = 5
"""Number of runs of the incumbent alone. The fastest run is reported as its time."""

INPUT_SEED = 7
"""Seed of the random inputs on which models are raced and timed, and of the first random inputs on
which they are verified."""

Digest = Annotated[str, Matching("[0-9a-f]{64}")]
Bytes = Annotated[int, Between(0, BYTES_LIMIT)]
ItemNumber = Annotated[int, Between(0, ITEMS_LIMIT)]
Seed = Annotated[int, Between(0, 1 << 31)]
Files = Mapping[str, Digest]
"""Digest of each file, by the name of the input or output that the file contains."""


class WorkKind(StrEnum):
    """What a device does in a run: check outputs, race variants, profile, or measure its peaks."""

    CHECK = "check"
    RACE = "race"
    PROFILE = "profile"
    SPEEDS = "speeds"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a program's weights, with its positions in a blob and in the block of weights.

    Attributes:
        digest: the digest of the blob.
        start: the offset in the blob, in bytes.
        offset: the offset in the program's block of weights, in bytes.
        bytes: the length.
    """

    json_form: ClassVar[JsonForm] = JsonForm(row=True)

    digest: Digest
    start: Bytes
    offset: Bytes
    bytes: Bytes


@dataclass(frozen=True, slots=True)
class ProgramParts:
    """A program to run, given by the digests of its blobs.

    Attributes:
        program: digest of the program's instructions (`compiler.runtime.program.Program`) as JSON.
        library: digest of the shared library with its kernels; empty if it has none.
        block: number of its block of weights. Programs with equal numbers share the block.
        parts: the parts of the block that it reads.
        inputs: for inputs with given values, by name, the digest of the .npy file. All other inputs
            are random.
    """

    json_form: ClassVar[JsonForm] = JsonForm(sparse=("inputs",))

    program: Digest
    library: Annotated[str, Matching("([0-9a-f]{64})?")]
    block: ItemNumber
    parts: tuple[Part, ...]
    inputs: Files = field(default_factory=dict)

    @property
    def digests(self) -> Iterator[str]:
        yield self.program
        if self.library:
            yield self.library
        yield from (part.digest for part in self.parts)
        yield from self.inputs.values()


@dataclass(frozen=True, slots=True)
class CheckWork:
    """A run that executes a program once and compares its outputs with expected values.

    Attributes:
        program: position of the program in `RunRequest.programs`.
        seed: the seed of the random inputs.
        expected: for each output to compare, by name, the digest of an .npy file with the expected
            values.
        fetch: the names of the outputs to return, of at most `run_results.FETCH_BYTES` together.
    """

    json_form: ClassVar[JsonForm] = JsonForm(constants={"do": WorkKind.CHECK.value})

    program: ItemNumber
    seed: Seed
    expected: Files
    fetch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RaceWork:
    """A run that times several variants of a model, each alternately with the first variant.

    Attributes:
        variants: the variants. Each is a sequence of programs that run one after the other, given
            by their positions in `RunRequest.programs`.
        seed: the seed of the random inputs.
    """

    json_form: ClassVar[JsonForm] = JsonForm(constants={"do": WorkKind.RACE.value})

    variants: Annotated[tuple[Annotated[tuple[ItemNumber, ...], Length(1)], ...], Length(1)]
    seed: Seed = INPUT_SEED


@dataclass(frozen=True, slots=True)
class ProfileWork:
    """A run that times each instruction of a program, in executions of the whole program.

    Attributes:
        program: position of the program in `RunRequest.programs`.
        samples: number of executions. The result has the fastest time of each instruction.
        seed: the seed of the random inputs.
    """

    json_form: ClassVar[JsonForm] = JsonForm(constants={"do": WorkKind.PROFILE.value})

    program: ItemNumber
    samples: Annotated[int, Between(1, SAMPLES_LIMIT)]
    seed: Seed = INPUT_SEED


@dataclass(frozen=True, slots=True)
class SpeedsWork:
    """A run that measures the machine's peak arithmetic rates and memory bandwidths.

    Attributes:
        library: digest of a shared library with the probe functions (`roofline.probe_library`).
        vector_bytes: size of the vectors that these functions use.
        cache_bytes, memory_bytes: sizes of the device's caches and memory.
        dots: the operand types for which the library has a dot-product function.
    """

    json_form: ClassVar[JsonForm] = JsonForm(constants={"do": WorkKind.SPEEDS.value})

    library: Digest
    vector_bytes: Annotated[int, Between(4, 1 << 12)]
    cache_bytes: tuple[Bytes, ...]
    memory_bytes: Bytes
    dots: tuple[Annotated[str, Matching("|".join(DOTS))], ...] = ()


Work = CheckWork | RaceWork | ProfileWork | SpeedsWork


@dataclass(frozen=True, slots=True)
class RunRequest(JsonValue):
    """A request to run whole programs on a device.

    Attributes:
        request_id: the id of the request; equal requests of one job have equal ids.
        job_id: the job that submits the run.
        threads: the number of threads of each program.
        programs: the programs, to which `work` refers by position.
        block_bytes: the size in bytes of each block of weights.
        work: the work to do.
        blobs: the size in bytes of each blob that the device needs, by digest.
        memory_bytes: the largest amount of memory that the run needs, without the memory of the
            process itself.
        limit_seconds: wall-time limit for one step: loading a program, or one execution of it.
        plain: for a device without NumPy, digests of the input arrays, and of a plan that says how
            to fill buffers from them (`tuner.measure.plain_form`); empty for other devices.
        protocol: the version of the message format.
    """

    kind: ClassVar[RequestKind] = RequestKind.RUN
    json_form: ClassVar[JsonForm] = JsonForm(
        "run request",
        ProtocolError,
        constants={"kind": RequestKind.RUN.value},
        leading=("protocol",),
        sparse=("plain",),
        check=lambda request: _check_places(request),
    )

    request_id: Annotated[str, Matching("[A-Za-z0-9_-]{1,64}")]
    job_id: str
    threads: Annotated[int, Between(1, MAX_THREADS)]
    programs: tuple[ProgramParts, ...]
    block_bytes: tuple[Bytes, ...]
    work: Work
    blobs: Mapping[Digest, Bytes]
    memory_bytes: Bytes
    limit_seconds: Annotated[float, Between(0.0, SECONDS_LIMIT, above=True)]
    plain: tuple[Digest, ...] = ()
    protocol: int = PROTOCOL

    @property
    def digests(self) -> tuple[str, ...]:
        """Return the digests of all blobs that a device needs to execute the request."""
        return tuple(self.blobs)

    @property
    def blob_bytes(self) -> int:
        """Return the total size in bytes of the blobs that a device needs."""
        return sum(self.blobs.values())

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Decode a request from its JSON form.

        Raises:
            ProtocolError: if its protocol version is not this release's, or if a field is missing,
                invalid or beyond plausible limits.
        """
        check_protocol(data)
        return decode(cls, data)


def _check_places(request: RunRequest) -> None:
    """Check that a request contains every program, block and blob to which it refers.

    Raises:
        ValueError: if it does not, or if the blobs together are too large.
    """
    named: set[str] = set(request.plain)
    for program in request.programs:
        if program.block >= len(request.block_bytes):
            raise ValueError(f"there is no block {program.block}")
        block = request.block_bytes[program.block]
        named.update(program.digests)
        for part in program.parts:
            if part.offset + part.bytes > block:
                raise ValueError(f"a part of {part.bytes} bytes at {part.offset} leaves its block")
            if part.start + part.bytes > request.blobs.get(part.digest, 0):
                raise ValueError(f"a part of {part.bytes} bytes at {part.start} leaves its blob")
    numbers: list[int] = []
    match request.work:
        case CheckWork(program=number, expected=expected):
            numbers = [number]
            named.update(expected.values())
        case RaceWork(variants=variants):
            numbers = [number for variant in variants for number in variant]
        case ProfileWork(program=number):
            numbers = [number]
        case SpeedsWork(library=library):
            named.add(library)
        case _:
            assert_never(request.work)
    if any(number >= len(request.programs) for number in numbers):
        raise ValueError(f"the work names a program beyond the request's {len(request.programs)}")
    if named != request.blobs.keys():
        raise ValueError("the list of blobs differs from the blobs that the request names")
    if request.blob_bytes > BYTES_LIMIT:
        raise ValueError(f"the blobs have {request.blob_bytes} bytes, the limit is {BYTES_LIMIT}")
