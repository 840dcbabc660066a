from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from compiler.device import Cache, DeviceFacts, find_device


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with two cores of two threads each."""
    processors = [
        f"processor\t: {number}\nmodel name\t: Some CPU 9000\nphysical id\t: 0\n"
        f"core id\t\t: {number // 2}\n"
        for number in range(4)
    ]
    write(tmp_path, "proc/cpuinfo", "\n".join(processors))
    write(tmp_path, "proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n")
    cpu = "sys/devices/system/cpu/cpu0"
    write(tmp_path, f"{cpu}/cpufreq/scaling_governor", "performance\n")
    for number, (level, kind, size, shared) in enumerate(
        [(1, "Data", "32K", "0,2"), (1, "Instruction", "64K", "0"), (2, "Unified", "1M", "0-3,8")]
    ):
        folder = f"{cpu}/cache/index{number}"
        values = {
            "level": str(level),
            "type": kind,
            "size": size,
            "shared_cpu_list": shared,
            "ways_of_associativity": "8",
            "coherency_line_size": "64",
        }
        for name, value in values.items():
            write(tmp_path, f"{folder}/{name}", value + "\n")
    write(tmp_path, f"{cpu}/cache/index9/level", "7")
    return tmp_path


def test_facts(machine: Path) -> None:
    device = find_device(machine)
    assert device.model == "Some CPU 9000"
    assert device.physical_cores == 2
    assert device.cores == len(os.sched_getaffinity(0))
    assert device.memory_bytes == 16 << 20
    assert device.governor == "performance"
    assert device.caches == (
        Cache(1, "data", 32 << 10, 8, 64, 2),
        Cache(1, "instruction", 64 << 10, 8, 64, 1),
        Cache(2, "unified", 1 << 20, 8, 64, 5),
    )
    assert (device.cache_bytes(1), device.cache_bytes(2), device.cache_bytes(3)) == (
        32 << 10,
        1 << 20,
        0,
    )


def test_arm_board(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd08\n")
    write(tmp_path, "sys/firmware/devicetree/base/model", "Some Board 4\0")
    assert find_device(tmp_path).model == "Some Board 4 (implementer 0x41 part 0xd08)"


def test_nothing_is_known(tmp_path: Path) -> None:
    device = find_device(tmp_path)
    assert device.caches == ()
    assert (device.memory_bytes, device.governor) == (0, "")
    assert device.cores >= 1 and device.physical_cores >= 1


def test_json_reads_back() -> None:
    device = find_device()
    assert DeviceFacts.from_json(json.loads(json.dumps(device.to_json()))) == device
