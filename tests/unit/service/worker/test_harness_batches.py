"""How the harness times candidates of a batch: in which order, how often, and which leave early.

Kernels, their times and those of the reference kernel are pretended, so the load of the machine
changes nothing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernel_code import library_of
from tests.unit.service.worker.harness_parts import ENVIRONMENT, HELD_BYTES
from tilewright.tuner.protocol.blobs import array_to_bytes

SECONDS = 1e-3
"""Of a kernel with the ratio 1."""
CODE, EXPECTED, WEIGHTS = ("0" * 64, "1" * 64, "2" * 64)
"""Digests by which the test program knows its three blobs."""

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="it is compiled by gcc")

Times = float | Sequence[float]


@dataclass(frozen=True, slots=True)
class Ran:
    """The events, calls and results of a job.

    Attributes:
        events: of the sandbox, with the names of candidates, in their order.
        calls: of the kernels, such as "timed a", in their order.
        results: one for each request.
    """

    events: Sequence[dict[str, Any]]
    calls: Sequence[str]
    results: Sequence[dict[str, Any]]

    def trials(self, event: str) -> list[str]:
        """The candidates of such events."""
        return [each["trial"] for each in self.events if each["event"] == event]

    @property
    def order(self) -> list[str]:
        return self.trials("sample")

    def ratios(self, name: str) -> list[float]:
        return [e["ratio"] for e in self.events if e["event"] == "pair" and e["trial"] == name]

    def measurement(self, name: str) -> dict[str, Any]:
        found: dict[str, dict[str, Any]] = {
            each["trial_id"]: each["measurement"]
            for result in self.results
            for each in result["measurements"]
        }
        return found[name]


@dataclass(frozen=True, slots=True)
class Bench:
    """The test program with its files."""

    program: Path
    code: Path
    expected: Path

    def run(
        self,
        *requests: dict[str, Any],
        speeds: Sequence[float] = (1.0,),
        drift: float = 1.0,
        **times: Times,
    ) -> Ran:
        """Measure requests, whose candidates together are those of `times`."""
        names = [name for request in requests for name in names_of(request)]
        assert names == list(times)
        rows = [[t] if isinstance(t, float) else list(t) for t in times.values()]
        plans, first = [], 0
        for request in requests:
            numbers = range(first, first + len(request["candidates"]))
            plans.append(
                {"cases": [[plan(n, request["bytes"], request["weights"]) for n in numbers]]}
            )
            first = numbers.stop
        spec = {
            "requests": requests,
            "plans": plans,
            "seconds": [[SECONDS * t for t in row] for row in rows],
            "speeds": speeds,
            "drift": drift,
        }
        done = subprocess.run(
            [str(self.program), "batch", str(self.code), str(self.expected)],
            input=json.dumps(spec).encode(),
            capture_output=True,
            env=ENVIRONMENT,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr).decode()[-2000:]
        *lines, last = done.stdout.decode().splitlines()
        events = [json.loads(line) for line in lines]
        for event in events:
            event.update((key, names[event[key]]) for key in ("trial", "against") if key in event)
        calls = [line.split() for line in done.stderr.decode().splitlines()]
        named = [f"{what} {names[int(n)] if what != 'evicted' else n}" for what, n in calls]
        return Ran(events, named, json.loads(last))


@pytest.fixture(scope="module")
def bench(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("batches")
    code, expected = folder / "code", folder / "expected.npy"
    code.write_bytes(library_of("int stage(void);\nint stage(void) { return 0; }\n", folder))
    expected.write_bytes(array_to_bytes(np.zeros(1, np.float32)))
    return Bench(parts, code, expected)


def names_of(request: dict[str, Any]) -> list[str]:
    return [candidate["trial_id"] for candidate in request["candidates"]]


def request(
    names: Sequence[str],
    samples: int,
    seed: int = 0,
    incumbent: str = "",
    weights: int = 0,
    size: int = 4,
) -> dict[str, Any]:
    """A request as far as the harness reads it. Each kernel has an output of `size` bytes and
    `weights` bytes of constants."""
    return {
        "request_id": "-".join(names),
        "key": {"threads": 1},
        "incumbent": incumbent,
        "candidates": [{"trial_id": n, "schedule_digest": n} for n in names],
        "cases": [{"reference_digest": EXPECTED, "sizes": {}, "weight": 0, "inputs": []}],
        "library_digest": CODE,
        "tolerance": 1e-6,
        "repeat": {
            "samples": samples,
            "sample_seconds": 1e-4,
            "round_seconds": 0.0,
            "abandon_ratio": 3.0,
            "margin": 0.02,
            "limit_seconds": 30.0,
            "seed": seed,
        },
        "bytes": size,
        "weights": weights,
    }


def plan(number: int, size: int, weights: int) -> dict[str, Any]:
    """The plan of a kernel, which has its number of stages and memory of its own."""
    one = {"dtype": "float32", "elements": 1, "shape": [1], "halo": [], "factors": [[0, 1, 0, 1]]}
    buffers = [{**one, "role": "output", "bytes": size, "array": "", "kernel": number}]
    if weights:
        buffers.append({**one, "role": "weight", "bytes": weights, "array": WEIGHTS})
    return {"buffers": buffers, "stages": [["stage", 1]] * (number + 1), "sizes": [], "scratch": 0}


def test_rounds_are_interleaved_in_fresh_orders(bench: Bench) -> None:
    names = "abcdef"
    times: dict[str, Times] = dict.fromkeys(names, 1.0)
    ran = bench.run(request(names, 8), **times)
    rounds = [ran.order[at : at + len(names)] for at in range(0, len(ran.order), len(names))]
    assert len(rounds) == 8 and all(sorted(each) == list(names) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 4, "not the same neighbour in front every time"
    again, other = (bench.run(request(names, 8, seed=seed), **times) for seed in (0, 1))
    assert again.order == ran.order != other.order


def test_rounds_of_one_request_lie_between_those_of_the_others(bench: Bench) -> None:
    """Each is raced on its own: the second request's kernels are 100 times as slow."""
    ran = bench.run(request("ab", 4), request("cd", 4), a=1.0, b=1.0, c=100.0, d=100.0)
    rounds = [sorted(ran.order[at : at + 4]) for at in range(0, 16, 4)]
    assert rounds == [["a", "b", "c", "d"]] * 4
    for name in "abcd":
        assert len(ran.measurement(name)["samples_seconds"]) == 4


