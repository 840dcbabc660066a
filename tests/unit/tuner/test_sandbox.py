"""The sandbox: candidates that are right, wrong, crash, hang or damage their neighbours."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.measure.measurement import Measurement, Phase, RecordKey, Status
from tilewright.tuner.measure.sandbox import Sandbox
from tilewright.tuner.measure.speed import Speed, SpeedWatch
from tilewright.tuner.measure.statistics import Outcome
from tilewright.tuner.measure.wire import (
    Candidate,
    Case,
    Distribution,
    InputSpec,
    MeasureRequest,
    MeasureResult,
    RepeatSettings,
    array_to_bytes,
    digest_bytes,
)

SIZE = 256

SOURCE = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define KERNEL(name) \\
  void name(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi)
#define ADD \\
  const float *a = buffers[0], *b = buffers[1]; float *out = buffers[2]; \\
  for (int i = 0; i < 256; i++) out[i] = a[i] + b[i];
static volatile int damaged = 0;
KERNEL(good) { ADD if (damaged) abort(); }
KERNEL(also_good) { ADD if (damaged) abort(); }
KERNEL(slow) { for (int r = 0; r < 2000; r++) { ADD __asm__ volatile("" ::: "memory"); } }
KERNEL(twice) { for (int r = 0; r < 2; r++) { ADD __asm__ volatile("" ::: "memory"); } }
KERNEL(saturates) { ADD for (int i = 0; i < 256; i++) if (out[i] > 30.0f) out[i] = 30.0f; }
KERNEL(knows_seed) { ADD if (a[0] != FIRST) out[0] += 1.0f; }
KERNEL(wrong) { ADD out[7] += 1.0f; }
KERNEL(unfinished) { ADD out[9] = ((const float *)scratch)[0]; }
KERNEL(crashes) { *(volatile int *)0 = 1; }
KERNEL(leaves) { exit(3); }
KERNEL(hangs) { for (;;) __asm__ volatile(""); }
KERNEL(damages) { ADD damaged = 1; }
KERNEL(prints) { ADD printf("{\\"event\\": \\"done\\"}\\n"); fflush(stdout); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "k.c").write_text(SOURCE)
    first = f"-DFIRST={float(INPUTS[0].draw()[0]).hex()}f"
    command = [compiler, first, "-O1", "-shared", "-fPIC", "-o", str(folder / "k.so"), "k.c"]
    subprocess.run(command, check=True, cwd=folder)
    return (folder / "k.so").read_bytes()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    box = Sandbox("w1", {"model": "test"})
    yield box
    box.close()


INPUTS = (InputSpec((SIZE,), "float32", 1), InputSpec((SIZE,), "float32", 2))
EXPECTED = array_to_bytes(INPUTS[0].draw() + INPUTS[1].draw())
OTHERS = tuple(
    tuple(InputSpec((SIZE,), "float32", seed + n, distribution) for n in range(2))
    for seed, distribution in ((11, Distribution.NORMAL), (21, Distribution.WIDE))
)
"""Further draws of the inputs, for finalists."""


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


def _save(folder: Path, *blobs: bytes) -> None:
    for data in blobs:
        path = folder / digest_bytes(data)
        if not path.exists():  # a child may have mapped it
            path.write_bytes(data)


def _measure(
    sandbox: Sandbox, library: bytes, tmp_path: Path, *symbols: str, limit_seconds: float = 5.0
) -> dict[str, Status]:
    result = _result(sandbox, library, tmp_path, *symbols, limit_seconds=limit_seconds)
    return {name: m.status for name, m in result.measurements}


def _result(
    sandbox: Sandbox, library: bytes, tmp_path: Path, *symbols: str, limit_seconds: float = 5.0
) -> MeasureResult:
    request = _request(library, *symbols, limit_seconds=limit_seconds)
    _save(tmp_path, library, EXPECTED)
    (result,) = sandbox.measure([request], lambda digest: tmp_path / digest)
    return result


def test_a_correct_candidate_is_timed_and_certified(
    sandbox: Sandbox, library: bytes, tmp_path: Path
) -> None:
    result = _result(sandbox, library, tmp_path, "good")
    ((_, measured),) = result.measurements
    assert measured.status is Status.OK
    assert len(measured.samples_seconds) == 3 and min(measured.samples_seconds) > 0
    assert measured.run_seconds == min(measured.samples_seconds)
    assert measured.max_error == 0.0 and measured.tolerance == 1e-6
    assert measured.seeds == (1, 2) and measured.checks == 1 and not measured.certified
    assert measured.reference_digest == digest_bytes(EXPECTED)
    assert measured.object_digest == "o0"
    assert (measured.worker, measured.device) == ("w1", {"model": "test"})


def test_a_slow_candidate_ranks_last_and_leaves_early(
    sandbox: Sandbox, library: bytes, tmp_path: Path
) -> None:
    result = _result(sandbox, library, tmp_path, "slow", "good")
    (_, slow), (_, good) = result.measurements
    assert slow.run_seconds is not None and good.run_seconds is not None
    assert slow.run_seconds > good.run_seconds
    assert len(slow.samples_seconds) == 1 and len(good.samples_seconds) == 3


def test_rounds_lie_apart_so_that_one_burst_of_a_neighbour_does_not_hold_them_all(
    sandbox: Sandbox, library: bytes, tmp_path: Path
) -> None:
    request = _request(library, "good")
    request = replace(request, repeat=replace(request.repeat, round_seconds=0.05))
    _save(tmp_path, library, EXPECTED)
    (result,) = sandbox.measure([request], lambda digest: tmp_path / digest)
    ((_, measured),) = result.measurements
    # from the first of three rounds to the last
    assert len(measured.samples_seconds) == 3 and measured.measure_seconds >= 2 * 0.05


def _together(
    sandbox: Sandbox, library: bytes, tmp_path: Path, *requests: MeasureRequest
) -> list[dict[str, Measurement]]:
    _save(tmp_path, library, EXPECTED)
    results = sandbox.measure(requests, lambda digest: tmp_path / digest)
    assert [r.request_id for r in results] == [r.request_id for r in requests]
    return [dict(result.measurements) for result in results]


def test_requests_of_one_job_take_turns(library: bytes, tmp_path: Path) -> None:
    """While the rounds of one lie apart the other's are run: it lasts longer than alone.

    By a clock that counts what happens, so that a busy machine changes nothing.
    """
    ticks = itertools.count()
    box = Sandbox("w1", clock=lambda: float(next(ticks)))
    first, second = (
        replace(r, repeat=replace(r.repeat, samples=samples, round_seconds=0.05))
        for r, samples in ((_request(library, "good"), 5), (_request(library, "also_good"), 3))
    )
    try:
        ((alone,),) = (found.values() for found in _together(box, library, tmp_path, first))
        (one,), (other,) = (
            list(found.values()) for found in _together(box, library, tmp_path, first, second)
        )
    finally:
        box.close()
    assert (len(one.samples_seconds), len(other.samples_seconds)) == (5, 3)
    assert one.measure_seconds > alone.measure_seconds


def test_requests_of_one_job_are_raced_and_blamed_apart(
    sandbox: Sandbox, library: bytes, tmp_path: Path
) -> None:
    """Who is slow beside the other workload's kernels is not beside its own."""
    first, second = _together(
        sandbox,
        library,
        tmp_path,
        _request(library, "good", "crashes"),
        _request(library, "slow", "wrong"),
    )
    assert {name: m.status for name, m in first.items()} == {
        "good": Status.OK,
        "crashes": Status.CRASH,
    }
    assert {name: m.status for name, m in second.items()} == {
        "slow": Status.OK,
        "wrong": Status.WRONG_ANSWER,
    }
    assert len(second["slow"].samples_seconds) == 3


