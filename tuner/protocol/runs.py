"""Requests to run whole programs on a device, the second kind of request besides `batches`.

A request names the programs and the work: check outputs, race, profile, or measure the machine's
peaks. A program consists of instructions, code and weights, all named by digest. Weights are sent
in parts named by content, so programs that pack a weight identically share its blob whatever its
position. A request states in advance the blobs, memory and time that it needs. Only the standard
library and NumPy are imported, because devices use this module.
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
"""Largest number of pairs per challenger, and smallest number before its time limit applies."""

RACE_SECONDS, RACE_SAMPLE_SECONDS = 4.0, 0.005
"""Time limit for a challenger's pairs, and minimum time of one sample. A sample of a small model
has as many runs as necessary."""

RACE_RUNS = 5
"""Number of runs of the incumbent alone; the fastest is its time."""

INPUT_SEED = 7
"""Seed of the inputs that models are raced and timed on, and of the first that they are verified
on."""

Digest = Annotated[str, Matching("[0-9a-f]{64}")]
Bytes = Annotated[int, Between(0, BYTES_LIMIT)]
ItemNumber = Annotated[int, Between(0, ITEMS_LIMIT)]
Seed = Annotated[int, Between(0, 1 << 31)]
Files = Mapping[str, Digest]
"""Digests of files by the name of the input or output that the file contains."""


class WorkKind(StrEnum):
    """The kind of work of a run."""

    CHECK = "check"
    RACE = "race"
    PROFILE = "profile"
    SPEEDS = "speeds"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a program's weights: its position in a blob and in the weight block, in bytes.

    Attributes:
        start: the offset in the blob.
        bytes: the length.
        offset: the offset in the program's block of weights.
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
        program: digest of the JSON of `compiler.runtime.program.Program`.
        library: digest of its code, a shared library; empty if it has no kernels.
        block: number of its block of weights. Programs with equal numbers share the block.
        parts: the weights that it reads.
        inputs: maps the name of an input to the digest of the .npy file that fills it. All other
            inputs are random.
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
    """Work: run a program once on random inputs from `seed` and compare its outputs.

    Attributes:
        program: position of the program in `RunRequest.programs`.
        expected: for each output to compare, the digest of an .npy file with the expected values.
        fetch: the names of the outputs to return (`run_results.FETCH_BYTES`).
    """

    json_form: ClassVar[JsonForm] = JsonForm(constants={"do": WorkKind.CHECK.value})

    program: ItemNumber
    seed: Seed
    expected: Files
    fetch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RaceWork:
    """Work: time each variant in pairs with the first variant.

    A variant is a sequence of programs that run one after the other, given by their positions in
    `RunRequest.programs`.
    """

    json_form: ClassVar[JsonForm] = JsonForm(constants={"do": WorkKind.RACE.value})

    variants: Annotated[tuple[Annotated[tuple[ItemNumber, ...], Length(1)], ...], Length(1)]
    seed: Seed = INPUT_SEED


@dataclass(frozen=True, slots=True)
class ProfileWork:
    """Work: time each instruction of a program within whole runs.

    The result has the fastest of `samples` times per instruction.
    """

    json_form: ClassVar[JsonForm] = JsonForm(constants={"do": WorkKind.PROFILE.value})

    program: ItemNumber
    samples: Annotated[int, Between(1, SAMPLES_LIMIT)]
    seed: Seed = INPUT_SEED


@dataclass(frozen=True, slots=True)
class SpeedsWork:
    """Work: measure the peaks of the machine with the functions in a library (`speeds.Probes`).

    Attributes:
        library: digest of the shared library.
        vector_bytes: size of the vectors that the functions use.
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
        request_id: its id; equal requests of one job have equal ids.
        job_id: the job that submits the run.
        threads: the threads that programs run with.
        programs: the programs, to which `work` refers by position.
        block_bytes: the size in bytes of each block of weights.
        work: the work to do.
        blobs: the size in bytes of each named blob, by digest.
        memory_bytes: the largest amount of memory that the run needs in addition to the process.
        limit_seconds: wall-time limit for one step: loading a program, or one run of it.
        plain: digests of a plan and of input arrays, for a device without NumPy
            (`tuner.measure.plain_form`).
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
        """Return the digests of all blobs that a device has to fetch."""
        return tuple(self.blobs)

    @property
    def blob_bytes(self) -> int:
        """Return the total size of all blobs in bytes."""
        return sum(self.blobs.values())

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Decode a request.

        Raises:
            ProtocolError: if it has another protocol version, or a field is missing, invalid, or
                beyond plausible limits.
        """
        check_protocol(data)
        return decode(cls, data)


def _check_places(request: RunRequest) -> None:
    """Raise ValueError if the request refers to a program, block or blob that it does not
    contain.
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