def test_every_sample_comes_after_an_untimed_run_and_cold_weights_are_dropped(
    bench: Bench,
) -> None:
    warm = bench.run(request("a", 2, weights=1 << 10), a=1.0)
    cold = bench.run(request("a", 2, weights=1 << 20), a=1.0)
    check = ["untimed a"]
    calibration = ["timed a"] * 3
    assert warm.calls == check + calibration + ["untimed a", "timed a"] * 2
    assert cold.calls == check + ["untimed a", f"evicted {1 << 20}", "timed a"] * 2


def test_a_candidate_that_takes_three_times_the_best_leaves_at_once(bench: Bench) -> None:
    ran = bench.run(request(["fast", "slow"], 8), fast=1.0, slow=3.1)
    # in either order: abandoned at its calibration, or after its first sample
    assert ran.order.count("fast") == 8 and ran.order.count("slow") == 1
    assert ran.measurement("slow")["status"] == "ok"
    late = bench.run(request(["fast", "slow"], 8, seed=1), fast=1.0, slow=2.9)
    assert late.order.count("slow") == 3, "below that it takes the three samples of a test"


def test_a_candidate_that_is_shown_to_be_slower_leaves_and_a_possible_leader_stays(
    bench: Bench,
) -> None:
    near = [1.0, 1.02, 1.01]
    ran = bench.run(request(["fast", "near", "slower"], 8), fast=1.0, near=near, slower=1.3)
    counts = {name: ran.order.count(name) for name in ("fast", "near", "slower")}
    assert counts == {"fast": 8, "near": 8, "slower": 3}