@pytest.mark.parametrize("symbol", ["wrong", "unfinished"])
def test_a_wrong_answer_is_no_success(
    sandbox: Sandbox, library: bytes, tmp_path: Path, symbol: str
) -> None:
    result = _result(sandbox, library, tmp_path, symbol, "good")
    (_, bad), (_, good) = result.measurements
    assert bad.status is Status.WRONG_ANSWER and bad.error
    assert bad.run_seconds is None
    assert good.status is Status.OK


@pytest.mark.parametrize("symbol", ["crashes", "leaves"])
def test_a_crash_costs_only_its_candidate(
    sandbox: Sandbox, library: bytes, tmp_path: Path, symbol: str
) -> None:
    statuses = _measure(sandbox, library, tmp_path, "good", symbol, "also_good", "wrong")
    assert statuses == {
        "good": Status.OK,
        symbol: Status.CRASH,
        "also_good": Status.OK,
        "wrong": Status.WRONG_ANSWER,
    }


def test_a_hang_costs_only_its_candidate(sandbox: Sandbox, library: bytes, tmp_path: Path) -> None:
    statuses = _measure(sandbox, library, tmp_path, "good", "hangs", "also_good", limit_seconds=0.5)
    assert statuses == {
        "good": Status.OK,
        "hangs": Status.RUN_TIMEOUT,
        "also_good": Status.OK,
    }


