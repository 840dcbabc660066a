"""Conversion of compiled programs to a request that runs them on a device, and its binary files.

The weights of a program form one block of memory. It is divided into files (blobs) at the offsets
to which the program refers. So two variants of a model that pack a weight identically share its
blob, even if their blocks have the weight at different offsets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.compiler.runtime.kernel import ALIGNMENT
from tilewright.compiler.runtime.packing import Bytes
from tilewright.compiler.runtime.program import Program
from tilewright.compiler.runtime.program_json import program_to_json
from tilewright.compiler.runtime.weight_ranges import weight_ranges
from tilewright.tuner.protocol.blobs import array_to_bytes, digest_bytes
from tilewright.tuner.protocol.runs import Part, ProgramParts, RunRequest, Work

PART_BYTES = 8 << 20
"""Limit of a blob with weights, in bytes. A larger weight is split into several blobs."""

SMALL_BYTES = 32 << 10
"""Size in bytes below which weights are joined into common blobs."""

PROCESS_BYTES = 16 << 20
"""Memory in bytes for loading a program, in addition to its buffers. It holds the program's code
and JSON, and the lists that are built from both."""

Blobs = Mapping[str, memoryview]


@dataclass(frozen=True, slots=True)
class PackedProgram:
    """A program in the form that is sent to a device.

    Attributes:
        digest: the digest of the program's JSON.
        library: the digest of its shared library; empty if it has no kernels.
        block: a number that identifies its block of weights in this process. Programs with equal
            numbers share the block.
        parts: the parts of the block that it reads.
        blobs: the bytes of the program, library, weights and inputs, by digest.
        inputs: for inputs that are not random, by name, the digest of the .npy file with the
            values.
        given: the arrays in these files, by input name.
    """

    program: Program
    digest: str
    library: str
    block: int
    parts: tuple[Part, ...]
    blobs: Blobs
    inputs: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def run_bytes(self) -> int:
        """Return the memory in bytes that one run needs, without weights and kernel scratch."""
        # An input is generated as float32 or int64, converted, and copied into aligned memory.
        drawn = sum(
            3 * max(port.bytes, 8 * port.bytes // port.dtype.bytes) for port in self.program.inputs
        )
        # Outputs of the previous run may still be in memory.
        made = sum(2 * port.bytes for port in self.program.outputs)
        return PROCESS_BYTES + self.program.arena_bytes + drawn + made


def pack_program(
    program: Program,
    weights: Bytes,
    library: bytes,
    given: Mapping[str, np.ndarray] | None = None,
) -> PackedProgram:
    """Convert a program to the form that is sent to a device.

    Args:
        program: the instructions.
        weights: the block of weights to which the instructions refer.
        library: the kernels as a shared library; empty if there are no kernels.
        given: arrays for some inputs, by name; the device fills the others with random values.
    """
    text = json.dumps(program_to_json(program), sort_keys=True, separators=(",", ":")).encode()
    parts, found = pack_weights(program, weights)
    blobs = dict(found)
    digest = _add(blobs, text)
    given = given or {}
    return PackedProgram(
        program,
        digest,
        _add(blobs, library) if library else "",
        weights.ctypes.data,
        parts,
        blobs,
        {name: _add(blobs, array_to_bytes(array)) for name, array in given.items()},
        given,
    )


def pack_weights(program: Program, weights: Bytes) -> tuple[tuple[Part, ...], Blobs]:
    """Divide the weights that a program reads into parts and blobs.

    Return the parts, each with its position in a blob, and the blobs by digest. Small weights are
    joined into common blobs, in an order that depends only on their contents. Large weights have
    their own blobs, which refer to the memory of `weights`.
    """
    parts: list[Part] = []
    blobs: dict[str, memoryview] = {}
    small: dict[bytes, list[tuple[int, memoryview]]] = {}
    for offset, size in weight_ranges(program):
        data = memoryview(np.ascontiguousarray(weights[offset : offset + size]).data)
        if size < SMALL_BYTES:
            small.setdefault(hashlib.sha256(data).digest(), []).append((offset, data))
            continue
        for start in range(0, size, PART_BYTES):
            piece = data[start : start + PART_BYTES]
            parts.append(Part(_add(blobs, piece), 0, offset + start, len(piece)))
    for bundle in _bundles([small[name] for name in sorted(small)]):
        digest = _add(blobs, b"".join(places[0][1] for places in bundle))
        start = 0
        for places in bundle:
            size = len(places[0][1])
            parts += [Part(digest, start, offset, size) for offset, _ in places]
            start += size
    return tuple(sorted(parts, key=lambda part: part.offset)), blobs


def make_request(
    job_id: str,
    threads: int,
    programs: Sequence[PackedProgram],
    work: Work,
    more: Blobs,
    work_bytes: int,
    limit_seconds: float,
) -> tuple[RunRequest, Blobs]:
    """Create a run request with an empty id. Return the request and its blobs by digest.

    Args:
        job_id: the job that submits the run.
        threads: the number of threads of each program.
        programs: the programs, to which the work refers by their positions.
        work: the work to do, such as checking outputs or timing variants.
        more: the binary data that the work names, such as expected outputs, by digest.
        work_bytes: bytes of memory that the work needs in addition to the programs' runs.
        limit_seconds: the wall-time limit for one step: loading a program, or one run of it.
    """
    blobs = dict(more)
    blocks: dict[int, int] = {}
    held: set[tuple[int, int, int]] = set()
    for each in programs:
        blobs.update(each.blobs)
        blocks[each.block] = max(blocks.get(each.block, 0), each.program.weight_bytes)
        held.update((each.block, part.offset, part.bytes) for part in each.parts)
    numbers = {block: number for number, block in enumerate(blocks)}
    memory = sum(size for _, _, size in held) + work_bytes
    memory += sum(p.run_bytes + threads * _scratch(p.program) for p in programs)
    request = RunRequest(
        request_id="",
        job_id=job_id,
        threads=threads,
        programs=tuple(
            ProgramParts(each.digest, each.library, numbers[each.block], each.parts, each.inputs)
            for each in programs
        ),
        block_bytes=tuple(blocks.values()),
        work=work,
        blobs={digest: len(data) for digest, data in sorted(blobs.items())},
        memory_bytes=memory,
        limit_seconds=limit_seconds,
    )
    return request, blobs


def request_name(request: RunRequest, *salt: object) -> str:
    """Return an id for a request: a digest of the request and of `salt`.

    Equal requests have equal ids, unless `salt` distinguishes them.
    """
    text = json.dumps([request.to_json(), *map(str, salt)], sort_keys=True)
    return digest_bytes(text.encode())


def _scratch(program: Program) -> int:
    return -(-program.scratch_bytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT


def _bundles(
    small: Iterable[list[tuple[int, memoryview]]],
) -> Iterable[list[list[tuple[int, memoryview]]]]:
    """Group small weights into bundles of at most PART_BYTES; each bundle becomes a blob.

    Each weight is a list of pairs, one for each of its positions: the offset in the block of
    weights, and the bytes, which are equal in all pairs.
    """
    bundle: list[list[tuple[int, memoryview]]] = []
    size = 0
    for places in small:
        if bundle and size + len(places[0][1]) > PART_BYTES:
            yield bundle
            bundle, size = [], 0
        bundle.append(places)
        size += len(places[0][1])
    if bundle:
        yield bundle


def _add(blobs: dict[str, memoryview], data: bytes | memoryview) -> str:
    digest = hashlib.sha256(data).hexdigest()
    blobs[digest] = memoryview(data)
    return digest
