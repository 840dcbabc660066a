"""Parts of the harness, under AddressSanitizer and UBSan, with input that no service sends."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from tests.unit.service.worker.harness_parts import ENVIRONMENT
from tilewright.compiler.codegen.link import link_shared
from tilewright.service.worker.heat import Heat
from tilewright.tuner.measure.harness.binary import host_compiler
from tilewright.tuner.measure.statistics import Comparison, may_be_faster

REFUSED = 1
"""The status of a part that refuses; a sanitizer's is another."""

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="it is compiled by gcc")


def ask(parts: Path, data: bytes, *arguments: str) -> tuple[int, bytes]:
    """The status of a part and what it printed; it never fails in another way."""
    done = subprocess.run(
        [str(parts), *arguments], input=data, capture_output=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode in (0, REFUSED), done.stderr.decode()[-2000:]
    return done.returncode, done.stdout


def damaged(data: bytes, count: int, seed: int) -> Sequence[bytes]:
    """Cut short, with a byte changed, and with some of it doubled."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        at, other = sorted(rng.randrange(len(data)) for _ in range(2))
        changed = bytes([rng.randrange(256)])
        found += [data[:at], data[:at] + changed + data[at + 1 :], data[:other] + data[at:]]
    return found


def test_json_is_written_as_in_python(parts: Path) -> None:
    value = {
        "numbers": [0, -1, 1.0, 1e16, 1e15, 123456789.125, 1e-4, 1e-5, 5e-324, 1.7e308, 0.1, -0.0],
        "é\U0001f600": 'quotes " \\ / \b\f\n\r\t \x01 \x7f \u2028',
        "": {"z": [], "a": {}, "B": [True, False, None]},
        "more": [math.pi * 10**k for k in range(-8, 20)],
    }
    right = json.dumps(value, separators=(",", ":")).encode()
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=3)):
        assert ask(parts, text.encode(), "json") == (0, right)


@pytest.mark.parametrize(
    "text",
    [
        *(
            b"",
            b"[1,]",
            b"{'a':1}",
            b"[01]",
            b"[1.]",
            b"[1e]",
            b"nul",
            b"[1] x",
            b'"\x01"',
            b'"\\q"',
        ),
        *(
            b'"\\ud800"',
            b'"\\ud800\\u0041"',
            b'"\\u0000"',
            b'"\xc0\x80"',
            b'"\xed\xa0\x80"',
            b'"\xff"',
        ),
        *(
            b"[" * 65 + b"]" * 65,
            b"[NaN]",
            b'["',
            b'"\\',
            b"[1" * 99999,
        ),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_json_is_refused(parts: Path, text: bytes) -> None:
    assert ask(parts, text, "json")[0] == REFUSED


def test_damaged_json_is_read_or_refused(parts: Path) -> None:
    whole = b'{"leases":[{"id":"\\u00e9\\ud83d\\ude00","n":-1.5e3,"ok":[true,null,{}]}]}'
    for text in damaged(whole, 20, seed=1):
        ask(parts, text, "json")


@pytest.mark.parametrize(
    ("what", "ended"),
    [
        ("second", "0 "),
        ("cancelled", "5 2 cancelled"),
        ("ever", "4 "),
        ("forged", "2 0 spoke in the worker's name"),
        ("end", "2 0 said an event that has no end"),
        ("threads", "1 0 only 4 of 5 threads can be started"),
    ],
)
def test_a_job_that_talks_without_a_pause_is_watched(parts: Path, what: str, ended: str) -> None:
    """It can be cancelled, its steps have a time limit, and it has all its threads."""
    done = subprocess.run([str(parts), "talk", what], capture_output=True, timeout=3, check=True)
    said = done.stdout.decode()
    assert said.startswith(ended)
    assert what in ("forged", "end", "threads") or int(said.split()[1]) >= 1
    assert what != "ever" or "no answer within 0.3 seconds" in said


CPU0, COOLER = "sys/devices/system/cpu/cpu0", "sys/class/thermal/cooling_device0"
FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"
COOLING = {f"{COOLER}/type": "thermal-cpufreq-0", f"{COOLER}/max_state": "4"}
CLOCK = {"scaling_governor": "performance", "cpuinfo_max_freq": "2400000"}


@pytest.mark.parametrize(
    ("files", "slow"),
    [
        ({}, False),
        ({**COOLING, f"{COOLER}/cur_state": "2"}, True),
        ({**COOLING, f"{COOLER}/cur_state": "0"}, False),
        ({**COOLING, f"{COOLER}/cur_state": "9"}, False),
        ({**COOLING, f"{COOLER}/cur_state": "2", f"{COOLER}/type": "fan"}, False),
        ({FIRMWARE: "0x50004"}, True),
        ({FIRMWARE: "50000"}, False),
        ({FIRMWARE: "no number"}, False),
        (
            {f"{CPU0}/cpufreq/{n}": t for n, t in {**CLOCK, "scaling_cur_freq": "1800000"}.items()},
            True,
        ),
        (
            {f"{CPU0}/cpufreq/{n}": t for n, t in {**CLOCK, "scaling_cur_freq": "2400000"}.items()},
            False,
        ),
        (
            {
                f"{CPU0}/cpufreq/{n}": t
                for n, t in {
                    **CLOCK,
                    "scaling_cur_freq": "1800000",
                    "scaling_driver": "amd-pstate",
                }.items()
            },
            False,
        ),
    ],
)
def test_heat_is_found_as_in_python(
    parts: Path, tmp_path: Path, files: dict[str, str], slow: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    status, said = ask(parts, b"", "heat", str(tmp_path))
    assert (status, said.decode()) == (0, Heat(tmp_path, [0, 1]).reason())
    assert bool(said) == slow


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (
            3,
            [
                "work waits: 'thermal-cpufreq-0' slows it down, step 1 of 4",
                "after 3 seconds, it is over",
            ],
        ),
        (0, ["work waits", "after 0 seconds, nobody waits", "work waits", "after 0 seconds"]),
        (999, ["work waits", "after 180 seconds, it is still so: 'thermal-cpufreq-0' slows"]),
    ],
)
def test_work_waits_until_the_device_is_cool(
    parts: Path, tmp_path: Path, seconds: int, said: Sequence[str]
) -> None:
    """Requested twice: a device that stays hot during a whole wait is not waited for again."""
    for name, text in {**COOLING, f"{COOLER}/cur_state": "1"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    lines = ask(parts, b"", "cools", str(tmp_path), str(seconds))[1].decode().splitlines()
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True))


def test_digests(parts: Path) -> None:
    for length in (0, 1, 55, 56, 63, 64, 111, 112, 128, 1000):
        text = random.Random(length).randbytes(length)
        assert ask(parts, text, "digest") == (0, hashlib.sha256(text).hexdigest().encode())


def test_libraries_are_loaded_or_refused(parts: Path, tmp_path: Path) -> None:
    (tmp_path / "k.c").write_text(
        "#include <stddef.h>\nvoid *memcpy(void *, const void *, size_t);\n"
        "static int two(void) { return 2; }\nint (*const table[])(void) = {two};\n"
        "int kernel(void *a, void *b, size_t n) { memcpy(a, b, n); return table[n & 0](); }\n"
    )
    (tmp_path / "f.c").write_text("int puts(const char *); int kernel(void) { return puts(0); }\n")
    libraries = []
    for name in ("k", "f"):
        compile_one = [*host_compiler(), "-O1", "-fPIC", "-w", "-c", f"{name}.c", "-o", f"{name}.o"]
        subprocess.run(compile_one, cwd=tmp_path, check=True)
        link_shared([(tmp_path / f"{name}.o").read_bytes()], tmp_path / f"{name}.so")
        libraries.append((tmp_path / f"{name}.so").read_bytes())
    good, foreign = libraries
    assert ask(parts, good, "elf", "kernel")[0] == 0
    assert ask(parts, good, "elf", "other")[0] == REFUSED
    assert b"the library would call 'puts'" in ask(parts, foreign, "elf", "kernel")[1]
    assert ask(parts, b"\x7fELF", "elf", "kernel")[0] == REFUSED
    hidden = bytearray(good)
    table, count = int.from_bytes(good[32:40], "little"), int.from_bytes(good[56:58], "little")
    for segment in range(table, table + 56 * count, 56):
        hidden[segment + 4] &= ~4  # PF_R: its symbols cannot be read, if that is believed
    assert ask(parts, bytes(hidden), "elf", "kernel")[0] == 0
    rng = random.Random(3)
    for _ in range(25):  # in the head and the tables that come first
        at = rng.randrange(4, 900)
        ask(parts, good[:at] + rng.randbytes(1) + good[at + 1 :], "elf", "kernel")
    for at in range(0, len(good), len(good) // 12):
        ask(parts, good[:at], "elf", "kernel")


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "dtype", ["f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]
)
def test_files_of_arrays_are_read(parts: Path, dtype: str) -> None:
    array = np.arange(5).astype(dtype)
    status, said = ask(parts, npy(array), "npy")
    assert status == 0 and [float(x) for x in said.split()] == array.astype(float).tolist()


def test_damaged_files_of_arrays_are_read_or_refused(parts: Path) -> None:
    whole = npy(np.arange(3, dtype="f4"))
    for file in [whole[:40], *damaged(whole, 12, seed=4), npy(np.array(["text"]))]:
        ask(parts, file, "npy")


def test_pairs_are_judged_as_in_python(parts: Path) -> None:
    rng = random.Random(5)
    for count in (1, 2, 5, 6, 7, 15, 16, 40):
        for middle in (0.9, 0.998, 1.0, 1.1):
            ratios = tuple(rng.gauss(middle, 0.02) for _ in range(count))
            found = ask(parts, json.dumps(ratios).encode(), "judge")[1].decode().split()
            right = Comparison("", ratios)
            interval = right.interval
            assert [float(x) for x in found[:4]] == pytest.approx(
                [median(ratios), interval.low, interval.high, interval.coverage]
            )
            assert found[4] == right.outcome.value
            if count <= 16:
                assert bool(int(found[5])) == may_be_faster(ratios, 16)


def test_a_slow_reference_kernel_shows_a_disturbance(parts: Path) -> None:
    """Wall time of several threads has a separate standard."""
    quiet = [[1.0, 1.0, 1]] * 20
    later = [[1.05, 1.3, 1], [1.2, 1.0, 1], [1.0, 2.0, 1], [9.0, 9.0, 2], [1.0, 1.0, 1]]
    status, said = ask(parts, json.dumps([*quiet, *later]).encode(), "speed")
    assert (status, said.decode()) == (0, "0" * 20 + "01100")


def test_each_harness_of_a_machine_has_a_user_until_it_ends(parts: Path) -> None:
    """If a range has fewer users than there are harnesses, they share."""
    first = 1_000_000 + 2 * os.getpid()  # no other test takes it
    try:
        for _ in range(2):
            status, said = ask(parts, b"", "users", str(first), str(first + 1))
            *own, shared = (int(user) for user in said.split())
            assert (status, own) == (0, [first, first + 1]) and shared in own
    finally:
        for folder in ("/run", "/data/local/tmp", "/tmp"):
            for user in (first, first + 1):
                with suppress(OSError):
                    Path(folder, "tilewright-users", str(user)).unlink()