def test_the_victim_of_a_neighbour_is_not_blamed(
    sandbox: Sandbox, library: bytes, tmp_path: Path
) -> None:
    # `damages` makes every later candidate of its process abort.
    statuses = _measure(sandbox, library, tmp_path, "damages", "good", "also_good")
    assert statuses["good"] is Status.OK and statuses["also_good"] is Status.OK


def test_what_a_kernel_prints_is_not_taken_for_an_answer(
    sandbox: Sandbox, library: bytes, tmp_path: Path
) -> None:
    assert _measure(sandbox, library, tmp_path, "prints", "good") == {
        "prints": Status.OK,
        "good": Status.OK,
    }


def test_a_missing_symbol_is_a_run_error(sandbox: Sandbox, library: bytes, tmp_path: Path) -> None:
    result = _result(sandbox, library, tmp_path, "absent", "good")
    (_, absent), (_, good) = result.measurements
    assert absent.status is Status.RUN_ERROR and "absent" in absent.error
    assert good.status is Status.OK


def _finals(
    sandbox: Sandbox, library: bytes, tmp_path: Path, *symbols: str, samples: int = 16
) -> dict[str, Measurement]:
    """A comparison of finalists, the first of which is the incumbent."""
    outputs = [array_to_bytes(a.draw() + b.draw()) for a, b in OTHERS]
    _save(tmp_path, library, EXPECTED, *outputs)
    further = tuple(Case(i, digest_bytes(o)) for i, o in zip(OTHERS, outputs, strict=True))
    request = _request(library, *symbols)
    request = replace(
        request,
        cases=(*request.cases, *further),
        incumbent=symbols[0],
        phase=Phase.FINAL,
        repeat=replace(request.repeat, samples=samples),
    )
    (result,) = sandbox.measure([request], lambda digest: tmp_path / digest)
    return dict(result.measurements)


def test_finalists_are_compared_in_pairs_with_the_incumbent(
    sandbox: Sandbox, library: bytes, tmp_path: Path
) -> None:
    found = _finals(sandbox, library, tmp_path, "twice", "good", "slow")
    assert all(m.certified and m.checks == 3 and len(m.seeds) == 6 for m in found.values())
    assert found["twice"].comparison is None
    good, slow = found["good"].comparison, found["slow"]
    assert good is not None and good.against == "twice" and len(good.ratios) == 16
    assert good.ratio < 1.0 and good.outcome is Outcome.FASTER
    # 1000 times as slow: one sample says enough
    assert len(slow.samples_seconds) == 1 and slow.comparison is None


def test_who_stands_in_for_an_incumbent_that_fails(
    sandbox: Sandbox, library: bytes, tmp_path: Path
) -> None:
    found = _finals(sandbox, library, tmp_path, "wrong", "good", "also_good", samples=2)
    assert found["wrong"].status is Status.WRONG_ANSWER
    assert found["good"].comparison is None
    compared = found["also_good"].comparison
    assert compared is not None and compared.against == "good" and len(compared.ratios) == 2


