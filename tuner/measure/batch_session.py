"""The child's side of batches: checks each candidate's output, and has those that agree timed.

Only the standard library, NumPy and compiler.runtime are imported.
"""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.bench import BoundKernel, reference_seconds
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec, KernelSpec
from tilewright.compiler.runtime.packing import from_bfloat16, unpack
from tilewright.compiler.runtime.verify import compare
from tilewright.tuner.measure.kernel_buffers import POISON, Buffers
from tilewright.tuner.measure.race import BoundCase, CandidateRace, Emit, Races, Ready, held_bytes
from tilewright.tuner.measure.run_session import run_job
from tilewright.tuner.measure.run_wire import RunRequest
from tilewright.tuner.measure.wire import Candidate, Case, InputSpec, MeasureRequest

MEMORY_LIMIT_BYTES = 1 << 30
"""Packed buffers at a time. A batch that needs more is raced in parts: a fully connected layer of
VGG has 400 MB of weights, and each candidate may pack them differently."""

KEPT_BYTES = 1 << 28
"""Inputs and packed buffers of earlier workloads are kept, for tasks whose batches alternate."""

COLD_WEIGHT_BYTES = 1 << 20
"""Weights from this size on come from memory in every run of a model. Timed warm, an algorithm that
expands them (Winograd) looks faster than it is: at 256 channels and 14x14 pixels by two thirds."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A case with its inputs drawn: the memory of candidates there, and what they must give."""

    case: Case
    buffers: Buffers
    expected: np.ndarray

    def share_weights(self, first: _Prepared) -> None:
        """Use weights as they were packed for the case of other sizes, where they are the same."""
        if self.buffers is not first.buffers:
            pairs = zip(self.case.inputs, first.case.inputs, strict=True)
            same = frozenset(n for n, (mine, other) in enumerate(pairs) if mine == other)
            self.buffers.beside = first.buffers, same


