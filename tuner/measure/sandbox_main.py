"""The child process that runs candidates: `python -m tuner.measure.sandbox_main`.

It reads one JSON job a line from standard input and answers with JSON events, one a line, on what
was its standard output. A candidate that crashes takes this process down and nothing else; the last
event says which one it was. Only the standard library, NumPy and compiler.runtime are imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import numpy as np

from compiler.dtypes import DType
from compiler.loops.layout import ROW_MAJOR
from compiler.runtime.bench import BoundKernel, reference_seconds
from compiler.runtime.kernel import BufferRole, BufferSpec, KernelSpec
from compiler.runtime.packing import aligned_empty, make_weight, pack, unpack
from compiler.runtime.verify import compare
from tuner.measure.run_session import run_job
from tuner.measure.run_wire import RunRequest
from tuner.measure.statistics import racing
from tuner.measure.wire import Candidate, Case, InputSpec, MeasureRequest, RepeatSettings

POISON = 0xFF
"""Byte that fills memory a kernel must write before it reads: NaN in every float type."""

MEMORY_LIMIT_BYTES = 1 << 30
"""Packed buffers at a time. A batch that needs more is raced in parts: a fully connected layer of
VGG has 400 MB of weights, and each candidate may pack them differently."""

KEPT_BYTES = 1 << 28
"""Inputs and packed buffers of earlier workloads are kept, for tasks whose batches alternate."""

COLD_WEIGHT_BYTES = 1 << 20
"""Weights from this size on come from memory in every run of a model. Timed warm, an algorithm that
expands them (Winograd) looks faster than it is: at 256 channels and 14x14 pixels by two thirds."""

CLOCK_SECONDS = 2e-5
"""To time a single run that takes longer adds hardly anything to it."""

Emit = Callable[..., None]


@dataclass(slots=True)
class _Buffers:
    """Packed inputs and weights, and outputs and scratch, shared by equal specifications.

    Candidates that share memory are compared fairly: a different output buffer alone has moved a
    kernel's time by 10 %.
    """

    arrays: Sequence[np.ndarray] = ()
    packed: dict[str, np.ndarray] = field(default_factory=dict)
    held_bytes: int = 0

    def forget(self) -> None:
        """Give up everything but the logical inputs."""
        self.packed.clear()
        self.held_bytes = sum(array.nbytes for array in self.arrays)

    def get(self, spec: BufferSpec) -> np.ndarray:
        """The buffer for one argument of a kernel; inputs and weights are filled."""
        identity = json.dumps(_buffer_identity(spec), sort_keys=True)
        found = self.packed.get(identity)
        if found is None:
            found = self._make(spec)
            self.packed[identity] = found
            self.held_bytes += found.nbytes
        return found

    def scratch(self, size: int) -> np.ndarray:
        """Thread-private scratch, grown to the largest that a candidate asked for."""
        found = self.packed.get("scratch")
        if found is None or found.nbytes < size:
            found = aligned_empty(size)
            self.packed["scratch"] = found
        found[:] = POISON
        return found

    def _make(self, spec: BufferSpec) -> np.ndarray:
        match spec.role:
            case BufferRole.INPUT:
                source = self.arrays[spec.source]
                return pack(source, spec.shape, spec.parsed_layout(), spec.halo, spec.dtype)
            case BufferRole.WEIGHT:
                value = self.arrays[spec.source]
                if not spec.einsum:
                    return make_weight(spec, value)
                value = self._transformed(spec, value)
                return pack(value, spec.shape, spec.parsed_layout(), spec.halo, spec.dtype)
            case BufferRole.SHARED | BufferRole.OUTPUT:
                return aligned_empty(spec.bytes)

    def _transformed(self, spec: BufferSpec, source: np.ndarray) -> np.ndarray:
        """A weight after its einsum, row-major: candidates pack the same transform differently."""
        identity = json.dumps([spec.source, spec.parts, spec.einsum, spec.matrices])
        found = self.packed.get(identity)
        if found is None:
            plain = replace(spec, layout=str(ROW_MAJOR), halo=())
            found = make_weight(plain, source)
            self.packed[identity] = found
            self.held_bytes += found.nbytes
        return found.view(spec.dtype.numpy).reshape(spec.shape)


def _buffer_identity(spec: BufferSpec) -> dict[str, Any]:
    data = dict(spec.to_json())
    data.pop("name", None)
    return data


@dataclass(slots=True)
class _Ready:
    """A candidate that passed its check: bound to its buffers, with its samples."""

    candidate: Candidate
    kernel: BoundKernel
    runs_per_sample: int
    cold_weights: bool = False
    """Whether its weights are too large to be in a cache when the model comes to it. Then they are
    dropped before each sample, and a sample is one run."""
    samples: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Race:
    """A request whose candidates are timed: those that are still in it, and their memory."""

    request: MeasureRequest
    buffers: _Buffers
    left: list[_Ready] = field(default_factory=list)


class Session:
    """Checks and times the candidates of jobs; the inputs of the last workloads are kept."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._buffers = _Buffers()
        self._kept: OrderedDict[tuple[InputSpec, ...], _Buffers] = OrderedDict()
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
            self._forget()  # a whole model needs the memory
            run_job(RunRequest.from_json(job["run"]), job["files"], self._emit)
            self._emit(event="done")
            return
        parts = [(MeasureRequest.from_json(part["request"]), part) for part in job["requests"]]
        threads = parts[0][0].key.threads
        self._probe(threads)
        races: list[_Race] = []
        for request, part in parts:
            self._check_all(request, part, set(job["only"]), races)
        self._run_races(races)
        self._probe(threads)
        self._emit(event="done")

    def _forget(self) -> None:
        """Give up what is kept for further requests of the same workloads."""
        self._buffers = _Buffers()
        self._kept.clear()
        self._references.clear()

    def _check_all(
        self,
        request: MeasureRequest,
        part: Mapping[str, Any],
        only: Container[str],
        races: list[_Race],
    ) -> None:
        """Check the candidates of a request, and enter those that agree into a race of their own.

        If memory runs out, all races are run with the candidates that are in them by then.
        """
        wanted = [c for c in request.candidates if c.trial_id in only]
        library = ctypes.CDLL(part["library"], mode=os.RTLD_LOCAL | os.RTLD_NOW)
        # The first case last: its buffers are those that are timed.
        for case, path in list(zip(request.cases, part["references"], strict=True))[:0:-1]:
            expected = self._prepare(case, path)
            agreed = []
            for candidate in wanted:
                if self._check(candidate, request, expected, library) is not None:
                    agreed.append(candidate)
                if self._buffers.held_bytes > MEMORY_LIMIT_BYTES:
                    self._buffers.forget()
            wanted = agreed
            self._buffers.forget()
        expected = self._prepare(request.cases[0], part["references"][0])
        race = _Race(request, self._buffers)
        races.append(race)
        for candidate in wanted:
            checked = self._check(candidate, request, expected, library)
            if checked is not None:
                race.left.append(checked)
            if _held_bytes(races) > MEMORY_LIMIT_BYTES:
                self._run_races(races)
                for each in races:
                    each.buffers.forget()

    def _probe(self, threads: int) -> None:
        """Say how fast this machine is just now."""
        arithmetic, memory = reference_seconds(threads)
        self._emit(event="speed", arithmetic=arithmetic, memory=memory)

    def _prepare(self, case: Case, path: str) -> np.ndarray:
        """Draw the inputs of a case; its expected output."""
        self._emit(event="prepare")
        found = self._kept.pop(case.inputs, None)
        while self._kept and sum(b.held_bytes for b in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        if found is None:
            found = _Buffers(tuple(spec.draw() for spec in case.inputs))
            found.held_bytes = sum(array.nbytes for array in found.arrays)
        self._kept[case.inputs] = self._buffers = found
        if path not in self._references:
            # those of one request at a time: they are as large as the outputs
            self._references = {path: np.load(path, allow_pickle=False)}
        return self._references[path]

    def _check(
        self,
        candidate: Candidate,
        request: MeasureRequest,
        expected: np.ndarray,
        library: ctypes.CDLL,
    ) -> _Ready | None:
        """Run a candidate once on poisoned memory and compare its output with the reference."""
        self._emit(event="begin", trial=candidate.trial_id, step="check")
        try:
            spec = KernelSpec.from_json(candidate.spec)
            buffers = [self._buffers.get(b) for b in spec.buffers]
            (position,) = spec.outputs
            output_spec, output = spec.buffers[position], buffers[position]
            for b, memory in zip(spec.buffers, buffers, strict=True):
                if b.role in (BufferRole.OUTPUT, BufferRole.SHARED):
                    memory.view(np.uint8)[:] = POISON
            addresses = [_address(library, stage.symbol) for stage in spec.stages]
            kernel = BoundKernel(
                spec, addresses, buffers, request.key.threads, self._buffers.scratch
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
        distance = compare(_widened(actual, output_spec.dtype), expected)
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
        weights = sum(b.bytes for b in spec.buffers if b.role is BufferRole.WEIGHT)
        return _Ready(candidate, kernel, 1, weights >= COLD_WEIGHT_BYTES)

    def _run_races(self, races: Sequence[_Race]) -> None:
        """Time what passed its checks. What a further part of a batch needs stays in its race."""
        self._screen([race for race in races if not race.request.incumbent])
        for race in races:
            if race.request.incumbent:
                race.left = self._compare(race.left, race.request)

    def _screen(self, races: Sequence[_Race]) -> None:
        """Interleaved rounds in fresh seeded orders; slow candidates leave early.

        In a fixed order the first of two candidates that share buffers pays the misses.
        """
        orders = [random.Random(race.request.repeat.seed) for race in races]
        bests = [race.request.repeat.incumbent_seconds or float("inf") for race in races]
        began = float("-inf")
        for number in range(max((race.request.repeat.samples for race in races), default=0)):
            going = [race.request.repeat for race in races if race.left]
            if not going:
                return
            began = _next_round(began, max(repeat.round_seconds for repeat in going))
            for position, race in enumerate(races):
                repeat = race.request.repeat
                orders[position].shuffle(race.left)
                for entry in race.left:
                    if number == 0 and not self._calibrated(entry, repeat, bests[position]):
                        continue
                    bests[position] = min(bests[position], self._sample(entry))
                last = number + 1 >= repeat.samples
                race.left = [] if last else _still_racing(race.left, repeat)

    def _compare(self, ready: Sequence[_Ready], request: MeasureRequest) -> list[_Ready]:
        """Each challenger in pairs with the incumbent, A B B A; returns the incumbent.

        If the incumbent failed, the first candidate that did not fail stands in for it.
        """
        if not ready:
            return []
        named = [entry for entry in ready if entry.candidate.trial_id == request.incumbent]
        incumbent = (named or list(ready))[0]
        repeat = request.repeat
        rng = random.Random(repeat.seed)
        left = [entry for entry in ready if entry is not incumbent]
        self._calibrated(incumbent, repeat, float("inf"))
        best = self._sample(incumbent)
        left = [entry for entry in left if self._calibrated(entry, repeat, best)]
        began = float("-inf")
        for _ in range(-(-repeat.samples // 2)):
            began = _next_round(began, repeat.round_seconds)
            rng.shuffle(left)
            for entry in left:
                first, challenger = self._sample(incumbent), self._sample(entry)
                self._pair(entry, incumbent, challenger, first)
                challenger, last = self._sample(entry), self._sample(incumbent)
                self._pair(entry, incumbent, challenger, last)
            if not left:
                self._sample(incumbent)
            racers = _still_racing([incumbent, *left], repeat)
            left = [entry for entry in left if entry in racers]
        return [incumbent]

    def _pair(self, entry: _Ready, incumbent: _Ready, seconds: float, against: float) -> None:
        self._emit(
            event="pair",
            trial=entry.candidate.trial_id,
            against=incumbent.candidate.schedule_digest,
            ratio=seconds / against if against > 0.0 else 1.0,
        )

    def _calibrated(self, entry: _Ready, repeat: RepeatSettings, best: float) -> bool:
        """Find how many runs make a sample; False for a candidate that is abandoned at once."""
        self._emit(event="begin", trial=entry.candidate.trial_id, step="time")
        if not entry.cold_weights:
            single = float(entry.kernel.time(2, 1).min())
            if single > max(repeat.abandon_ratio * best, CLOCK_SECONDS):
                self._sampled(entry, single)
                return False
            entry.runs_per_sample = entry.kernel.inner_for(repeat.sample_seconds)
        return True

    def _sample(self, entry: _Ready) -> float:
        """One sample: seconds a run."""
        self._emit(event="begin", trial=entry.candidate.trial_id, step="time")
        entry.kernel.run()  # untimed: brings its buffers back into the caches
        if entry.cold_weights:
            entry.kernel.evict(BufferRole.WEIGHT)
        seconds = float(entry.kernel.time(1, entry.runs_per_sample)[0])
        self._sampled(entry, seconds)
        return seconds

    def _sampled(self, entry: _Ready, seconds: float) -> None:
        entry.samples.append(seconds)
        self._emit(event="sample", trial=entry.candidate.trial_id, seconds=seconds)


def _held_bytes(races: Sequence[_Race]) -> int:
    """Memory of all races; two batches of one workload share theirs."""
    return sum({id(race.buffers): race.buffers.held_bytes for race in races}.values())


def _next_round(began: float, round_seconds: float) -> float:
    """Wait until a round may start, given when the last one began; returns when it starts."""
    time.sleep(max(0.0, began + round_seconds - time.monotonic()))
    return time.monotonic()


def _still_racing(left: Sequence[_Ready], repeat: RepeatSettings) -> list[_Ready]:
    """Candidates that are neither abandoned nor shown to be slower than the fastest."""
    left = [entry for entry in left if entry.samples]
    if not left:
        return []
    leader = repeat.incumbent_seconds
    stays = racing([entry.samples for entry in left], repeat.margin, leader)
    best = min(min(entry.samples) for entry in left)
    limit = repeat.abandon_ratio * min(best, leader or best)
    return [e for e, stay in zip(left, stays, strict=True) if stay and min(e.samples) <= limit]


def _address(library: ctypes.CDLL, symbol: str) -> int:
    """Where a stage's function lies; AttributeError if the library has none of that name."""
    address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
    assert address is not None
    return address


def _widened(array: np.ndarray, dtype: DType) -> np.ndarray:
    """bfloat16 comes as its 16 raw bits, the upper half of a float32."""
    if dtype is DType.BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


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


def _private_channel() -> TextIO:
    """Keep the real standard output to ourselves: what a kernel prints goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return channel


def _die_with_parent() -> None:
    """Linux: be killed when the parent is. Elsewhere end of input does it, between kernels."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def _limit_resources() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> None:
    """Serve jobs until standard input ends."""
    channel = _private_channel()
    _die_with_parent()
    _limit_resources()

    def emit(**event: Any) -> None:
        channel.write(json.dumps(event) + "\n")

    session = Session(emit)
    emit(event="ready", pid=os.getpid())
    for line in sys.stdin:
        job = json.loads(line)
        session.run(job)


if __name__ == "__main__":
    main()
