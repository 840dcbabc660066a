from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import pytest

from tilewright.compiler.errors import InvalidFactsError
from tilewright.compiler.targets.device import Cache, DeviceFacts, find_device


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


def facts(**changes: object) -> dict[str, object]:
    """The JSON form of a device, with changes."""
    cache = {"level": 1, "kind": "data", "bytes": 1, "ways": 1, "line_bytes": 64, "shared_by": 1}
    good: dict[str, object] = {
        "model": "a CPU",
        "architecture": "x86_64",
        "system": "Linux",
        "cores": 2,
        "physical_cores": 1,
        "memory_bytes": 1 << 30,
        "governor": "",
        "caches": [cache],
        "processor": "GenuineIntel-6-60-3",
        "features": ["avx2", "fma"],
    }
    return {**good, **changes}


def test_what_measurements_keep_is_short() -> None:
    device = DeviceFacts.from_json(facts())
    short = device.brief().to_json()
    assert "features" not in short and short["processor"] == "GenuineIntel-6-60-3"
    assert DeviceFacts.from_json(short) == device.brief()
    assert device.brief().features == ()


def test_facts_that_a_device_does_not_know_are_left_out() -> None:
    short = facts()
    del short["processor"], short["features"]
    found = DeviceFacts.from_json(short)
    assert (found.processor, found.features, found.vector_bits) == ("", (), 0)
    assert DeviceFacts.from_json(facts(features=["fma", "avx"])).features == ("avx", "fma")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (None, "expected an object, got None"),
        ([], "expected an object, got []"),
        ({}, "model: is missing"),
        ({"caches": []}, "model: is missing"),
        (facts(horoscope="good"), "horoscope: is not known"),
        (facts(model=3), "model: expected a text, got 3"),
        (facts(model="x" * 501), "model: 501 characters, expected at most 500"),
        (facts(cores="2"), "cores: expected an integer from 0, got "),
        (facts(cores=True), "cores: expected an integer from 0, got "),
        (facts(cores=-1), "cores: expected an integer from 0, got "),
        (facts(memory_bytes=1.5), "memory_bytes: expected an integer from 0, got "),
        (facts(memory_bytes=1 << 80), "memory_bytes: expected an integer from 0, got "),
        (facts(caches={}), "caches: expected a list, got {}"),
        (facts(caches=[{}] * 3000), "caches: 3000 items, expected at most 2000"),
        (facts(caches=[7]), "caches[0]: expected an object, got 7"),
        (facts(caches=[{"level": 1}]), "caches[0].kind: is missing"),
        (facts(features="avx2"), "features: expected a list, got 'avx2'"),
        (facts(features=["avx2", 3]), "features[1]: expected a text, got 3"),
        (facts(features=["x" * 600]), "features[0]: 600 characters, expected at most 500"),
    ],
)
def test_what_is_true_of_no_device_is_refused(data: object, sentence: str) -> None:
    with pytest.raises(InvalidFactsError, match=f"^malformed device facts: {re.escape(sentence)}"):
        DeviceFacts.from_json(data)


def test_the_json_of_anything_is_facts_or_one_error() -> None:
    rng = random.Random(7)
    values = [None, 0, -1, 1 << 70, 0.5, float("nan"), "", "x", [], [[]], {}, {"a": 1}, True]
    for _ in range(300):
        data = facts(**{rng.choice([*facts(), "other"]): rng.choice(values)})
        try:
            device = DeviceFacts.from_json(data)
        except InvalidFactsError:
            continue
        assert DeviceFacts.from_json(json.loads(json.dumps(device.to_json()))) == device
