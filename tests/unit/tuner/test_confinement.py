"""Candidates that want more than to compute: each is refused, and a measurement says so."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.tuner.test_sandbox import EXPECTED, _measure, _request, _save
from tilewright.tuner.measure.call_filter import ARCHITECTURES, filter_program
from tilewright.tuner.measure.confinement import ON, PLAIN, Confinement, SandboxGuard
from tilewright.tuner.measure.guards import put_on
from tilewright.tuner.measure.measurement import Measurement, Status
from tilewright.tuner.measure.sandbox import Sandbox
from tilewright.tuner.measure.sandbox_child import Budget, Death, SandboxChild, Talked
from tilewright.tuner.measure.wire import digest_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guards are Linux's")

USER = 61_234
GIBIBYTE = 1 << 30

SOURCE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#define KERNEL(name) \\
  void name(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi)
/* the right answer if `refused`, a wrong one else */
#define ANSWER(refused) \\
  const float *a = buffers[0], *b = buffers[1]; float *out = buffers[2]; int ok = (refused); \\
  for (int i = 0; i < 256; i++) out[i] = a[i] + b[i] + (ok ? 0.0f : 1.0f);
static int unreadable(const char *path) {
  int file = open(path, O_RDONLY);
  char byte;
  return file < 0 || read(file, &byte, 1) != 1;
}
static int of_parent(const char *name) {
  char path[100];
  snprintf(path, sizeof path, "/proc/%d/%s", getppid(), name);
  return unreadable(path);
}
static void *waits(void *unused) { pause(); return unused; }
static int threads(void) {
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 65536);
  int count = 0;
  for (pthread_t thread; count < 5000 && !pthread_create(&thread, &small, waits, NULL);) count++;
  return count;
}
static int raised(int limit) {
  struct rlimit most = {RLIM_INFINITY, RLIM_INFINITY};
  return setrlimit(limit, &most) == 0;
}
KERNEL(good) { ANSWER(1) }
KERNEL(connects) { ANSWER(socket(AF_INET, SOCK_STREAM, 0) < 0) }
KERNEL(local_socket) { int pair[2]; ANSWER(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0) }
KERNEL(forks) { ANSWER(fork() < 0) }
KERNEL(runs_shell) { ANSWER(system("true") != 0) }
KERNEL(kills_parent) { ANSWER(kill(getppid(), SIGKILL) < 0) }
KERNEL(traces_parent) { ANSWER(ptrace(PTRACE_ATTACH, getppid(), 0, 0) < 0) }
KERNEL(becomes_root) { ANSWER(setuid(0) < 0) }
KERNEL(writes_file) { ANSWER(open("/tmp/" NAME, O_WRONLY | O_CREAT, 0600) < 0) }
KERNEL(spoils_blob) { ANSWER(open("./" BLOB, O_WRONLY) < 0 && truncate("./" BLOB, 0) < 0) }
KERNEL(removes_blob) { ANSWER(unlink("./" BLOB) < 0 && rename("./" BLOB, "./x") < 0) }
KERNEL(shares_memory) { ANSWER(shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600) < 0) }
KERNEL(raises_limits) { ANSWER(!raised(RLIMIT_AS) && !raised(RLIMIT_FSIZE)) }
KERNEL(outlives) { ANSWER(prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) < 0) }
KERNEL(reads_environment) { ANSWER(of_parent("environ")) }
KERNEL(reads_memory) { ANSWER(of_parent("mem") && of_parent("maps")) }
KERNEL(reads_secret) { ANSWER(unreadable(SECRET)) }
KERNEL(many_threads) { ANSWER(threads() < 600) }
KERNEL(allocates) {
  size_t size = (size_t)3 << 30;
  ANSWER(mmap(NULL, size, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED)
}
KERNEL(has_its_own_environment) {
  ANSWER(getenv("TILEWRIGHT_TOKEN") == NULL && getenv("AWS_SECRET") == NULL)
}
KERNEL(babbles) {
  ANSWER(1)
  for (int file = 3; file < 40; file++) if (write(file, "what\\n", 5) < 0) continue;
}
KERNEL(speaks_for_others) {
  ANSWER(1)
  const char *said = "{\\"event\\": \\"sample\\", \\"trial\\": \\"x\\", \\"seconds\\": [1e-9]}\\n";
  for (int file = 3; file < 40; file++) if (write(file, said, strlen(said)) < 0) continue;
}
"""

