"""`tilewright-worker --check`: each finding, on simulated machines that cause it."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.targets.test_core_kinds import ORION, board
from tilewright.service.worker.check import DeviceFinding, Grade, check_device, exit_status, report
from tilewright.service.worker.options import parse_arguments
from tilewright.service.worker.process import main
from tilewright.tuner.measure.speed import Speed

CPUS = "sys/devices/system/cpu"
GIB = 1 << 20
"""In KiB, as Linux counts."""

STEADY = [Speed(1.0, 1.0)] * 10


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A board without faults, with four fast and four slow cores."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    board(tmp_path, ORION)
    for number in range(8):
        folder = f"{CPUS}/cpu{number}/cpufreq"
        clock = ORION[number][3]
        say(tmp_path, f"{folder}/scaling_governor", "performance")
        for name in ("scaling_cur_freq", "scaling_max_freq", "cpuinfo_max_freq"):
            say(tmp_path, f"{folder}/{name}", clock)
        say(tmp_path, f"{CPUS}/cpu{number}/topology/thread_siblings_list", str(number))
    say(tmp_path, "proc/meminfo", f"MemTotal: {4 * GIB} kB\nMemAvailable: {3 * GIB} kB")
    say(tmp_path, "proc/loadavg", "0.10 0.20 0.30 1/100 42")
    say(tmp_path, "sys/class/thermal/thermal_zone0/temp", "48000")
    return tmp_path


def say(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(f"{text}\n")


def look(
    root: Path, cores: Sequence[int] = range(4, 8), speeds: Sequence[Speed] = STEADY
) -> dict[str, DeviceFinding]:
    return {each.name: each for each in check_device(root, cores, lambda count: speeds)}


def test_nothing_is_wrong(machine: Path) -> None:
    found = look(machine)
    assert {each.grade for each in found.values()} == {Grade.FINE}, found
    assert {name: each.found for name, each in found.items()} == {
        "cores": "cortex-a76@2.4 (4-7)",
        "features": "'implementer 0x41 part 0xd0b' is described as cortex-a76, but lacks "
        "fullfp16: aarch64 is the best baseline that it runs; code is made for 'aarch64'",
        "governor": "performance",
        "clock": "2.40 of 2.40 GHz",
        "heat": "48 °C",
        "memory": "3072 of 4096 MiB are free",
        "load": "0.10 processes wanted to run in the last minute",
        "noise": "of the fastest time, the median and the slowest tenth take "
        "1.00, 1.00 (arithmetic) and 1.00, 1.00 (memory)",
    }
    assert exit_status([*found.values()]) == 0


@pytest.mark.parametrize(
    ("name", "file", "said", "grade", "found", "do"),
    [
        ("governor", f"{CPUS}/cpu6/cpufreq/scaling_governor", "ondemand", Grade.POOR,
         "ondemand, performance", "for n in 6; do echo performance | sudo tee"),
        ("clock", f"{CPUS}/cpufreq/boost", "1", Grade.POOR,
         "while the heat allows", f"echo 0 | sudo tee /{CPUS}/cpufreq/boost"),
        ("clock", f"{CPUS}/intel_pstate/no_turbo", "0", Grade.POOR, "", "echo 1 | sudo tee"),
        ("clock", f"{CPUS}/cpu4/cpufreq/scaling_max_freq", "1000000", Grade.FINE,
         "limited on 4", ""),
        ("heat", "sys/class/thermal/thermal_zone0/temp", "83000", Grade.POOR, "83 °C", "a fan"),
        ("heat", "sys/class/thermal/thermal_zone0/temp", "nan", Grade.UNKNOWN, "no sensor", ""),
        ("heat", "sys/devices/platform/soc/soc:firmware/get_throttled", "1", Grade.POOR,
         "its power supply is too weak", "larger power supply"),
        ("memory", "proc/meminfo", "MemAvailable: 300000 kB", Grade.POOR, "292 of", "ps aux"),
        ("memory", "proc/meminfo", "MemAvailable: 9000 kB", Grade.WRONG, "128 are needed", "ps"),
        ("memory", "proc/meminfo", "", Grade.UNKNOWN, "", ""),
        ("load", "proc/loadavg", "3.5 1 1", Grade.POOR, "3.50 processes", "top"),
        ("load", "proc/loadavg", "lots", Grade.UNKNOWN, "", ""),
        ("cores", f"{CPUS}/cpu5/topology/thread_siblings_list", "4", Grade.POOR,
         "get into each other's way", "--cores 4,6-7"),
    ],
)  # fmt: skip
def test_what_is_wrong_says_what_to_type(
    machine: Path, name: str, file: str, said: str, grade: Grade, found: str, do: str
) -> None:
    say(machine, file, said)
    every = look(machine)
    seen = every.pop(name)
    assert (seen.grade, bool(seen.do)) == (grade, bool(do)), seen
    assert found in seen.found and do in seen.do
    assert {each.grade for each in every.values()} == {Grade.FINE}
    worst = {Grade.POOR: 3, Grade.WRONG: 1}
    assert exit_status([seen, *every.values()]) == worst.get(grade, 0)


def test_cores_of_two_kinds_are_told_apart(machine: Path) -> None:
    seen = look(machine, range(2, 6))["cores"]
    assert seen.grade is Grade.POOR and seen.do.endswith("--cores 4-5")
    assert seen.found.endswith("different kinds: cortex-a76@2.4 (4-5), cortex-a55@1.8 (2-3)")


def test_a_machine_that_no_target_describes(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    seen = look(machine)["features"]
    assert seen.grade is Grade.WRONG and "--target" in seen.do


@pytest.mark.parametrize(
    ("speeds", "grade"),
    [
        ([Speed(1.0, 1.0), *[Speed(1.3, 1.0)] * 9], Grade.POOR),
        ([*[Speed(1.0, 1.0)] * 9, Speed(9.0, 9.0)], Grade.FINE),
        ([Speed(0.0, -1.0)] * 3, Grade.FINE),
        ([], Grade.WRONG),
    ],
)
def test_noise(machine: Path, speeds: list[Speed], grade: Grade) -> None:
    assert look(machine, speeds=speeds)["noise"].grade is grade


def test_a_sandbox_that_does_not_start(machine: Path) -> None:
    def probe(count: int) -> Sequence[Speed]:
        raise RuntimeError("the C runtime is not built")

    (seen,) = (each for each in check_device(machine, (), probe) if each.name == "noise")
    assert seen.grade is Grade.WRONG and "the C runtime is not built" in seen.found


def test_the_report_is_for_people_or_programs(machine: Path) -> None:
    say(machine, "proc/loadavg", "3.5 1 1")
    found = [*look(machine).values()]
    lines = report(found, False).splitlines()
    assert "poor     load      3.50 processes wanted to run in the last minute" in lines
    assert lines[lines.index(next(line for line in lines if "3.50" in line)) + 1].endswith(
        "-> end other programs (top)"
    )
    assert [DeviceFinding(**each) for each in json.loads(report(found, True))] == found


def test_the_command_looks_at_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--check", "--json", "--sandbox-users", "none"])
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert status in (0, 1, 3) and found["features"]["grade"] == "fine"
    assert "(arithmetic)" in found["noise"]["found"]


def test_the_fastest_kind_is_pinned(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless the user names the other one."""
    for module in ("tilewright.compiler.targets.detection", "tilewright.service.worker.options"):
        monkeypatch.setattr(f"{module}.available_cores", lambda: set(range(8)))
    for given, cores in (
        ([], (4, 5, 6, 7)),
        (["--cores", "cortex-a55"], (0, 1, 2, 3)),
        (["--cores", "cortex-a76@2.4"], (4, 5, 6, 7)),
        (["--cores", "1,4-5"], (1, 4, 5)),
    ):
        assert parse_arguments(["--check", *given], {}, machine).cores == cores
    with pytest.raises(SystemExit):
        parse_arguments(["--check", "--cores", "cortex-a78"], {}, machine)
    assert "none of this machine's kinds of cores (cortex-a76@2.4, cortex-a55@1.8)" in (
        capsys.readouterr().err
    )


def test_cores_that_only_the_host_may_use_are_not_pinned(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container may show the cores of its host, or number its own anew."""
    for module in ("tilewright.compiler.targets.detection", "tilewright.service.worker.options"):
        monkeypatch.setattr(f"{module}.available_cores", lambda: {20, 21})
    assert parse_arguments(["--check"], {}, machine).cores == ()
    with pytest.raises(SystemExit):
        parse_arguments(["--check", "--cores", "cortex-a76"], {}, machine)
    assert "--cores: 'cortex-a76' is not a list" in capsys.readouterr().err
