"""Heat is noticed from what Linux says, and waited out; the clock is passed in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.service.workers import Running, queue, state, until
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import RequestState
from tilewright.service.worker.heat import LONGEST_WAIT_SECONDS, CoolingDown, Heat

CPU = "sys/devices/system/cpu/cpu0"
FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"
COOLING = "sys/class/thermal/cooling_device0"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def cooling(kind: str, now: str, most: str) -> dict[str, str]:
    return {
        f"{COOLING}/{k}": v for k, v in (("type", kind), ("cur_state", now), ("max_state", most))
    }


def clock(now: str, governor: str, driver: str) -> dict[str, str]:
    names = ("scaling_cur_freq", "cpuinfo_max_freq", "scaling_governor", "scaling_driver")
    said = (now, "2400000", governor, driver)
    return {f"{CPU}/cpufreq/{name}": text for name, text in zip(names, said, strict=True)}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, ""),
        (cooling("thermal-cpufreq-0", "2", "5"), "'thermal-cpufreq-0' slows it down, step 2 of 5"),
        (cooling("Processor", "1", "3"), "'Processor' slows it down, step 1 of 3"),
        (cooling("thermal-cpufreq-0", "0", "5"), ""),
        (cooling("pwm-fan", "2", "5"), ""),
        (cooling("thermal-cpufreq-0", "-1", "5"), ""),
        (cooling("thermal-cpufreq-0", "700", "5"), ""),
        (cooling("thermal-cpufreq-0", "2", ""), ""),
        ({FIRMWARE: "0x50005"}, "its power supply is too weak"),
        ({FIRMWARE: "4"}, "its firmware throttles it"),
        ({FIRMWARE: "50000"}, ""),  # that was earlier
        ({FIRMWARE: "never"}, ""),
        ({FIRMWARE: "f" * 5000}, ""),
        (clock("1200000", "performance", "cpufreq-dt"), "cpu0 runs at 1.20 of 2.40 GHz"),
        (clock("1200000", "schedutil", "cpufreq-dt"), ""),
        (clock("1200000", "performance", "intel_pstate"), ""),
        (clock("2400000", "performance", "cpufreq-dt"), ""),
        (clock("-7", "performance", "cpufreq-dt"), ""),
    ],
)
def test_what_slows_a_device_down(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    write(tmp_path, files)
    assert Heat(tmp_path).reason() == reason


def test_only_the_cores_that_candidates_run_on_count(tmp_path: Path) -> None:
    write(tmp_path, clock("1200000", "performance", "cpufreq-dt"))
    assert Heat(tmp_path, [0]).reason() and not Heat(tmp_path, [1]).reason()


def test_throttling_is_counted_from_look_to_look(tmp_path: Path) -> None:
    name = f"{CPU}/thermal_throttle/core_throttle_count"
    write(tmp_path, {name: "17"})
    heat = Heat(tmp_path)
    assert heat.reason() == ""
    write(tmp_path, {name: "18"})
    assert heat.reason() == "its throttling was counted since the last look"
    assert heat.reason() == ""


class Waiting:
    """Reasons in their order, the last one for ever; a clock that pauses move."""

    def __init__(self, *reasons: str) -> None:
        self.reasons = list(reasons)
        self.now, self.said = 0.0, list[str]()
        self.cooling = CoolingDown(self.reason, self.said.append, lambda: self.now)

    def reason(self) -> str:
        return self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]

    def pause(self, seconds: float) -> bool:
        self.now += seconds
        return False


def test_work_waits_until_it_is_over() -> None:
    waiting = Waiting("hot", "hot", "hot", "")
    waiting.cooling.wait(waiting.pause)
    assert waiting.now == 3.0
    assert waiting.said == [
        "the device is slowed down and work waits: hot",
        "after 3 seconds, it is over",
    ]
    waiting.cooling.wait(waiting.pause)
    assert waiting.now == 3.0 and len(waiting.said) == 2


def test_a_wait_for_work_that_nobody_wants_any_more_was_no_whole_wait() -> None:
    waiting = Waiting("hot", "hot", "hot", "")
    waiting.cooling.wait(lambda seconds: True)
    assert waiting.now == 0.0
    waiting.cooling.wait(waiting.pause)
    assert waiting.now == 2.0 and waiting.said[-1] == "after 2 seconds, it is over"


def test_what_never_ends_is_waited_for_once() -> None:
    waiting = Waiting("limited")
    waiting.cooling.wait(waiting.pause)
    assert waiting.now == LONGEST_WAIT_SECONDS
    waiting.cooling.wait(waiting.pause)
    assert waiting.now == LONGEST_WAIT_SECONDS
    waiting.reasons = [""]
    waiting.cooling.wait(waiting.pause)
    waiting.reasons = ["limited"]
    waiting.cooling.wait(waiting.pause)
    assert waiting.now == 2 * LONGEST_WAIT_SECONDS


def test_a_worker_that_ends_waits_no_longer() -> None:
    waiting = Waiting("hot")
    waiting.cooling.wait(lambda seconds: True)
    assert len(waiting.said) == 2


def test_a_worker_waits_before_it_measures(
    storage: Storage, start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = ["hot", ""]
    monkeypatch.setattr("tilewright.service.worker.heat.LOOK_SECONDS", 0.0)
    monkeypatch.setattr(Heat, "reason", lambda self: reasons.pop(0) if reasons else "")
    queue(storage, "a")
    running = start()
    until(lambda: state(storage, "a") is RequestState.DONE)
    assert "the device is slowed down and work waits: hot" in running.log
    assert any(line.endswith("it is over") for line in running.log)
