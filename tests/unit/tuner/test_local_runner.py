"""The runner of this machine: candidates that are right, wrong, crash, hang or do damage."""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kernel_code import library_of
from tests.processes import children_of
from tests.waiting import until
from tilewright.tuner.measure.harness import local
from tilewright.tuner.measure.harness.binary import harness_path
from tilewright.tuner.measure.harness.build import harness, harness_folder
from tilewright.tuner.measure.harness.local import cache_room, sweep
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.measure.statistics import Outcome
from tilewright.tuner.protocol.batches import (
    Candidate,
    Case,
    Distribution,
    InputSpec,
    MeasureRequest,
    MeasureResult,
    RepeatSettings,
)
from tilewright.tuner.protocol.blobs import array_to_bytes, digest_bytes
from tilewright.tuner.protocol.measurement import Measurement, Phase, RecordKey, Status

SIZE = 256

SOURCE = """
#define KERNEL(name) \\
  void name(void *const *buffers, void *scratch, const long long *sizes, long long lo, long long hi)
#define ADD \\
  const float *a = buffers[0], *b = buffers[1]; float *out = buffers[2]; \\
  for (int i = 0; i < 256; i++) out[i] = a[i] + b[i];
static volatile int damaged = 0;
KERNEL(good) { ADD if (damaged) __builtin_trap(); }
KERNEL(also_good) { ADD if (damaged) __builtin_trap(); }
KERNEL(slow) { for (int r = 0; r < 2000; r++) { ADD __asm__ volatile("" ::: "memory"); } }
KERNEL(twice) { for (int r = 0; r < 2; r++) { ADD __asm__ volatile("" ::: "memory"); } }
KERNEL(saturates) { ADD for (int i = 0; i < 256; i++) if (out[i] > 30.0f) out[i] = 30.0f; }
KERNEL(knows_seed) { ADD if (a[0] != FIRST) out[0] += 1.0f; }
KERNEL(wrong) { ADD out[7] += 1.0f; }
KERNEL(unfinished) { ADD out[9] = ((const float *)scratch)[0]; }
KERNEL(crashes) { *(volatile int *)16 = 1; }
KERNEL(hangs) { for (;;) __asm__ volatile(""); }
KERNEL(damages) { ADD damaged = 1; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    first = f"#define FIRST {float(INPUTS[0].draw()[0]).hex()}f\n"
    return library_of(first + SOURCE, tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    found = LocalRunner("w1", {"model": "test"})
    yield found
    found.close()


INPUTS = (InputSpec((SIZE,), "float32", 1), InputSpec((SIZE,), "float32", 2))
EXPECTED = array_to_bytes(INPUTS[0].draw() + INPUTS[1].draw())
OTHERS = tuple(
    tuple(InputSpec((SIZE,), "float32", seed + n, distribution) for n in range(2))
    for seed, distribution in ((11, Distribution.NORMAL), (21, Distribution.WIDE))
)
"""Further random inputs, for finalists."""

OUTPUTS = tuple(array_to_bytes(a.draw() + b.draw()) for a, b in OTHERS)


def _spec(symbol: str) -> dict[str, object]:
    def buffer(name: str, role: str, source: int) -> dict[str, object]:
        return {
            "name": name,
            "role": role,
            "dtype": "float32",
            "shape": [SIZE],
            "layout": "row",
            "bytes": 4 * SIZE,
            "source": source,
        }

    return {
        "abi": 1,
        "name": symbol,
        "stages": [[symbol, 1]],
        "buffers": [
            buffer("a", "input", 0),
            buffer("b", "weight", 1),
            {**buffer("out", "output", 0), "source": -1},
        ],
        "scratch_bytes": 64,
    }


_numbers = itertools.count()


def _request(library: bytes, *symbols: str, limit_seconds: float = 5.0) -> MeasureRequest:
    return MeasureRequest(
        request_id=f"r{next(_numbers)}",
        key=RecordKey("w", "t"),
        candidates=tuple(
            Candidate(symbol, {"algorithm": symbol, "choices": {}}, symbol, _spec(symbol), f"o{n}")
            for n, symbol in enumerate(symbols)
        ),
        library_digest=digest_bytes(library),
        cases=(Case(INPUTS, digest_bytes(EXPECTED)),),
        tolerance=1e-6,
        repeat=RepeatSettings(3, 1e-4, round_seconds=0.0, limit_seconds=limit_seconds),
    )


def _measured(
    runner: LocalRunner, *requests: MeasureRequest, library: bytes
) -> list[MeasureResult]:
    """The results of requests that are queued at once, in their order."""
    named = {digest_bytes(data): data for data in (EXPECTED, *OUTPUTS, library)}
    for request in requests:
        runner.submit(request, named)
    found: dict[str, MeasureResult] = {}
    while len(found) < len(requests):
        found.update((result.request_id, result) for result in runner.poll(60.0))
    return [found[request.request_id] for request in requests]


def _result(
    runner: LocalRunner, library: bytes, *symbols: str, limit_seconds: float = 5.0
) -> MeasureResult:
    request = _request(library, *symbols, limit_seconds=limit_seconds)
    (result,) = _measured(runner, request, library=library)
    return result


def _statuses(
    runner: LocalRunner, library: bytes, *symbols: str, limit_seconds: float = 5.0
) -> dict[str, Status]:
    result = _result(runner, library, *symbols, limit_seconds=limit_seconds)
    return {name: m.status for name, m in result.measurements}


def test_a_correct_candidate_is_timed_and_certified(runner: LocalRunner, library: bytes) -> None:
    result = _result(runner, library, "good")
    ((_, measured),) = result.measurements
    assert measured.status is Status.OK
    assert len(measured.samples_seconds) == 3 and min(measured.samples_seconds) > 0
    assert measured.run_seconds == min(measured.samples_seconds)
    assert measured.max_error == 0.0 and measured.tolerance == 1e-6
    assert measured.seeds == (1, 2) and measured.checks == 1 and not measured.certified
    assert measured.reference_digest == digest_bytes(EXPECTED)
    assert measured.object_digest == "o0"
    assert (measured.worker, measured.device) == ("w1", {"model": "test"})


def test_a_slow_candidate_ranks_last_and_leaves_early(runner: LocalRunner, library: bytes) -> None:
    result = _result(runner, library, "slow", "good")
    (_, slow), (_, good) = result.measurements
    assert slow.run_seconds is not None and good.run_seconds is not None
    assert slow.run_seconds > good.run_seconds
    assert len(slow.samples_seconds) == 1 and len(good.samples_seconds) == 3


def test_rounds_lie_apart_so_that_one_burst_of_a_neighbour_does_not_hold_them_all(
    runner: LocalRunner, library: bytes
) -> None:
    request = _request(library, "good")
    request = replace(request, repeat=replace(request.repeat, round_seconds=0.05))
    (result,) = _measured(runner, request, library=library)
    ((_, measured),) = result.measurements
    # from the first of three rounds to the last
    assert len(measured.samples_seconds) == 3 and measured.measure_seconds >= 2 * 0.05


def test_requests_that_wait_together_take_turns(runner: LocalRunner, library: bytes) -> None:
    """While the rounds of one request pause, the other's are run: both end at about the same
    time."""
    blocked = _request(library, "hangs", limit_seconds=1.0)  # until both are queued
    first, second = (
        replace(r, repeat=replace(r.repeat, samples=4, round_seconds=0.2))
        for r in (_request(library, "good"), _request(library, "also_good"))
    )
    runner.submit(blocked, {digest_bytes(d): d for d in (library, EXPECTED)})
    one, other = _measured(runner, first, second, library=library)
    ((_, alone),), ((_, beside),) = one.measurements, other.measurements
    assert len(alone.samples_seconds) == len(beside.samples_seconds) == 4
    both = alone.measure_seconds + beside.measure_seconds
    assert abs(alone.measured_at - beside.measured_at) < 0.2 and both > 1.0


def test_requests_of_one_job_are_raced_and_blamed_apart(
    runner: LocalRunner, library: bytes
) -> None:
    """A kernel that is slow compared with the other workload's kernels may be fast among its
    own."""
    blocked = _request(library, "hangs", limit_seconds=1.0)
    runner.submit(blocked, {digest_bytes(d): d for d in (library, EXPECTED)})
    first, second = _measured(
        runner,
        _request(library, "good", "crashes"),
        _request(library, "slow", "wrong"),
        library=library,
    )
    assert {name: m.status for name, m in first.measurements} == {
        "good": Status.OK,
        "crashes": Status.CRASH,
    }
    found = dict(second.measurements)
    assert {name: m.status for name, m in found.items()} == {
        "slow": Status.OK,
        "wrong": Status.WRONG_ANSWER,
    }
    assert len(found["slow"].samples_seconds) == 3


@pytest.mark.parametrize("symbol", ["wrong", "unfinished"])
def test_a_wrong_answer_is_no_success(runner: LocalRunner, library: bytes, symbol: str) -> None:
    result = _result(runner, library, symbol, "good")
    (_, bad), (_, good) = result.measurements
    assert bad.status is Status.WRONG_ANSWER and bad.error
    assert bad.run_seconds is None
    assert good.status is Status.OK


def test_a_crash_costs_only_its_candidate(runner: LocalRunner, library: bytes) -> None:
    statuses = _statuses(runner, library, "good", "crashes", "also_good", "wrong")
    assert statuses == {
        "good": Status.OK,
        "crashes": Status.CRASH,
        "also_good": Status.OK,
        "wrong": Status.WRONG_ANSWER,
    }


def test_a_hang_costs_only_its_candidate(runner: LocalRunner, library: bytes) -> None:
    statuses = _statuses(runner, library, "good", "hangs", "also_good", limit_seconds=0.5)
    assert statuses == {
        "good": Status.OK,
        "hangs": Status.RUN_TIMEOUT,
        "also_good": Status.OK,
    }


def test_the_victim_of_a_neighbour_is_not_blamed(runner: LocalRunner, library: bytes) -> None:
    # `damages` makes every later candidate of its process abort.
    statuses = _statuses(runner, library, "damages", "good", "also_good")
    assert statuses["good"] is Status.OK and statuses["also_good"] is Status.OK


def test_a_missing_symbol_is_a_run_error(runner: LocalRunner, library: bytes) -> None:
    result = _result(runner, library, "absent", "good")
    (_, absent), (_, good) = result.measurements
    assert absent.status is Status.RUN_ERROR and "absent" in absent.error
    assert good.status is Status.OK


def test_a_candidate_that_is_no_kernel_is_a_run_error(runner: LocalRunner, library: bytes) -> None:
    request = _request(library, "good", "also_good")
    good, bad = request.candidates
    request = replace(request, candidates=(replace(bad, spec={"abi": 1}), good))
    (result,) = _measured(runner, request, library=library)
    statuses = [m.status for _, m in result.measurements]
    assert statuses == [Status.RUN_ERROR, Status.OK]


def _finals(
    runner: LocalRunner, library: bytes, *symbols: str, samples: int = 16
) -> dict[str, Measurement]:
    """A comparison of finalists, the first of which is the incumbent."""
    further = tuple(Case(i, digest_bytes(o)) for i, o in zip(OTHERS, OUTPUTS, strict=True))
    request = _request(library, *symbols)
    request = replace(
        request,
        cases=(*request.cases, *further),
        incumbent=symbols[0],
        phase=Phase.FINAL,
        repeat=replace(request.repeat, samples=samples),
    )
    (result,) = _measured(runner, request, library=library)
    return dict(result.measurements)


def test_finalists_are_compared_in_pairs_with_the_incumbent(
    runner: LocalRunner, library: bytes
) -> None:
    found = _finals(runner, library, "twice", "good", "slow")
    assert all(m.certified and m.checks == 3 and len(m.seeds) == 6 for m in found.values())
    assert found["twice"].comparison is None
    good, slow = found["good"].comparison, found["slow"]
    assert good is not None and good.against == "twice" and len(good.ratios) == 16
    assert good.ratio < 1.0 and good.outcome is Outcome.FASTER
    # 1000 times as slow: one sample is enough
    assert len(slow.samples_seconds) == 1 and slow.comparison is None


def test_who_stands_in_for_an_incumbent_that_fails(runner: LocalRunner, library: bytes) -> None:
    found = _finals(runner, library, "wrong", "good", "also_good", samples=2)
    assert found["wrong"].status is Status.WRONG_ANSWER
    assert found["good"].comparison is None
    compared = found["also_good"].comparison
    assert compared is not None and compared.against == "good" and len(compared.ratios) == 2


@pytest.mark.parametrize("symbol", ["saturates", "knows_seed"])
def test_what_is_right_on_one_draw_alone_gets_no_certificate(
    runner: LocalRunner, library: bytes, symbol: str
) -> None:
    assert _statuses(runner, library, symbol) == {symbol: Status.OK}
    found = _finals(runner, library, "good", symbol, samples=2)
    assert found[symbol].status is Status.WRONG_ANSWER and not found[symbol].certified
    assert found["good"].certified


def test_a_runner_says_how_fast_the_machine_is(runner: LocalRunner, library: bytes) -> None:
    ((_, measured),) = _result(runner, library, "good").measurements
    assert measured.speed is not None and measured.speed.arithmetic_seconds > 0
    assert runner.speed is not None and runner.speed["arithmetic_seconds"] > 0


def test_a_cancelled_request_says_so_at_once(library: bytes) -> None:
    runner = LocalRunner("w1")
    try:
        request = _request(library, "good", "hangs", limit_seconds=60.0)
        runner.submit(request, {request.library_digest: library, digest_bytes(EXPECTED): EXPECTED})
        assert runner.poll(1.0) == []
        runner.cancel([request.request_id])
        started = time.monotonic()
        (result,) = runner.poll(20.0)
        assert time.monotonic() - started < 10.0
        assert dict(result.measurements)["hangs"].status is Status.CANCELLED
    finally:
        runner.close()


def test_a_cancelled_batch_keeps_the_results_of_finished_candidates(library: bytes) -> None:
    runner = LocalRunner("w1")
    blobs = {digest_bytes(library): library, digest_bytes(EXPECTED): EXPECTED}
    try:
        for seconds in (2.0, 8.0, 25.0):  # a busy machine takes longer to reach the first round
            request = _request(library, "wrong", "good", "crashes", "also_good")
            # the batch is cancelled in the pause after its first round
            request = replace(
                request, repeat=replace(request.repeat, samples=4, round_seconds=60.0)
            )
            runner.submit(request, blobs)
            assert runner.poll(seconds) == []
            runner.cancel()
            (result,) = runner.poll(20.0)
            found = dict(result.measurements)
            if found["good"].status is Status.OK:
                break
        assert {name: m.status for name, m in found.items()} == {
            "wrong": Status.WRONG_ANSWER,
            "good": Status.OK,
            "crashes": Status.CRASH,
            "also_good": Status.OK,
        }
        assert len(found["good"].samples_seconds) == 1 and found["good"].worker == "w1"
    finally:
        runner.close()


def test_a_candidate_without_a_sample_is_cancelled_and_the_others_keep_their_results(
    library: bytes,
) -> None:
    runner = LocalRunner("w1")
    try:
        request = _request(library, "wrong", "good", "hangs", limit_seconds=60.0)
        runner.submit(request, {request.library_digest: library, digest_bytes(EXPECTED): EXPECTED})
        assert runner.poll(1.0) == []
        runner.cancel([request.request_id])
        (result,) = runner.poll(20.0)
        found = dict(result.measurements)
        assert found["wrong"].status is Status.WRONG_ANSWER
        # it passed its check, but the hang came before the first round
        assert found["good"].status is found["hangs"].status is Status.CANCELLED
    finally:
        runner.close()


def test_a_local_runner_keeps_the_order(library: bytes) -> None:
    runner = LocalRunner("w1")
    try:
        *requests, last = [_request(library, name) for name in ("good", "wrong", "good")]
        blobs = {digest_bytes(library): library, digest_bytes(EXPECTED): EXPECTED}
        for request in requests:
            runner.submit(request, blobs)
        found: list[str] = []
        while len(found) < 2:
            found += [result.request_id for result in runner.poll(20.0)]
        assert found == [request.request_id for request in requests]
        runner.submit(last, blobs)
        assert [result.request_id for result in runner.poll(20.0)] == [last.request_id], "each once"
    finally:
        runner.close()


def test_a_request_that_is_repeated_gives_its_result_again(library: bytes) -> None:
    """Neither a second measurement nor an endless wait: also if it is repeated at once."""
    runner = LocalRunner("w1")
    try:
        request = _request(library, "slow")
        blobs = {digest_bytes(library): library, digest_bytes(EXPECTED): EXPECTED}
        runner.submit(request, blobs)
        runner.submit(request, blobs)
        (first,) = runner.poll(20.0)
        runner.acknowledge([request.request_id])
        runner.submit(request, blobs)
        assert runner.poll(5.0) == [first]
    finally:
        runner.close()


def test_a_batch_with_a_missing_blob_fails_alone(runner: LocalRunner, library: bytes) -> None:
    """Its result is not kept: the same request succeeds if its blobs are there."""
    other = library + b"another"
    request = _request(other, "good")
    runner.submit(request, {digest_bytes(EXPECTED): EXPECTED})
    (lost,) = runner.poll(30.0)
    ((_, measured),) = lost.measurements
    assert measured.status is Status.WORKER_LOST and measured.error.startswith("KeyError")
    assert _statuses(runner, library, "good") == {"good": Status.OK}
    (repeated,) = _measured(runner, request, library=other)
    assert repeated.measurements[0][1].status is Status.OK


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_harness_that_another_program_kills_costs_no_batch(library: bytes, busy: bool) -> None:
    others = children_of(os.getpid())
    runner = LocalRunner("w1")
    try:
        assert _statuses(runner, library, "good") == {"good": Status.OK}
        (harness,) = children_of(os.getpid()) - others
        request = _request(library, "good", "wrong")
        if busy:
            repeat = replace(request.repeat, samples=2, round_seconds=2.0)
            request = replace(request, repeat=repeat)
            runner.submit(request, {digest_bytes(d): d for d in (library, EXPECTED)})
            until(lambda: children_of(harness))  # the child that measures
        os.kill(harness, signal.SIGKILL)
        (result,) = _measured(runner, request, library=library)
        assert dict(result.measurements)["good"].status is Status.OK
    finally:
        runner.close()


def test_batches_that_wait_when_a_runner_is_closed_are_cancelled(library: bytes) -> None:
    runner = LocalRunner("w1")
    blobs = {digest_bytes(library): library, digest_bytes(EXPECTED): EXPECTED}
    finals = [replace(_request(library, "good"), incumbent="good") for _ in range(3)]
    requests = [_request(library, "hangs", limit_seconds=60.0), *finals[:2]]
    for request in requests:
        runner.submit(request, blobs)
    assert runner.poll(1.0) == []
    runner.close()
    runner.submit(finals[2], blobs)
    found = {result.request_id: result for result in runner.poll(0.0)}
    assert found.keys() == {request.request_id for request in (*requests, finals[2])}
    statuses = {m.status for result in found.values() for _, m in result.measurements}
    assert statuses == {Status.CANCELLED}


def test_blobs_of_a_runner_go_with_it(
    library: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a harness that was killed go with the next runner."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = harness_path(platform.machine(), harness_folder(dict(os.environ)))
    shutil.copy(harness(platform.machine(), harness_folder({})), made)

    def blobs() -> list[Path]:
        return [*tmp_path.glob("tilewright/harness/local/*/blobs/*")]

    runner = LocalRunner("w1")
    assert _statuses(runner, library, "good") == {"good": Status.OK}
    (kept,) = {path.parent for path in blobs()}
    sweep(kept.parent.parent)
    assert blobs()  # its harness runs
    runner.close()
    assert not blobs()
    (kept / digest_bytes(b"left")).write_bytes(b"left")
    LocalRunner("w1").close()
    assert not blobs()


@pytest.mark.parametrize(
    ("free", "memory", "room"),
    [(100, 64, 64), (100, None, 99), (33, 64, 32), (1, 64, 1), (0, None, 1)],
)
def test_the_cache_of_blobs_fits_the_disk_and_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, memory: int | None, room: int
) -> None:
    bytes_of = None if memory is None else memory << 30
    monkeypatch.setattr(local, "total_bytes", lambda: bytes_of)
    monkeypatch.setattr(local, "free_bytes", lambda _: free << 30)
    assert cache_room(tmp_path) == room << 30