def test_finalists_run_in_pairs_with_the_incumbent_to_either_side(bench: Bench) -> None:
    ran = bench.run(request(["new", "old"], 4, incumbent="old"), new=0.5, old=1.0)
    # one sample of the incumbent is the standard for abandoning; then A B B A
    assert ran.order == ["old", *["old", "new", "new", "old"] * 2]
    assert ran.ratios("new") == [0.5] * 4 and ran.ratios("old") == []
    compared = ran.measurement("new")["comparison"]
    assert compared["ratios"] == [0.5] * 4 and compared["against"] == "old"


def test_a_drift_of_the_machine_is_not_a_gain_of_a_finalist(bench: Bench) -> None:
    """The device gets slower with each sample: without the turns, the second of each pair would
    always lose."""
    ran = bench.run(request(["old", "new"], 8, incumbent="old"), drift=1.01, old=1.0, new=1.0)
    ratios = ran.ratios("new")
    assert len(ratios) == 8
    assert sum(ratio > 1 for ratio in ratios) == sum(ratio < 1 for ratio in ratios) == 4


@pytest.mark.parametrize(("name", "time", "pairs"), [("slow", 1.5, 4), ("hopeless", 4.0, 0)])
def test_a_finalist_that_is_slower_gets_no_further_pairs(
    bench: Bench, name: str, time: float, pairs: int
) -> None:
    times: dict[str, Times] = {"old": 1.0, "new": 0.9, name: time}
    ran = bench.run(request(list(times), 16, incumbent="old"), **times)
    assert len(ran.ratios("new")) == 16 and len(ran.ratios(name)) == pairs


def test_candidates_are_raced_in_parts_if_their_buffers_need_too_much_memory(
    bench: Bench,
) -> None:
    size = HELD_BYTES // 3 + 4096
    times: dict[str, Times] = dict.fromkeys("abcde", 1.0)
    ran = bench.run(request("abcde", 2, size=size), **times)
    assert ran.trials("checked") == list("abcde")
    parts = [sorted(ran.order[:6]), sorted(ran.order[6:])]
    assert parts == [sorted("aabbcc"), sorted("ddee")]
    begun = [(e["event"], e["trial"]) for e in ran.events if e["event"] in ("checked", "sample")]
    assert begun.index(("checked", "d")) > 6, "the first part is timed before the fourth is packed"
    assert all(ran.measurement(name)["status"] == "ok" for name in "abcde")


def test_finalists_are_never_raced_in_parts(bench: Bench) -> None:
    """Each of them is compared with the incumbent, whose buffers must stay."""
    size = HELD_BYTES // 3 + 4096
    times: dict[str, Times] = dict.fromkeys("abcde", 1.0)
    ran = bench.run(request("abcde", 2, size=size, incumbent="a"), **times)
    assert all(len(ran.ratios(name)) == 2 for name in "bcde")
    assert all(ran.measurement(name)["comparison"]["against"] == "a" for name in "bcde")


@pytest.mark.parametrize(
    ("speeds", "attempts", "kept"),
    [
        ([1.0], 1, 1.0),
        ([1.0, 2.0, 1.0], 2, 1.0),
        ([2.0, 1.0, 1.0, 3.0], 2, 2.0),
        ([1.0, 3.0, 2.0, 1.0], 2, 2.0),
    ],
    ids=["quiet", "disturbed once", "worse the second time", "better the second time"],
)
def test_a_disturbed_batch_is_measured_once_more_and_the_quieter_result_stays(
    bench: Bench, speeds: Sequence[float], attempts: int, kept: float
) -> None:
    """The reference kernel runs before and after each attempt."""
    # the times identify the attempt: each has six calls, three of which calibrate
    ran = bench.run(request("a", 3), speeds=speeds, a=[1.0] * 6 + [2.0] * 6)
    assert ran.trials("checked") == ["a"] * attempts
    measured = ran.measurement("a")
    assert measured["speed"]["arithmetic_ratio"] == kept
    second = attempts == 2 and kept == max(speeds[2:])
    time = SECONDS * (2.0 if second else 1.0)
    assert measured["samples_seconds"] == pytest.approx([time] * 3)