BLOB = digest_bytes(EXPECTED)


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token's file, as its owner keeps it; only the candidate's own user would be refused it."""
    path = tmp_path_factory.mktemp("secrets") / "token"
    path.write_text("secret")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, secret: Path) -> bytes:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "k.c").write_text(SOURCE)
    names = [f'-DSECRET="{secret}"', f'-DBLOB="{BLOB}"', f'-DNAME="tilewright-{os.getpid()}"']
    flags = ["-O1", "-shared", "-fPIC", "-pthread", "-o", "k.so", "k.c"]
    subprocess.run([compiler, *names, *flags], check=True, cwd=folder)
    return (folder / "k.so").read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="module", params=["the keeper's user", "its own user"])
def sandbox(request: pytest.FixtureRequest, folder: Path) -> Iterator[Sandbox]:
    user = USER if request.param == "its own user" else None
    if user is not None and os.geteuid() != 0:
        pytest.skip("only root can change its user")
    box = Sandbox("w1", confinement=Confinement(user, 2 * GIBIBYTE, (), str(folder)))
    yield box
    box.close()


Measure = Callable[..., Measurement]


@pytest.fixture
def measure(sandbox: Sandbox, library: bytes, folder: Path) -> Measure:
    def one(symbol: str) -> Measurement:
        request = _request(library, symbol)
        _save(folder, library, EXPECTED)
        (result,) = sandbox.measure([request], lambda digest: folder / digest)
        ((_, measured),) = result.measurements
        return measured

    return one


def need(sandbox: Sandbox, guard: SandboxGuard) -> None:
    """Skip where this kernel does not give a guard, and fail where it was merely forgotten."""
    reason = sandbox.guards()[guard.value]
    if reason != ON:
        assert "the kernel has" in reason or "the system refuses" in reason, reason
        pytest.skip(f"{guard.value}: {reason}")


@pytest.mark.parametrize(
    "symbol",
    [
        *("connects", "local_socket", "forks", "runs_shell", "kills_parent", "traces_parent"),
        "becomes_root",
    ],
)
def test_who_asks_for_what_no_kernel_needs_is_killed(
    sandbox: Sandbox, measure: Measure, symbol: str
) -> None:
    need(sandbox, SandboxGuard.CALLS)
    measured = measure(symbol)
    assert measured.status is Status.CRASH
    assert "SIGSYS: it asked the system for what candidates may not have" in measured.error
    assert measure("good").status is Status.OK


@pytest.mark.parametrize(
    "symbol",
    [
        *("writes_file", "spoils_blob", "removes_blob", "shares_memory", "raises_limits"),
        "outlives",
    ],
)
def test_changes_are_refused(sandbox: Sandbox, measure: Measure, symbol: str) -> None:
    need(sandbox, SandboxGuard.CALLS)
    assert measure(symbol).status is Status.OK, "a wrong answer would mean that it was let"


@pytest.mark.parametrize("symbol", ["reads_environment", "reads_memory"])
def test_the_keepers_process_is_not_read(measure: Measure, symbol: str) -> None:
    assert measure(symbol).status is Status.OK


def test_a_token_on_the_disk_is_not_read(sandbox: Sandbox, measure: Measure) -> None:
    if sandbox.guards()[SandboxGuard.USER.value] != ON:
        need(sandbox, SandboxGuard.FILES)
    assert measure("reads_secret").status is Status.OK


def test_too_much_memory_is_not_given(measure: Measure) -> None:
    assert measure("allocates").status is Status.OK


def test_threads_are_counted(sandbox: Sandbox, measure: Measure) -> None:
    if sandbox.guards()[SandboxGuard.PROCESSES.value] != ON:
        assert sandbox.guards()[SandboxGuard.USER.value] != ON
        pytest.skip("they count with those of the keeper's user")
    assert measure("many_threads").status is Status.OK


def test_the_environment_holds_what_a_python_needs(
    library: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_TOKEN", "secret")
    monkeypatch.setenv("AWS_SECRET", "secret")
    box = Sandbox("w1")
    try:
        found = _measure(box, library, tmp_path, "has_its_own_environment")
        assert found == {"has_its_own_environment": Status.OK}
    finally:
        box.close()


@pytest.mark.parametrize("symbol", ["babbles", "speaks_for_others"])
def test_who_writes_where_the_sandbox_speaks_is_blamed(measure: Measure, symbol: str) -> None:
    measured = measure(symbol)
    assert (measured.status, measured.error) == (Status.CRASH, "said what is no event")
    assert measure("good").status is Status.OK


def test_each_guard_says_whether_it_is_on_and_why_not(sandbox: Sandbox) -> None:
    found = sandbox.guards()
    assert list(found) == [
        *(SandboxGuard.LIMITS, SandboxGuard.NETWORK, SandboxGuard.USER, SandboxGuard.PROCESSES),
        *(SandboxGuard.PRIVILEGES, SandboxGuard.FILES, SandboxGuard.CALLS),
    ]
    assert found[SandboxGuard.LIMITS] == ON
    box = Sandbox("w1", confinement=PLAIN)
    try:
        assert box.guards()[SandboxGuard.FILES] == "the files of jobs lie anywhere"
        assert box.guards()[SandboxGuard.USER]
    finally:
        box.close()


def test_candidates_run_on_the_cores_that_are_named(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    box = Sandbox("w1", confinement=Confinement(cores=(last,)))
    try:
        box.guards()
        process = box._child._process
        assert process is not None and os.sched_getaffinity(process.pid) == {last}
    finally:
        box.close()


def in_a_child(work: Callable[[], None]) -> int:
    """The status that a forked process ends with after `work`; negative: the signal's number."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_big_file_is_not_written_where_there_is_no_filter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under an emulator: limits are the guard that every system has."""

    def work() -> None:
        monkeypatch.setattr("tilewright.tuner.measure.guards.filter_program", lambda *_: b"")
        found = put_on(Confinement(memory_bytes=2 * GIBIBYTE))
        assert found[SandboxGuard.LIMITS] == ON and found[SandboxGuard.CALLS] != ON
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        with (tmp_path / "big").open("wb", buffering=0) as file:
            file.write(b"x")

    assert in_a_child(work) == -signal.SIGXFSZ


