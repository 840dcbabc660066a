"""The form of a job's answer: of this release, of earlier ones, and of devices that lie."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from tilewright.service.cli.devices import device_table
from tilewright.service.show.messages import kernels_text, result_lines
from tilewright.tuner.measure.statistics import Comparison

VERDICT = {
    "served": "tuned",
    "outcome": "faster",
    "comparison": Comparison("untuned", (0.9,) * 8).to_json(),
    "dropped": [],
    "reason": "",
    "device": "Cortex",
}

RESULT: dict[str, Any] = {
    "ended": "gain",
    "forecast": {"gain": 0.004, "seconds": 60.0, "trials": 100, "model_seconds": 1.0},
    "forecast_error": None,
    "verified": True,
    "largest_error": 2e-6,
    "unverified": [],
    "not_verified": "",
    "device": {"name": "board", "facts": {"model": "Cortex"}},
    "end_to_end": VERDICT,
}


def test_an_answer_says_what_where_and_how_sure() -> None:
    timed = {"sizes": {"rows": 4}, "before_seconds": 2e-3, "after_seconds": 1.8e-3}
    known = {"sizes": {}, "before_seconds": 2e-6, "after_seconds": 2e-6, "low_seconds": None}
    peer = {"engine": "ONNX Runtime 1", "sizes": {"rows": 4}, "seconds": 2.7e-3, "ratio": 1.5}
    result = {
        **RESULT,
        "ranges": ["dynamic: rows=4 (1..64)"],
        "phases": {"import": 0.4, "plan": 0.01, "tuning": 10.0},
        "latency": [{**timed, "low_seconds": 1.7e-3, "high_seconds": 1.9e-3}, known],
        "peers": [peer],
    }
    assert result_lines(result) == [
        "dynamic: rows=4 (1..64)",
        "little is left to gain; another 60 s is expected to gain 0.4 % end to end",
        "device: board, Cortex",
        "end to end: the tuned schedules are served; tuned: 1.11x untuned "
        "(1.11x to 1.11x), faster (on Cortex)",
        "time: import 0.4 s, tuning 10.0 s",
        "latency: 2.000 ms before, 1.800 ms after (1.700 ms to 1.900 ms) at rows=4",
        "latency: 0.002 ms, as before: the defaults are served",
        "ONNX Runtime 1: 2.700 ms at rows=4; the artifact, in turns with it: 1.50x ONNX Runtime 1",
        "verified: as a whole: largest error 2.0e-06 of the largest output",
    ]


def test_kernels_are_told_once_all_were_measured() -> None:
    assert kernels_text(2e-3, 1e-3) == "kernels 2.000 ms untuned, 1.000 ms tuned; "
    assert kernels_text(None, None) == ""


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"not_verified": "board 'b' is away"}, "not verified: board 'b' is away"),
        (
            {
                "unverified": ["y"],
                "by_steps": {"compared": 3, "written": 4, "worst": 1e-6, "excused": 2},
            },
            "verified: by steps: 3 values compared (1 of 4 has no counterpart in the imported "
            "graph), 2 elements at rounding ties; largest error 2.0e-06 of the largest output; "
            "not these values: y",
        ),
        (
            {"by_steps": {"compared": 100, "written": 101, "worst": 0.0, "excused": 0}},
            "verified: by steps: all 100 compared values right (1 of 101 has no counterpart in the "
            "imported graph), 0 elements at rounding ties; largest error 2.0e-06 of the largest "
            "output",
        ),
        ({"device": {"name": "board", "facts": None}}, "device: board"),
    ],
)
def test_what_was_not_verified_is_said(changes: dict[str, Any], line: str) -> None:
    assert line in result_lines({**RESULT, **changes})


def test_results_of_an_earlier_release_are_told_as_far_as_they_go() -> None:
    assert result_lines({"end_to_end": None}) == []
    older = {k: v for k, v in RESULT.items() if k not in ("device", "not_verified")}
    lines = result_lines(older)
    assert lines[0].startswith("little is left to gain")
    assert not any(line.startswith("device") for line in lines)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"caches": 7, "cores": "many", "memory_bytes": "all", "model": None},
        {"caches": [7, {"bytes": "x"}, {"bytes": 32768, "kind": "data"}], "memory_bytes": 1 << 70},
        {"model": "[red]\x1b[31m evil", "governor": "[/]"},
    ],
)
def test_devices_are_shown_whatever_they_say_of_themselves(facts: dict[str, Any]) -> None:
    row = {"name": "[bold]b", "targets": [], "device": facts, "health": "healthy", "speed": None}
    out = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    out.print(device_table([row]))
    text = out.export_text()
    assert "[bold]b" in text and "healthy" in text and "\x1b" not in text


def test_devices_are_shown_with_their_size_and_speed() -> None:
    facts = {
        "model": "Cortex",
        "cores": 8,
        "physical_cores": 4,
        "memory_bytes": 8 << 30,
        "governor": "performance",
        "caches": [
            {"level": 1, "kind": "data", "bytes": 32 << 10},
            {"level": 1, "kind": "instruction", "bytes": 64 << 10},
            {"level": 2, "kind": "unified", "bytes": 3 << 19},
        ],
    }
    speed = {"arithmetic_ratio": 1.4567, "memory_ratio": 1.0}
    targets = ["armv8", "armv8.2", "armv8.4", "armv9", "armv9.2", "armv9.4"]
    row = {"name": "b", "targets": targets, "device": facts, "health": None, "speed": speed}
    out = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    out.print(device_table([row]))
    text = out.export_text()
    for part in ("32 KiB, 1.5 MiB", "8 of 4", "8 GiB", "performance", "0.69x", "here"):
        assert part in text
    assert "armv8, " in text and " more" in text and "armv9.4" not in text


@pytest.mark.parametrize(
    ("count", "cut_short", "said"),
    [
        (1, False, ""),
        (5, False, "; at 5 sizes"),
        (1, True, "; at 1 size, and no time for others"),
    ],
)
def test_a_certificate_says_how_many_sizes_it_covers(
    count: int, cut_short: bool, said: str
) -> None:
    sizes = {"count": count, "cut_short": cut_short}
    result = {"verified": True, "largest_error": 1e-6, "verified_sizes": sizes}
    whole = "verified: as a whole: largest error 1.0e-06 of the largest output"
    assert result_lines(result)[-1] == whole + said


def test_outputs_of_other_extents_have_no_error_as_a_whole() -> None:
    """A suppression may keep another box at a tie: the certificate by steps has compared it."""
    steps = {"compared": 3, "written": 3, "excused": 1}
    result = {"verified": True, "largest_error": None, "by_steps": steps}
    assert result_lines(result)[-1] == (
        "verified: by steps: all 3 compared values right, 1 element at rounding ties; "
        "choices that fell the other way give the whole model's outputs other extents"
    )
