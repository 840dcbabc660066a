"""The sandbox's child runs on the device, even where the worker's own machine could do more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices.emulators import Emulated, zig_environment
from tests.devices.machines import HASWELL, Machine
from tests.devices.packages import UnavailableError
from tilewright.tuner.measure.confinement import ON, SandboxGuard
from tilewright.tuner.measure.measurement import RecordKey, Status
from tilewright.tuner.measure.sandbox import Sandbox
from tilewright.tuner.measure.wire import (
    Candidate,
    Case,
    InputSpec,
    MeasureRequest,
    RepeatSettings,
    array_to_bytes,
    digest_bytes,
)

SIZE = 64

SOURCE = """
#include <stdint.h>
#define KERNEL(name) \\
  void name(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi)
#define NEGATE \\
  const float *a = buffers[0]; float *out = buffers[1]; \\
  for (int i = 0; i < 64; i++) out[i] = -a[i];
KERNEL(narrow) { NEGATE }
// vpxord zmm0, zmm0, zmm0: of AVX-512, which no Haswell has
KERNEL(wide) { NEGATE __asm__ volatile(".byte 0x62, 0xf1, 0x7d, 0x48, 0xef, 0xc0" ::: "xmm0"); }
"""

pytestmark = [pytest.mark.devices, pytest.mark.timeout(300)]


@pytest.fixture
def machine() -> Machine:
    return HASWELL


@pytest.fixture
def library(emulated: Emulated, tmp_path: Path) -> bytes:
    """Both kernels, compiled for the machine."""
    (tmp_path / "kernels.c").write_text(SOURCE)
    target = f"{emulated.machine.architecture}-linux-gnu"
    flags = ["-O1", "-fPIC", "-shared", "-nostdlib", "-o", "kernels.so"]
    try:
        environment = zig_environment()
    except UnavailableError as error:
        pytest.skip(str(error))
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-target", target, *flags, "kernels.c"],
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    return (tmp_path / "kernels.so").read_bytes()


def _candidate(symbol: str) -> Candidate:
    buffer = {"dtype": "float32", "shape": [SIZE], "layout": "row", "bytes": 4 * SIZE}
    spec = {
        "abi": 1,
        "name": symbol,
        "stages": [[symbol, 1]],
        "buffers": [
            {**buffer, "name": "a", "role": "input", "source": 0},
            {**buffer, "name": "out", "role": "output", "source": -1},
        ],
        "scratch_bytes": 64,
    }
    return Candidate(symbol, {"algorithm": symbol, "choices": {}}, symbol, spec, symbol)


def test_an_instruction_that_the_device_lacks_is_a_crash(
    emulated: Emulated, library: bytes, tmp_path: Path
) -> None:
    spec = InputSpec((SIZE,), "float32", 1)
    expected = array_to_bytes(-spec.draw())
    blobs = {digest_bytes(data): data for data in (library, expected)}
    for digest, data in blobs.items():
        (tmp_path / digest).write_bytes(data)
    request = MeasureRequest(
        request_id="r",
        key=RecordKey("w", "t"),
        candidates=(_candidate("narrow"), _candidate("wide")),
        library_digest=digest_bytes(library),
        cases=(Case((spec,), digest_bytes(expected)),),
        tolerance=0.0,
        repeat=RepeatSettings(3, 1e-4, round_seconds=0.0),
    )
    sandbox = Sandbox("w", python=emulated.python)
    try:
        (result,) = sandbox.measure([request], lambda digest: tmp_path / digest)
        guards = sandbox.guards()
    finally:
        sandbox.close()
    narrow, wide = (measurement for _, measurement in result.measurements)
    assert narrow.status is Status.OK and len(narrow.samples_seconds) > 1
    assert (wide.status, wide.error) == (Status.CRASH, "killed by SIGILL")
    # an emulator filters no calls of what runs in it, and says so
    assert (
        guards[SandboxGuard.LIMITS] == ON
        and "the kernel has no filter" in guards[SandboxGuard.CALLS]
    )