def test_a_machine_without_these_guards_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    def work() -> None:
        for name in ("unshare", "filter_calls", "no_new_privileges", "landlock_version"):
            monkeypatch.setattr(f"tilewright.tuner.measure.linux.{name}", refuse)
        found = put_on(Confinement(folder="/tmp"))
        assert found[SandboxGuard.LIMITS] == ON
        for guard in (
            SandboxGuard.NETWORK,
            SandboxGuard.PRIVILEGES,
            SandboxGuard.FILES,
            SandboxGuard.CALLS,
        ):
            assert "Function not implemented" in found[guard], found

    assert in_a_child(work) == 0


@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
def test_a_filter_is_a_program_that_the_kernel_can_take(machine: str) -> None:
    program = filter_program(machine, os.getpid())
    count = len(program) // 8
    assert len(program) % 8 == 0 and count <= 4096
    if machine == platform.machine():

        def other_architecture() -> None:
            from tilewright.tuner.measure import linux

            linux.no_new_privileges()
            others = [name for name in ARCHITECTURES if name != machine]
            linux.filter_calls(filter_program(others[0], os.getpid()))
            os.getppid()  # the first call is one of another architecture

        assert in_a_child(other_architecture) == -signal.SIGSYS


def test_a_process_hides_from_others_of_its_user() -> None:
    def work() -> None:
        from tilewright.tuner.measure import linux

        linux.hide()
        assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0  # PR_GET_DUMPABLE

    assert in_a_child(work) == 0


# ---- the keeper's side

ENDLESS = """
import json, sys
sys.stdin.readline()
print(json.dumps({"event": "ready", "guards": {}}), flush=True)
sys.stdin.readline()
while True:
    print(json.dumps({"event": "begin"}), flush=True)
"""

LIMITS = """
import json, resource, sys
sys.stdin.readline()
print(json.dumps({"event": "ready", "guards": {}}), flush=True)
for line in sys.stdin:
    print(json.dumps({"event": "cpu", "limit": resource.getrlimit(resource.RLIMIT_CPU)[0]}))
    print(json.dumps({"event": "done"}), flush=True)
"""


def child(script: str) -> SandboxChild:
    return SandboxChild((sys.executable, "-c", script), PLAIN)


def test_a_job_that_always_begins_something_ends_with_its_budget() -> None:
    talking = child(ENDLESS)
    try:
        ended = talking.talk({}, 60.0, lambda _: 60.0, lambda: False, Budget(0.5, 1))
        # where we are kept from looking at the clock, the kernel looks at the processor time
        late = isinstance(ended, Death) and ended.signal == signal.SIGXCPU
        assert late or ended is Talked.OUT_OF_TIME
    finally:
        talking.close()


def test_a_job_gets_processor_time_for_itself() -> None:
    talking, seen = child(LIMITS), []
    try:
        for seconds in (100.0, 10.0):
            budget = Budget(seconds, 3)
            talking.talk({}, 60.0, lambda e: seen.append(e["limit"]), lambda: False, budget)
    finally:
        talking.close()
    assert seen[0] >= 400 and 40 <= seen[1] < 60


@pytest.mark.parametrize("line", ["7", "[" * 100_000, "{", '{"event": "x"', "\\x1b[31m"])
def test_what_is_no_event_ends_the_child(line: str) -> None:
    script = ENDLESS.partition("while True")[0] + f"print({line!r}, flush=True)\nsys.stdin.read()"
    talking = child(script)
    try:
        ended = talking.talk({}, 60.0, lambda _: None, lambda: False, Budget(60.0, 1))
        assert ended == Death("said what is no event")
    finally:
        talking.close()
