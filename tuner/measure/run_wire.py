"""The wire format of a run: whole programs on a device, the second kind of request beside `wire`.

A request names the programs (their instructions, their code and their weights, all by digest) and
the work: check outputs, race, profile, or measure the roofline. Weights travel in parts, named by
content, so that programs that pack a weight alike name the same blob wherever it lies. A request
states beforehand what the device needs: blobs, memory and time. Only the standard library and NumPy
are imported: this is what a device needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, assert_never

from tilewright.compiler.runtime.native import MAX_THREADS
from tilewright.compiler.runtime.speeds import DOTS
from tilewright.tuner.measure.model_runs import INPUT_SEED
from tilewright.tuner.measure.wire import PROTOCOL, MeasureRequest, ProtocolError, check_protocol

BYTES_LIMIT = 1 << 46
ITEMS_LIMIT = 1_000_000
SECONDS_LIMIT = 86_400.0
SAMPLES_LIMIT = 100_000

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Part:
    """Weights: `bytes` of a blob, from `start` on, that lie at `offset` of the program's block."""

    digest: str
    start: int
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ProgramParts:
    """A program to run.

    Attributes:
        program: digest of the JSON of `compiler.runtime.program.Program`.
        library: digest of its code, a shared library; empty where it has no kernels.
        block: number of the block that its weights lie in. Programs with equal numbers share it.
        parts: the weights that it reads.
        inputs: digests of .npy files by the name of the input that each fills. All other inputs are
            random.
    """

    program: str
    library: str
    block: int
    parts: tuple[Part, ...]
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def digests(self) -> Iterator[str]:
        yield self.program
        if self.library:
            yield self.library
        yield from (part.digest for part in self.parts)
        yield from self.inputs.values()


@dataclass(frozen=True, slots=True)
class CheckWork:
    """Run a program once on inputs drawn with `seed` and compare outputs.

    `expected` gives, by output, the digest of an .npy file; `fetch` names the outputs to bring
    back (`run_result.FETCH_BYTES`).
    """

    program: int
    seed: int
    expected: Mapping[str, str]
    fetch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RaceWork:
    """Each variant in pairs with the first one. A variant is programs that run one by one."""

    variants: tuple[tuple[int, ...], ...]
    seed: int = INPUT_SEED


@dataclass(frozen=True, slots=True)
class ProfileWork:
    """Time every instruction of a program in its place; the fastest of `samples`."""

    program: int
    samples: int
    seed: int = INPUT_SEED


@dataclass(frozen=True, slots=True)
class SpeedsWork:
    """Measure the roofline with the functions of a library (`compiler.runtime.speeds.Probes`).

    `cache_bytes` and `memory_bytes` are facts of the device. `dots` are the narrow types whose
    functions the library has.
    """

    library: str
    vector_bytes: int
    cache_bytes: tuple[int, ...]
    memory_bytes: int
    dots: tuple[str, ...] = ()


