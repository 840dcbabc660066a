"""Conversion of built candidates to measurement requests, and of the results to trials."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.measure.builder import Built
from tilewright.tuner.measure.oracle import ExpectedOutput
from tilewright.tuner.protocol.batches import (
    LEAST_SECONDS,
    Candidate,
    MeasureRequest,
    MeasureResult,
    RepeatSettings,
)
from tilewright.tuner.protocol.blobs import digest_bytes
from tilewright.tuner.protocol.measurement import Phase, RecordKey, Trial

Link = Callable[[Sequence[bytes]], bytes]
"""A function that links object files, given as bytes, into a shared object and returns its
bytes."""


@dataclass(frozen=True, slots=True)
class BuiltCandidate:
    """A built candidate, with the id and the origin that its trial will have.

    The origin names the source of the candidate, such as a search strategy.
    """

    trial_id: str
    built: Built
    origin: str = ""


def make_request(
    key: RecordKey,
    entries: Sequence[BuiltCandidate],
    references: Sequence[ExpectedOutput],
    repeat: RepeatSettings,
    *,
    link: Link,
    phase: Phase,
    job_id: str,
    codegen_version: str,
    least_seconds: float = LEAST_SECONDS,
) -> tuple[MeasureRequest, dict[str, bytes]]:
    """Create a measurement request for built candidates of one task (a workload to tune).

    Args:
        key: workload, target, threads and numerics of the task.
        entries: the candidates. In screening, each one is timed independently. In every other
            phase, the first one is the schedule to beat, and the others are compared with it.
        references: inputs with expected outputs. Each candidate is checked on all of them. It is
            timed on those that have a size point (the sizes of dynamic dimensions).
        repeat: the settings for repeated timing.
        link: links the candidates' objects; equal objects are linked once.
        phase: screening, final comparison or confirmation.
        job_id: the id of the job, stored in the trials.
        codegen_version: the version of the code generator, stored in the trials.
        least_seconds: the smallest credible time; shorter measurements are rejected.

    Returns:
        The request and the blobs to which it refers, by digest: the library with the candidates'
        code, and the expected outputs.

    Raises:
        CompilerError: if the objects cannot be linked.
    """
    objects = {entry.built.object_digest: entry.built.object for entry in entries}
    library = link(list(objects.values()))
    candidates = tuple(
        Candidate(
            entry.trial_id,
            entry.built.schedule.to_json(),
            entry.built.schedule.digest,
            entry.built.spec,
            entry.built.object_digest,
            entry.built.build_seconds,
            entry.origin,
        )
        for entry in entries
    )
    request = MeasureRequest(
        request_id=_request_id(entries),
        key=key,
        candidates=candidates,
        library_digest=digest_bytes(library),
        cases=tuple(reference.case for reference in references),
        tolerance=max(reference.tolerance for reference in references),
        least_seconds=least_seconds,
        incumbent="" if phase is Phase.SCREEN else entries[0].trial_id,
        repeat=repeat,
        phase=phase,
        job_id=job_id,
        codegen_version=codegen_version,
    )
    blobs = {reference.digest: reference.expected for reference in references}
    return request, {request.library_digest: library, **blobs}


def trials_of(request: MeasureRequest, result: MeasureResult) -> list[Trial]:
    """Convert the result of a request to trials, leaving out candidates without a measurement.

    All properties of a trial other than its measurement come from the request. So a restarted
    process can convert the results of requests that an earlier process sent.
    """
    found = dict(result.measurements)
    return [
        Trial(
            candidate.trial_id,
            request.key,
            Schedule.from_json(dict(candidate.schedule)),
            found[candidate.trial_id],
            request.phase,
            request.job_id,
            request.codegen_version,
            candidate.origin,
        )
        for candidate in request.candidates
        if candidate.trial_id in found
    ]


def link_to_bytes(objects: Sequence[bytes]) -> bytes:
    """Link object files to a shared library with a linker of this machine; return its bytes.

    Raises:
        CompilerError: if no linker is found, or if the linker fails.
    """
    from tilewright.compiler.codegen.link import link_shared

    with tempfile.TemporaryDirectory(prefix="tilewright-link-") as folder:
        path = Path(folder) / "batch.so"
        link_shared(objects, path)
        return path.read_bytes()


def _request_id(entries: Sequence[BuiltCandidate]) -> str:
    """Return the id of a request, a digest of its trial ids and object digests.

    Equal requests have equal ids, so a runner does not measure the same request twice.
    """
    text = "\n".join(f"{entry.trial_id} {entry.built.object_digest}" for entry in entries)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
