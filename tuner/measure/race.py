"""Candidates timed against each other: in rounds where all take turns, or in pairs with one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.compiler.runtime.bench import BoundKernel
from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.tuner.measure.kernel_buffers import Buffers
from tilewright.tuner.measure.statistics import racing
from tilewright.tuner.measure.wire import Candidate, MeasureRequest, RepeatSettings

Emit = Callable[..., None]

CLOCK_SECONDS = 2e-5
"""To time a single run that takes longer adds hardly anything to it."""


@dataclass(slots=True)
class BoundCase:
    """A candidate bound to the buffers of one case: a second there counts `weight` times."""

    kernel: BoundKernel
    weight: float = 1.0
    runs_per_sample: int = 1


@dataclass(slots=True)
class Ready:
    """A candidate that passed its check: bound to the buffers of each timed case, with its samples.

    Of a workload with open sizes there are several cases. They are sampled one after the other,
    and the sample is the weighted sum.
    """

    candidate: Candidate
    timed: Sequence[BoundCase]
    cold_weights: bool = False
    """Whether its weights are too large to be in a cache when the model comes to it. Then they are
    dropped before each sample, and a sample is one run."""
    samples: list[float] = field(default_factory=list)


@dataclass(slots=True)
class CandidateRace:
    """A request whose candidates are timed: those that are still in it, and their memory."""

    request: MeasureRequest
    buffers: Sequence[Buffers]
    left: list[Ready] = field(default_factory=list)


class Races:
    """Times what passed its checks; every sample is an event."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def run(self, races: Sequence[CandidateRace]) -> None:
        """Time what passed its checks. What a further part of a batch needs stays in its race."""
        self._screen([race for race in races if not race.request.incumbent])
        for race in races:
            if race.request.incumbent:
                race.left = self._compare(race.left, race.request)

    def _screen(self, races: Sequence[CandidateRace]) -> None:
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

    def _compare(self, ready: Sequence[Ready], request: MeasureRequest) -> list[Ready]:
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

    def _pair(self, entry: Ready, incumbent: Ready, seconds: float, against: float) -> None:
        self._emit(
            event="pair",
            trial=entry.candidate.trial_id,
            against=incumbent.candidate.schedule_digest,
            ratio=seconds / against if against > 0.0 else 1.0,
        )

    def _calibrated(self, entry: Ready, repeat: RepeatSettings, best: float) -> bool:
        """Find how many runs make a sample; False for a candidate that is abandoned at once."""
        self._emit(event="begin", trial=entry.candidate.trial_id, step="time")
        if not entry.cold_weights:
            single = [float(each.kernel.time(2, 1).min()) for each in entry.timed]
            if _weighted(entry, single) > max(repeat.abandon_ratio * best, CLOCK_SECONDS):
                self._sampled(entry, single)
                return False
            for each in entry.timed:
                share = repeat.sample_seconds / len(entry.timed)
                each.runs_per_sample = each.kernel.inner_for(share)
        return True

    def _sample(self, entry: Ready) -> float:
        """One sample: seconds a run."""
        self._emit(event="begin", trial=entry.candidate.trial_id, step="time")
        seconds = []
        for each in entry.timed:
            each.kernel.run()  # not timed: it brings its buffers back into the caches
            if entry.cold_weights:
                each.kernel.evict(BufferRole.WEIGHT)
            seconds.append(float(each.kernel.time(1, each.runs_per_sample)[0]))
        return self._sampled(entry, seconds)

    def _sampled(self, entry: Ready, seconds: Sequence[float]) -> float:
        entry.samples.append(_weighted(entry, seconds))
        self._emit(event="sample", trial=entry.candidate.trial_id, seconds=list(seconds))
        return entry.samples[-1]


def held_bytes(races: Sequence[CandidateRace]) -> int:
    """Memory of all races; two batches of one workload share theirs."""
    return sum({id(b): b.held_bytes for race in races for b in race.buffers}.values())


def _weighted(entry: Ready, seconds: Sequence[float]) -> float:
    return sum(each.weight * s for each, s in zip(entry.timed, seconds, strict=True))


def _next_round(began: float, round_seconds: float) -> float:
    """Wait until a round may start, given when the last one began; returns when it starts."""
    time.sleep(max(0.0, began + round_seconds - time.monotonic()))
    return time.monotonic()


def _still_racing(left: Sequence[Ready], repeat: RepeatSettings) -> list[Ready]:
    """Candidates that are neither abandoned nor shown to be slower than the fastest."""
    left = [entry for entry in left if entry.samples]
    if not left:
        return []
    leader = repeat.incumbent_seconds
    stays = racing([entry.samples for entry in left], repeat.margin, leader)
    best = min(min(entry.samples) for entry in left)
    limit = repeat.abandon_ratio * min(best, leader or best)
    return [e for e, stay in zip(left, stays, strict=True) if stay and min(e.samples) <= limit]
