"""Plausibility checks of a device's result against its request.

A worker may be faulty or dishonest, so the service checks results before it stores them, and the
tuner checks them before it uses them. Even a plausible result is used by other jobs only after
another worker has confirmed it. Devices use this module, so it imports only the standard library
and NumPy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from typing import assert_never

from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.batches import (
    LEAST_SECONDS,
    Candidate,
    MeasureRequest,
    MeasureResult,
)
from tilewright.tuner.protocol.measurement import Measurement, Status
from tilewright.tuner.protocol.messages import Request, WorkResult
from tilewright.tuner.protocol.run_results import FETCH_BYTES, RunResult, RunStatus
from tilewright.tuner.protocol.runs import (
    RACE_PAIRS,
    CheckWork,
    ProfileWork,
    RaceWork,
    RunRequest,
    SpeedsWork,
)

OF_DEVICES = frozenset(
    {Status.OK, Status.CRASH, Status.RUN_ERROR, Status.RUN_TIMEOUT, Status.WRONG_ANSWER}
)
"""The statuses that a device can report. The builder or the tuner sets all other statuses."""

LIMIT_SLACK = 2.0
"""Factor by which a reported time may exceed its limit. A step may still run when its time limit
ends."""

MOST_RATIO = 1e6
"""Largest accepted time ratio of two raced programs. The reciprocal is the smallest accepted
ratio."""

MOST_RATE = 1e16
"""Upper bound of the rate of any core, in operations or bytes per second."""

BASE_BYTES, TRIAL_BYTES = 1 << 16, 1 << 16
"""Upper bounds of JSON bytes: of a result without its trials, and of a trial with the facts about
its device but without its times."""

SAME_SUM = 1e-9
"""Largest accepted relative difference between two sums of the same numbers."""

NUMBER_BYTES = 32
"""Upper bound of the JSON bytes of a number and its separator."""

_SAMPLES_A_ROUND = 4
"""Upper bound of the numbers that a result has per round of one candidate: its samples, the
incumbent's samples, and their ratio."""

_MOST_RACED = RACE_PAIRS + 1
"""Limit of the time ratios per challenger. Pairs are measured two at a time, and one of the two may
give no ratio, so the limit is one more than `RACE_PAIRS`."""

_INSTRUCTION_BYTES = 16
"""Lower bound of the JSON bytes per instruction of a program. It limits the number of
instructions."""


class ImplausibleError(ValueError):
    """Raised if a device's result contradicts its request or cannot be true.

    Attributes:
        field: the path of the wrong field, such as `measurements.0.measurement.status`.
    """

    def __init__(self, field: str, sentence: str) -> None:
        self.field = field
        super().__init__(f"{field}: {sentence}")