@pytest.mark.parametrize("symbol", ["saturates", "knows_seed"])
def test_what_is_right_on_one_draw_alone_gets_no_certificate(
    sandbox: Sandbox, library: bytes, tmp_path: Path, symbol: str
) -> None:
    assert _measure(sandbox, library, tmp_path, symbol) == {symbol: Status.OK}
    found = _finals(sandbox, library, tmp_path, "good", symbol, samples=2)
    assert found[symbol].status is Status.WRONG_ANSWER and not found[symbol].certified
    assert found["good"].certified


def test_a_disturbed_batch_is_measured_once_more(
    library: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a pretended reference kernel; candidates are measured by the real one."""
    readings = iter([*((1.0, 1.0),) * 2, *((2.0, 1.0),) * 2, *((1.0, 1.0),) * 2])
    taken: list[float] = []

    def take(watch: SpeedWatch, arithmetic: float, memory: float, threads: int = 1) -> Speed:
        arithmetic, memory = next(readings)
        taken.append(arithmetic)
        return original(watch, arithmetic, memory, threads)

    original = SpeedWatch.take
    monkeypatch.setattr(SpeedWatch, "take", take)
    box = Sandbox("w1")
    try:
        for runs in (2, 6):
            ((_, measured),) = _result(box, library, tmp_path, "good").measurements
            assert len(taken) == runs and not measured.disturbed
            assert measured.speed is not None and measured.speed.arithmetic_ratio == 1.0
        readings = iter([(2.0, 1.0)] * 4)
        ((_, measured),) = _result(box, library, tmp_path, "good").measurements
        assert len(taken) == 10 and measured.disturbed and measured.ok
    finally:
        box.close()


def test_the_device_can_be_asked_how_fast_it_is(sandbox: Sandbox) -> None:
    sandbox.probe()
    status = sandbox.speed.status()
    assert status is not None and status["arithmetic_seconds"] > 0
    assert sandbox.speed.age_seconds < 60


def test_a_cancelled_request_says_so_at_once(library: bytes, tmp_path: Path) -> None:
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


def test_a_local_runner_keeps_the_order(library: bytes) -> None:
    runner = LocalRunner("w1")
    try:
        requests = [_request(library, "good"), _request(library, "wrong")]
        blobs = {digest_bytes(library): library, digest_bytes(EXPECTED): EXPECTED}
        for request in requests:
            runner.submit(request, blobs)
        found: list[str] = []
        while len(found) < 2:
            found += [result.request_id for result in runner.poll(20.0)]
        assert found == [request.request_id for request in requests]
        assert runner.poll(0.3) == []
    finally:
        runner.close()


def test_a_request_that_is_repeated_gives_its_result_again(library: bytes) -> None:
    """Not a second measurement, and no wait for ever: also when it is repeated at once."""
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


def test_a_batch_that_needs_too_much_memory_is_raced_in_parts(
    library: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.tuner.measure import batch_session

    monkeypatch.setattr(batch_session, "MEMORY_LIMIT_BYTES", 3 * 4 * SIZE - 1)
    for data in (library, EXPECTED):
        (tmp_path / digest_bytes(data)).write_bytes(data)
    events: list[tuple[str, str]] = []

    def emit(**event: object) -> None:
        events.append((str(event["event"]), str(event.get("trial", ""))))

    session = batch_session.BatchSession(emit)
    request = _request(library, "good", "also_good")
    part = {
        "request": request.to_json(),
        "library": str(tmp_path / digest_bytes(library)),
        "references": [str(tmp_path / digest_bytes(EXPECTED))],
    }
    session.run({"requests": [part], "only": ["good", "also_good"]})
    assert events.index(("sample", "good")) < events.index(("begin", "also_good"))
    assert ("sample", "also_good") in events and events[-1][0] == "done"
