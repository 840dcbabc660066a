"""The test program of the harness's parts, with sanitizers and a small limit of memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tilewright.tuner.measure.harness.binary import FLAGS, FOLDER, host_compiler

PARTS = (
    "text",
    "json",
    "digest",
    "library",
    "arrays",
    "statistics",
    "sandbox",
    "system",
    "heat",
    "speed",
    "batch",
    "race",
    "results",
    "users",
)
HELD_BYTES = 4 << 20
"""Most packed buffers at a time in the test program, in place of 1 GiB."""

SANITIZED = ("-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "UBSAN_OPTIONS": "exitcode=99"}
"""Settings of the sanitizers; theirs is an exit status that no part has."""


def build_parts(output: Path) -> None:
    """Compile `harness_parts.c` with the parts."""
    sources = [Path(__file__).with_name("harness_parts.c"), *(FOLDER / f"{p}.c" for p in PARTS)]
    options = [*SANITIZED, f"-DHELD_BYTES={HELD_BYTES}", "-Wall", "-Wextra", "-Werror", *FLAGS]
    command = [*host_compiler(), *options, f"-I{FOLDER}", *map(str, sources), "-lm"]
    subprocess.run([*command, "-o", str(output)], check=True)
