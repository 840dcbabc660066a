"""Heat is detected from Linux's sensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.service.worker.heat import Heat

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