def most_result_bytes(request: Request) -> int:
    """Return an upper bound of the size in bytes of the JSON of a request's result.

    A server rejects a longer body without reading it.
    """
    if isinstance(request, MeasureRequest):
        seeds = sum(len(case.inputs) for case in request.cases)
        sizes = len(request.timed) if request.has_sizes else 0
        numbers = seeds + (_SAMPLES_A_ROUND + 2 * sizes) * request.repeat.samples
        numbers += sum(1 + len(case.sizes) for case in request.timed)
        names = sum(len(json.dumps(dict(case.sizes))) + BASE_BYTES // 64 for case in request.timed)
        return BASE_BYTES + len(request.candidates) * (TRIAL_BYTES + names + NUMBER_BYTES * numbers)
    match request.work:
        case CheckWork(expected=expected, fetch=fetch):
            names = sum(len(json.dumps(name)) + NUMBER_BYTES for name in (*expected, *fetch))
            coming = min(FETCH_BYTES, request.memory_bytes) if fetch else 0
            return BASE_BYTES + names + 4 * -(-coming // 3)
        case ProfileWork(program=number):
            program = request.blobs[request.programs[number].program]
            return BASE_BYTES + NUMBER_BYTES * (program // _INSTRUCTION_BYTES)
        case RaceWork(variants=variants):
            return BASE_BYTES * len(variants)
        case SpeedsWork():
            return BASE_BYTES
        case _:
            assert_never(request.work)


def check_result(request: Request, result: WorkResult) -> None:
    """Check that a result is plausible for its request.

    The request is for a batch of candidates (`check_measured`) or for whole programs (`check_run`).

    Raises:
        ImplausibleError: if the result is implausible, or is for the other kind of request.
    """
    if isinstance(request, MeasureRequest) and isinstance(result, MeasureResult):
        check_measured(request, result)
    elif isinstance(request, RunRequest) and isinstance(result, RunResult):
        check_run(request, result)
    else:
        raise ImplausibleError("kind", "is that of another kind of request")


def check_measured(request: MeasureRequest, result: MeasureResult) -> None:
    """Check that a result is plausible for a batch of candidates.

    Raises:
        ImplausibleError: if it is not.
    """
    _require(result.request_id == request.request_id, "request_id", "is another request's")
    names = [candidate.trial_id for candidate in request.candidates]
    said = [name for name, _ in result.measurements]
    _require(said == names, "measurements", f"are not those of the {len(names)} trials, in order")
    for number, candidate in enumerate(request.candidates):
        _check_candidate(
            request,
            candidate,
            result.measurements[number][1],
            f"measurements.{number}.measurement",
        )


def _check_candidate(
    request: MeasureRequest, candidate: Candidate, found: Measurement, place: str
) -> None:
    def require(holds: bool, field: str, sentence: str) -> None:
        _require(holds, f"{place}.{field}", sentence)

    status = found.status
    require(status in OF_DEVICES, "status", f"no device says '{status.value}'")
    require(found.object_digest == candidate.object_digest, "object_digest", "is of other code")
    reference = request.cases[0].reference_digest
    require(found.reference_digest == reference, "reference_digest", "is of another output")
    require(found.tolerance == request.tolerance, "tolerance", "is not the request's")
    seeds = tuple(spec.seed for case in request.cases for spec in case.inputs)
    require(found.seeds == seeds, "seeds", "are not the request's")
    _check_comparison(request, candidate, found.comparison, require)
    if status is not Status.OK:
        require(not found.samples_seconds, "samples_seconds", "a candidate that failed has none")
        require(not found.at_sizes, "at_sizes", "a candidate that failed has none")
        require(0 <= found.checks <= len(request.cases), "checks", "are more than the cases")
        return
    require(found.checks == len(request.cases), "checks", "are not those of all cases")
    error = found.max_error
    within = error is not None and 0.0 <= error <= request.tolerance
    require(within, "max_error", f"{error} is not within the tolerance of {request.tolerance:g}")
    require(bool(found.samples_seconds), "samples_seconds", "there are none")
    least = max(LEAST_SECONDS, request.least_seconds)
    most = LIMIT_SLACK * request.repeat.limit_seconds
    if request.has_sizes:
        most *= sum(case.weight for case in request.timed)
        _check_at_sizes(request, found, f"{place}.at_sizes")
    else:
        require(not found.at_sizes, "at_sizes", "the workload has no open sizes")
    _check_times(found.samples_seconds, least, most, f"{place}.samples_seconds")


def _check_at_sizes(request: MeasureRequest, found: Measurement, place: str) -> None:
    """Check the times of a measurement that was made at several sizes of a workload's dimensions.

    The sizes must be those of the request. For each sample, the weighted sum of the times at all
    sizes must equal the sample's total time. `place` is the path of the field in the result, for
    the error message.

    Raises:
        ImplausibleError: if a check fails.
    """
    asked = tuple((case.sizes, case.weight) for case in request.timed)
    _require(found.distribution == asked, place, "are not the request's")
    most = LIMIT_SLACK * request.repeat.limit_seconds
    count = len(found.samples_seconds)
    for number, (case, each) in enumerate(zip(request.timed, found.at_sizes, strict=True)):
        samples = f"{place}.{number}.samples_seconds"
        _require(len(each.samples_seconds) == count, samples, f"are not {count}")
        _check_times(each.samples_seconds, case.least_seconds, most, samples)
    for number, total in enumerate(found.samples_seconds):
        right = sum(each.weight * each.samples_seconds[number] for each in found.at_sizes)
        same = math.isclose(total, right, rel_tol=SAME_SUM)
        _require(same, place, f"add up to {right:g} seconds, not {total:g}")


def _check_comparison(
    request: MeasureRequest,
    candidate: Candidate,
    comparison: Comparison | None,
    require: Callable[[bool, str, str], None],
) -> None:
    if comparison is None:
        return
    others = {c.schedule_digest for c in request.candidates if c is not candidate}
    compared = bool(request.incumbent) and comparison.against in others
    require(
        compared, "comparison.against", "is not a candidate with which this one was to be compared"
    )
    most = request.repeat.samples + 1  # pairs come in twos, A B B A
    few = len(comparison.ratios) <= most
    require(few, "comparison.ratios", f"are {len(comparison.ratios)}, and the most is {most}")
    ratios = all(_is_ratio(ratio) for ratio in comparison.ratios)
    require(ratios, "comparison.ratios", "are not between two programs that do the same")


def check_run(request: RunRequest, result: RunResult) -> None:
    """Check that a result is plausible for a run of whole programs.

    Raises:
        ImplausibleError: if it is not.
    """
    _require(result.request_id == request.request_id, "request_id", "is another request's")
    ok = result.status is RunStatus.OK
    work = request.work
    expected: Collection[str] = work.expected if isinstance(work, CheckWork) and ok else ()
    fetched: Collection[str] = work.fetch if isinstance(work, CheckWork) and ok else ()
    _require(result.errors.keys() == set(expected), "errors", "are not of the outputs to compare")
    _require(result.fetched.keys() == set(fetched), "fetched", "is not what was asked for")
    right = all(error >= 0.0 for error in result.errors.values())
    _require(right, "errors", "are below 0, or no numbers")
    _require((result.race is not None) == (ok and isinstance(work, RaceWork)), "race", "of no race")
    timed = bool(result.seconds)
    _require(not timed or (ok and isinstance(work, ProfileWork)), "seconds", "of no profile")
    measured = result.speeds is not None
    _require(measured == (ok and isinstance(work, SpeedsWork)), "speeds", "are not what was asked")
    if not ok:
        return
    most = LIMIT_SLACK * request.limit_seconds
    match work:
        case CheckWork():
            pass
        case ProfileWork():
            _check_times(result.seconds, 0.0, most, "seconds")
        case RaceWork(variants=variants):
            race = result.race
            assert race is not None
            _check_times([race.incumbent_seconds], LEAST_SECONDS, most, "race.incumbent_seconds")
            pairs = len(race.comparisons) == len(variants) - 1
            _require(pairs, "race.comparisons", f"are not those of {len(variants)} variants")
            few = all(len(each.ratios) <= _MOST_RACED for each in race.comparisons)
            _require(few, "race.comparisons", f"have more than {_MOST_RACED} ratios")
            ratios = all(_is_ratio(r) for c in race.comparisons for r in c.ratios)
            _require(ratios, "race.comparisons", "are not between two programs that do the same")
        case SpeedsWork(dots=asked):
            speeds = result.speeds
            assert speeds is not None
            _require(speeds.dots.keys() <= {*asked}, "speeds", "are not what was asked")
            rates = [speeds.flops_per_second, *(each.bytes_per_second for each in speeds.levels)]
            rates += speeds.dots.values()
            possible = all(0.0 < rate <= MOST_RATE for rate in rates)
            _require(possible, "speeds", "are of no machine")
        case _:
            assert_never(work)


def _check_times(seconds: Sequence[float], least: float, most: float, field: str) -> None:
    for value in seconds:
        _require(
            math.isfinite(value) and least <= value <= most,
            field,
            f"{value:g} seconds: no run takes less than {least:g}, and none may take {most:g}",
        )


def _is_ratio(value: float) -> bool:
    return 1.0 / MOST_RATIO <= value <= MOST_RATIO


def _require(holds: bool, field: str, sentence: str) -> None:
    if not holds:
        raise ImplausibleError(field, sentence)