Work = CheckWork | RaceWork | ProfileWork | SpeedsWork


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run.

    Attributes:
        request_id: names it; equal requests of one job have equal names.
        job_id: what asks.
        threads: that programs run with.
        programs: what `work` refers to by number.
        block_bytes: of each block of weights.
        work: what to do.
        blobs: bytes of each blob that is named, by digest.
        memory_bytes: what the run takes at most, beside the process.
        limit_seconds: wall time that one step may take: to load a program, one run of it.
        plain: digests of a plan and of inputs, for a device without NumPy (`plain_form`).
    """

    request_id: str
    job_id: str
    threads: int
    programs: tuple[ProgramParts, ...]
    block_bytes: tuple[int, ...]
    work: Work
    blobs: Mapping[str, int]
    memory_bytes: int
    limit_seconds: float
    plain: tuple[str, ...] = ()
    protocol: int = PROTOCOL

    @property
    def digests(self) -> tuple[str, ...]:
        """The blobs that a device has to fetch."""
        return tuple(self.blobs)

    @property
    def blob_bytes(self) -> int:
        """Of all blobs together."""
        return sum(self.blobs.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "run",
            "protocol": self.protocol,
            "request_id": self.request_id,
            "job_id": self.job_id,
            "threads": self.threads,
            "programs": [
                {
                    "program": each.program,
                    "library": each.library,
                    "block": each.block,
                    "parts": [[p.digest, p.start, p.offset, p.bytes] for p in each.parts],
                    **({"inputs": dict(each.inputs)} if each.inputs else {}),
                }
                for each in self.programs
            ],
            "block_bytes": list(self.block_bytes),
            "work": _work_to_json(self.work),
            "blobs": dict(self.blobs),
            "memory_bytes": self.memory_bytes,
            "limit_seconds": self.limit_seconds,
            **({"plain": list(self.plain)} if self.plain else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunRequest:
        """Read a request.

        Raises:
            ProtocolError: if it is of another protocol version, or a field is missing, wrong, or
                beyond all reason.
        """
        check_protocol(data)
        try:
            request = cls(
                request_id=_matches(_NAME, data["request_id"]),
                job_id=str(data["job_id"]),
                threads=_integer(data["threads"], MAX_THREADS, least=1),
                programs=_items(data["programs"], _program_from_json),
                block_bytes=_items(data["block_bytes"], _size),
                work=_work_from_json(data["work"]),
                blobs={_digest(name): _size(size) for name, size in data["blobs"].items()},
                memory_bytes=_size(data["memory_bytes"]),
                limit_seconds=_seconds(data["limit_seconds"]),
                plain=_items(data.get("plain", []), _digest),
            )
            _check_places(request)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"malformed run request: {error!r}") from error
        return request


Request = MeasureRequest | RunRequest


def is_run(payload: Mapping[str, Any]) -> bool:
    """Whether a request in its JSON form is a run, of whatever protocol version."""
    return payload.get("kind") == "run"


def read_request(payload: Mapping[str, Any]) -> Request:
    """A request of either kind.

    Raises:
        ProtocolError: as `from_json` of its class does.
    """
    if isinstance(payload, Mapping) and is_run(payload):
        return RunRequest.from_json(payload)
    return MeasureRequest.from_json(payload)


def _work_to_json(work: Work) -> dict[str, Any]:
    match work:
        case CheckWork(program, seed, expected, fetch):
            return {
                "do": "check",
                "program": program,
                "seed": seed,
                "expected": dict(expected),
                "fetch": list(fetch),
            }
        case RaceWork(variants, seed):
            return {"do": "race", "variants": [list(v) for v in variants], "seed": seed}
        case ProfileWork(program, samples, seed):
            return {"do": "profile", "program": program, "samples": samples, "seed": seed}
        case SpeedsWork(library, vector_bytes, cache_bytes, memory_bytes, dots):
            return {
                "do": "speeds",
                "library": library,
                "vector_bytes": vector_bytes,
                "cache_bytes": list(cache_bytes),
                "memory_bytes": memory_bytes,
                "dots": list(dots),
            }
        case _:
            assert_never(work)


def _work_from_json(data: Mapping[str, Any]) -> Work:
    match data["do"]:
        case "check":
            return CheckWork(
                _integer(data["program"], ITEMS_LIMIT),
                _integer(data["seed"], 1 << 31),
                _files(data["expected"]),
                _items(data["fetch"], _text),
            )
        case "race":
            return RaceWork(
                _items(data["variants"], lambda v: _items(v, _size)),
                _integer(data["seed"], 1 << 31),
            )
        case "profile":
            return ProfileWork(
                _integer(data["program"], ITEMS_LIMIT),
                _integer(data["samples"], SAMPLES_LIMIT, least=1),
                _integer(data["seed"], 1 << 31),
            )
        case "speeds":
            return SpeedsWork(
                _digest(data["library"]),
                _integer(data["vector_bytes"], 1 << 12, least=4),
                _items(data["cache_bytes"], _size),
                _size(data["memory_bytes"]),
                _items(data.get("dots", []), _dot),  # services of earlier releases ask for none
            )
        case other:
            raise ValueError(f"there is no work '{other}'")


def _dot(name: Any) -> str:
    if name not in DOTS:
        raise ValueError(f"no peak of '{name}' is measured")
    return str(name)


def _program_from_json(data: Mapping[str, Any]) -> ProgramParts:
    return ProgramParts(
        _digest(data["program"]),
        _digest(data["library"]) if data["library"] else "",
        _integer(data["block"], ITEMS_LIMIT),
        _items(data["parts"], _part_from_json),
        _files(data.get("inputs", {})),
    )


def _part_from_json(data: Sequence[Any]) -> Part:
    digest, start, offset, size = data
    return Part(_digest(digest), _size(start), _size(offset), _size(size))


def _check_places(request: RunRequest) -> None:
    """Raises ValueError if something refers to what the request does not have."""
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
            if not variants or not all(variants):
                raise ValueError("a race without programs")
            numbers = [number for variant in variants for number in variant]
        case ProfileWork(program=number):
            numbers = [number]
        case SpeedsWork(library=library):
            named.add(library)
        case _:
            assert_never(request.work)
    if any(number >= len(request.programs) for number in numbers):
        raise ValueError(f"the work names a program beyond the {len(request.programs)}")
    if named != request.blobs.keys():
        raise ValueError("the list of blobs is not that of what is named")
    if request.blob_bytes > BYTES_LIMIT:
        raise ValueError(f"{request.blob_bytes} bytes of blobs")


Value = TypeVar("Value")


def _items(data: Any, read: Callable[[Any], Value]) -> tuple[Value, ...]:
    if not isinstance(data, list) or len(data) > ITEMS_LIMIT:
        raise ValueError("expected a list of reasonable length")
    return tuple(map(read, data))


def _integer(value: Any, most: int, least: int = 0) -> int:
    """An integer within the limits; booleans and floats are refused."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"expected an integer from {least} to {most}, got {value!r}")
    return value


def _size(value: Any) -> int:
    return _integer(value, BYTES_LIMIT)


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= SECONDS_LIMIT:
        raise ValueError(f"expected seconds up to {SECONDS_LIMIT:g}, got {value!r}")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a name, got {value!r}")
    return value


def _files(data: Mapping[Any, Any]) -> dict[str, str]:
    """Digests of files by the name of the input or output that each is of."""
    return {_text(name): _digest(digest) for name, digest in data.items()}


def _digest(value: Any) -> str:
    return _matches(_DIGEST, value)


def _matches(pattern: re.Pattern[str], value: Any) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not of the form {pattern.pattern}")
    return value