class BatchSession:
    """Checks and times the candidates of jobs; the inputs of the last workloads are kept."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._races = Races(emit)
        self._kept: OrderedDict[tuple[InputSpec, ...], Buffers] = OrderedDict()
        self._references: dict[str, np.ndarray] = {}

    def run(self, job: Mapping[str, Any]) -> None:
        """Do a job, reporting each step before it is taken.

        `{"probe": threads}` times the reference kernel. `run` is a request to run whole programs,
        and `files` the paths of its blobs. Else `requests` holds measure requests with the paths of
        their `library` and `references` (one a case), and `only` names the candidates to measure.
        Requests of one job are interleaved: between the rounds of one, those of the others are run.
        """
        if "probe" in job:
            self._probe(int(job["probe"]))
            self._emit(event="done")
            return
        if "run" in job:
            self._forget()  # a whole model needs all memory
            run_job(RunRequest.from_json(job["run"]), job["files"], self._emit)
            self._emit(event="done")
            return
        parts = [(MeasureRequest.from_json(part["request"]), part) for part in job["requests"]]
        threads = parts[0][0].key.threads
        self._probe(threads)
        races: list[CandidateRace] = []
        for request, part in parts:
            self._check_all(request, part, set(job["only"]), races)
        self._races.run(races)
        self._probe(threads)
        self._emit(event="done")

    def _forget(self) -> None:
        """Give up what is kept for further requests of the same workloads."""
        self._kept.clear()
        self._references.clear()

    def _check_all(
        self,
        request: MeasureRequest,
        part: Mapping[str, Any],
        only: Container[str],
        races: list[CandidateRace],
    ) -> None:
        """Check the candidates of a request, and enter those that agree into a race of their own.

        If memory runs out, all races are run with the candidates that are in them by then.
        """
        wanted = [c for c in request.candidates if c.trial_id in only]
        library = ctypes.CDLL(part["library"], mode=os.RTLD_LOCAL | os.RTLD_NOW)
        paths = dict(zip(request.cases, part["references"], strict=True))
        timed = request.timed
        # Those that are timed come last: the runs that are timed use their buffers.
        for case in reversed([case for case in request.cases if case not in timed]):
            prepared = self._prepare(case, paths)
            agreed = []
            for candidate in wanted:
                if self._check(candidate, request, prepared, library) is not None:
                    agreed.append(candidate)
                if prepared.buffers.held_bytes > MEMORY_LIMIT_BYTES:
                    prepared.buffers.forget()
            wanted = agreed
            prepared.buffers.forget()
        points = [self._prepare(case, paths) for case in timed]
        for point in points[1:]:
            point.share_weights(points[0])
        race = CandidateRace(request, [point.buffers for point in points])
        races.append(race)
        for candidate in wanted:
            ready = self._ready(candidate, request, points, library)
            if ready is not None:
                race.left.append(ready)
            if held_bytes(races) > MEMORY_LIMIT_BYTES:
                self._races.run(races)
                for each in races:
                    for buffers in each.buffers:
                        buffers.forget()

    def _probe(self, threads: int) -> None:
        """Say how fast this machine is just now."""
        arithmetic, memory = reference_seconds(threads)
        self._emit(event="speed", arithmetic=arithmetic, memory=memory)

    def _prepare(self, case: Case, paths: Mapping[Case, str]) -> _Prepared:
        """Draw the inputs of a case, and read its expected output."""
        self._emit(event="prepare")
        found = self._kept.pop(case.inputs, None)
        while self._kept and sum(b.held_bytes for b in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        if found is None:
            found = Buffers(tuple(spec.draw() for spec in case.inputs))
            found.held_bytes = sum(array.nbytes for array in found.arrays)
        self._kept[case.inputs] = found
        # References of one request at a time, since they are as large as the outputs.
        self._references = {p: a for p, a in self._references.items() if p in paths.values()}
        path = paths[case]
        if path not in self._references:
            self._references[path] = np.load(path, allow_pickle=False)
        return _Prepared(case, found, self._references[path])

    def _ready(
        self,
        candidate: Candidate,
        request: MeasureRequest,
        points: Sequence[_Prepared],
        library: ctypes.CDLL,
    ) -> Ready | None:
        """Check a candidate on every case that it is timed on."""
        timed = []
        for point in points:
            kernel = self._check(candidate, request, point, library)
            if kernel is None:
                return None
            timed.append(BoundCase(kernel, point.case.weight if request.has_sizes else 1.0))
        buffers = timed[0].kernel.spec.buffers
        weights = sum(b.bytes for b in buffers if b.role is BufferRole.WEIGHT)
        return Ready(candidate, timed, weights >= COLD_WEIGHT_BYTES)

    def _check(
        self,
        candidate: Candidate,
        request: MeasureRequest,
        prepared: _Prepared,
        library: ctypes.CDLL,
    ) -> BoundKernel | None:
        """Run a candidate once on poisoned memory and compare its output with the reference."""
        self._emit(event="begin", trial=candidate.trial_id, step="check")
        memory = prepared.buffers
        try:
            ranged = KernelSpec.from_json(candidate.spec)
            sizes = _sizes(ranged, prepared.case)
            spec = ranged.at(sizes)
            buffers = [memory.get(b) for b in spec.buffers]
            (position,) = spec.outputs
            output_spec, output = spec.buffers[position], buffers[position]
            for b, block in zip(spec.buffers, buffers, strict=True):
                if b.role in (BufferRole.OUTPUT, BufferRole.SHARED):
                    block.view(np.uint8)[:] = POISON
            addresses = [_address(library, stage.symbol) for stage in spec.stages]
            kernel = BoundKernel(
                ranged, addresses, buffers, request.key.threads, memory.scratch, sizes
            )
        except (ValueError, KeyError, AttributeError, OSError, MemoryError) as error:
            self._emit(
                event="checked", trial=candidate.trial_id, status="run_error", error=str(error)
            )
            return None
        kernel.run()
        actual = unpack(
            output,
            output_spec.shape,
            output_spec.parsed_layout(),
            output_spec.halo,
            output_spec.dtype,
        )
        if output_spec.halo and not _halo_is_zero(output_spec, output):
            self._emit(
                event="checked",
                trial=candidate.trial_id,
                status="wrong_answer",
                error="the halo of the output is not zero",
            )
            return None
        if output_spec.dtype is DType.BFLOAT16:
            actual = from_bfloat16(actual)
        distance = compare(actual, prepared.expected)
        if not distance <= request.tolerance:
            self._emit(
                event="checked",
                trial=candidate.trial_id,
                status="wrong_answer",
                error=f"relative error {distance:.3g} over the tolerance {request.tolerance:g}",
                max_error=distance if np.isfinite(distance) else None,
            )
            return None
        self._emit(event="checked", trial=candidate.trial_id, status="ok", max_error=distance)
        return kernel


def _sizes(spec: KernelSpec, case: Case) -> tuple[int, ...]:
    """The sizes of a case in the order of a kernel's open dimensions.

    Raises:
        ValueError: if they are those of other dimensions.
    """
    known = dict(case.sizes)
    if absent := [d.name for d in spec.sizes if d.name not in known]:
        raise ValueError(f"kernel '{spec.name}': nobody says what dimension '{absent[0]}' is")
    return tuple(known[d.name] for d in spec.sizes)


def _address(library: ctypes.CDLL, symbol: str) -> int:
    """Where a stage's function lies; AttributeError if the library has none of that name."""
    address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert address is not None
    return address


def _halo_is_zero(spec: BufferSpec, output: np.ndarray) -> bool:
    """Whether the producer wrote the zeros that consumers read as their padding.

    Elements that a layout adds to fill whole blocks are neither written nor read.
    """
    padded = tuple(n + sum(pair) for n, pair in zip(spec.shape, spec.halo, strict=True))
    whole = unpack(output, padded, spec.parsed_layout(), (), spec.dtype)
    interior = tuple(
        slice(before, before + n) for n, (before, _) in zip(spec.shape, spec.halo, strict=True)
    )
    whole[interior] = 0
    return not whole.any()
