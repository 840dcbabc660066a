"""Candidates that attempt more than a computation: each is refused, and a measurement reports
it."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kernel_code import library_of
from tests.processes import children_of
from tests.unit.tuner.test_local_runner import EXPECTED, _measured, _request, _result
from tilewright.tuner.measure.harness.build import harness_folder, local_harness
from tilewright.tuner.measure.harness.command import DeviceCommand
from tilewright.tuner.measure.harness.driver import Harness, HarnessLimits
from tilewright.tuner.measure.harness.local import HERE
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.protocol.batches import MeasureResult
from tilewright.tuner.protocol.blobs import digest_bytes
from tilewright.tuner.protocol.measurement import Measurement, Status

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls are in assembly"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="kernels are compiled by gcc"),
]

MEBIBYTE = 1 << 20

SOURCE = """
#define KERNEL(name) \\
  void name(void *const *buffers, void *scratch, const long long *sizes, long long lo, long long hi)
static long ask(long call, long a, long b, long c) {
  register long d __asm__("r10") = 0x22, e __asm__("r8") = -1, f __asm__("r9") = 0;
  __asm__ volatile("syscall" : "+a"(call) : "D"(a), "S"(b), "d"(c), "r"(d), "r"(e), "r"(f)
                   : "rcx", "r11", "memory");
  return call;
}
/* the right answer if `refused`, a wrong one else */
#define ANSWER(refused) \\
  int ok = (refused); const float *a = buffers[0], *b = buffers[1]; float *out = buffers[2]; \\
  for (int i = 0; i < 256; i++) out[i] = a[i] + b[i] + (ok ? 0.0f : 1.0f);
KERNEL(good) { ANSWER(1) }
KERNEL(connects) { ANSWER(ask(41, 2, 1, 0) < 0) }
KERNEL(forks) { ANSWER(ask(57, 0, 0, 0) < 0) }
KERNEL(clones) { ANSWER(ask(56, 17, 0, 0) < 0) }
KERNEL(starts_a_program) { ANSWER(ask(59, (long)"/bin/true", 0, 0) < 0) }
KERNEL(kills_all) { ANSWER(ask(62, -1, 9, 0) < 0) }
KERNEL(signals_a_thread) { ANSWER(ask(200, KEEPER, 9, 0) < 0) }
KERNEL(signals_the_keeper) { ANSWER(ask(234, KEEPER, KEEPER, 9) < 0) }
KERNEL(traces) { ANSWER(ask(101, 16, KEEPER, 0) < 0) }
KERNEL(reads_memory) { ANSWER(ask(310, KEEPER, 0, 0) < 0) }
KERNEL(removes) { ANSWER(ask(87, (long)"/tmp/x", 0, 0) < 0) }
KERNEL(maps_memory_of_others) { ANSWER(ask(29, 1, 4096, 01600) < 0) }
KERNEL(asks_for_rights) { ANSWER(ask(105, 0, 0, 0) < 0) }
KERNEL(rings) { ANSWER(ask(425, 8, 0, 0) < 0) }
KERNEL(opens) { ANSWER(ask(257, -100, (long)"/etc/passwd", 0) < 0) }
KERNEL(writes) { ANSWER(ask(257, -100, (long)"x", 0101) < 0) }
KERNEL(moves_to_a_core) { long mask = 1; ANSWER(ask(203, KEEPER, 8, (long)&mask) < 0) }
KERNEL(raises_a_limit) { ANSWER(ask(302, 0, 9, (long)buffers) < 0) }
KERNEL(wants_memory) { ANSWER(ask(9, 0, 1L << 40, 3) < 0) }
KERNEL(places_itself) {
  long cores[128], size = ask(204, 0, sizeof cores, (long)cores);
  ANSWER(size > 0 && ask(203, 0, size, (long)cores) == 0)
}
KERNEL(signals_itself) { long me = ask(39, 0, 0, 0); ANSWER(ask(234, me, me, 0) == 0) }
"""

KILLED = (
    *("connects", "forks", "clones", "starts_a_program", "kills_all", "signals_a_thread"),
    *("signals_the_keeper", "traces", "reads_memory", "removes", "maps_memory_of_others"),
    *("asks_for_rights", "rings"),
)
REFUSED = ("opens", "writes", "moves_to_a_core", "raises_a_limit", "wants_memory")
GRANTED = ("signals_itself", "places_itself")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source = f"#define KEEPER {os.getpid()}L\n{SOURCE}"
    return library_of(source, tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def measured(library: bytes) -> Iterator[dict[str, Measurement]]:
    runner = LocalRunner("w1")
    yield dict(_result(runner, library, "good", *KILLED, *REFUSED, *GRANTED).measurements)
    runner.close()


@pytest.mark.parametrize("symbol", KILLED)
def test_who_asks_for_what_no_kernel_needs_is_killed(
    measured: dict[str, Measurement], symbol: str
) -> None:
    found = measured[symbol]
    assert found.status is Status.CRASH
    assert found.error.startswith("killed by SIGSYS: it asked the system for"), found.error
    assert measured["good"].status is Status.OK


@pytest.mark.parametrize("symbol", REFUSED)
def test_what_libraries_look_for_is_refused(measured: dict[str, Measurement], symbol: str) -> None:
    """System calls that a C library tries on its way fail."""
    assert measured[symbol].status is Status.OK, measured[symbol].error


@pytest.mark.parametrize("symbol", GRANTED)
def test_candidates_may_act_on_themselves(measured: dict[str, Measurement], symbol: str) -> None:
    assert measured[symbol].status is Status.OK, measured[symbol].error


SHARED = """
static long threads[2];
static int apart;
/* wrong where one thread runs both tiles of the first run: each tile waits for the other one */
KERNEL(shares) {
  const float *a = buffers[0], *b = buffers[1]; float *out = buffers[2];
  for (; lo < hi; lo++) {
    long me = ask(186, 0, 0, 0), other = 0;
    __atomic_store_n(&threads[lo], me, __ATOMIC_SEQ_CST);
    for (long i = 0; i < 100000000 && !other; i++) {
      other = __atomic_load_n(&threads[1 - lo], __ATOMIC_SEQ_CST);
      if (i % 1000 == 999) ask(24, 0, 0, 0);
    }
    if (other && other != me) apart = 1;
    for (int i = 128 * lo; i < 128 * lo + 128; i++) out[i] = a[i] + b[i] + (apart ? 0.0f : 1.0f);
  }
}
"""


def test_the_threads_of_a_stage_are_started(tmp_path: Path) -> None:
    """The C library places a thread by a system call that the filter must allow."""
    code = library_of(f"#define KEEPER 1L\n{SOURCE}{SHARED}", tmp_path)
    request = _request(code, "shares")
    (one,) = request.candidates
    spec = {**one.spec, "stages": [["shares", 2]]}
    request = replace(
        request,
        key=replace(request.key, threads=2),
        candidates=(replace(one, spec=spec),),
    )
    runner = LocalRunner("w1")
    (result,) = _measured(runner, request, library=code)
    runner.close()
    assert result.measurements[0][1].status is Status.OK, result.measurements[0][1].error


def test_the_guards_of_this_machine_are_logged(
    library: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    runner = LocalRunner("w1")
    _result(runner, library, "good")
    runner.close()
    (line,) = {r.message for r in caplog.records if "candidates are confined" in r.message}
    wanted = {"limits", "no privileges", "few system calls"}
    wanted |= {"own user"} if os.geteuid() == 0 else set()
    assert wanted <= set(line.partition(": ")[2].split(", "))


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="root takes another user"
)
@pytest.mark.parametrize("user", [0, 65534])
def test_candidates_end_first_where_memory_runs_out(user: int, tmp_path: Path) -> None:
    """Also where the harness is not root, to whom its own files of /proc are closed."""
    code = library_of(
        f'#define KEEPER 1L\n{SOURCE}KERNEL(hangs) {{ for (;;) __asm__ volatile(""); }}', tmp_path
    )
    blobs = {digest_bytes(data): data for data in (code, EXPECTED)}
    found: list[str] = []

    def looks() -> bool:
        with suppress(OSError):  # one ends meanwhile
            for child in [each for one in children_of(os.getpid()) for each in children_of(one)]:
                found.append(Path(f"/proc/{child}/oom_score_adj").read_text().strip())
        return False

    with tempfile.TemporaryDirectory() as folder:  # pytest's are closed to other users
        shutil.copy(local_harness(harness_folder(os.environ)), folder)
        os.chown(folder, user, user)
        via = f"setpriv --reuid {user} --clear-groups {{}}"
        command = DeviceCommand(via, Path(folder), print, None, Path(folder) / "blobs")
        harness = Harness(command, HarnessLimits(), print)
        request = _request(code, "hangs", limit_seconds=1.0)
        (result,) = harness.work([request], blobs.__getitem__, looks)
        harness.close()
    assert isinstance(result, MeasureResult)
    assert result.measurements[0][1].status is Status.RUN_TIMEOUT
    assert found[-1] == "1000"


def test_the_memory_of_candidates_is_limited(library: bytes, tmp_path: Path) -> None:
    """Blobs that are mapped come on top of the limit."""
    names = ("good", "wants_half")
    more = "KERNEL(wants_half) { ANSWER(ask(9, 0, 512L << 20, 3) < 0) }\n"
    code = library_of(f"#define KEEPER 1L\n{SOURCE}{more}", tmp_path)
    blobs = {digest_bytes(data): data for data in (code, EXPECTED)}
    for mebibytes, status in ((256, Status.OK), (4096, Status.WRONG_ANSWER)):
        command = DeviceCommand(HERE, harness_folder(os.environ), print, {}, tmp_path / "blobs")
        limits = HarnessLimits(sandbox_bytes=mebibytes * MEBIBYTE)
        harness = Harness(command, limits, print)
        (result,) = harness.work([_request(code, *names)], blobs.__getitem__, lambda: False)
        harness.close()
        assert isinstance(result, MeasureResult)
        found = {name: m.status for name, m in result.measurements}
        assert found == {"good": Status.OK, "wants_half": status}
