"""The thread pool: every tile once, under contention, after forks, asleep when idle."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tilewright.compiler.runtime.bench import BoundKernel
from tilewright.compiler.runtime.kernel import BufferRole, KernelSpec
from tilewright.compiler.runtime.native import native
from tilewright.compiler.runtime.packing import aligned_zeros
from tilewright.compiler.runtime.pool import bind_workers

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "compiler" / "runtime" / "native"

MakeSpec = Callable[..., KernelSpec]
AddressOf = Callable[[str], int]


def counter(
    make_spec: MakeSpec, address_of: AddressOf, extent: int, threads: int
) -> tuple[BoundKernel, np.ndarray]:
    spec = make_spec("count", {"count": extent}, {"counts": (BufferRole.OUTPUT, extent)}, 64)
    counts = aligned_zeros(4 * extent).view(np.int32)
    return BoundKernel(spec, [address_of("count")], [counts], threads), counts


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux tells which are blocked")
def test_workers_leave_signals_to_others_but_those_of_their_own_instructions(
    make_spec: MakeSpec, address_of: AddressOf
) -> None:
    kernel, _ = counter(make_spec, address_of, 64, 3)
    kernel.run()
    assert native().tw_pool_workers() >= 2
    own = (signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)
    others = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD)

    def as_asked() -> int:
        """How many threads are so: not those of pytest and of libraries, which block all or none,
        as a thread does that has not begun."""
        masks = [
            int(task.read_text().split("SigBlk:")[1].split()[0], 16)
            for task in Path("/proc/self/task").glob("*/status")
        ]
        wanted = sum(1 << (number - 1) for number in others)
        watched = wanted | sum(1 << (number - 1) for number in own)
        return sum(mask & watched == wanted for mask in masks)

    deadline = time.monotonic() + 60
    while as_asked() < native().tw_pool_workers() and time.monotonic() < deadline:
        kernel.run()
    assert as_asked() >= native().tw_pool_workers()


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 16, 64])
def test_every_tile_runs_once(make_spec: MakeSpec, address_of: AddressOf, threads: int) -> None:
    for extent in [*range(1, 40), 63, 64, 65, 319, 320, 321, 1000, 4096, 65537]:
        kernel, counts = counter(make_spec, address_of, extent, threads)
        kernel.run()
        kernel.run()
        assert (counts == 2).all(), (extent, threads, np.flatnonzero(counts != 2)[:8])


def test_an_extent_of_zero_runs_nothing(make_spec: MakeSpec, address_of: AddressOf) -> None:
    spec = make_spec("count", {"count": 0}, {"counts": (BufferRole.OUTPUT, 1)}, 64)
    counts = aligned_zeros(4).view(np.int32)
    for threads in (1, 4):
        BoundKernel(spec, [address_of("count")], [counts], threads).run()
    assert counts[0] == 0


def test_callers_at_the_same_time(make_spec: MakeSpec, address_of: AddressOf) -> None:
    def call(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            extent, threads = int(rng.integers(1, 3000)), int(rng.integers(1, 9))
            kernel, counts = counter(make_spec, address_of, extent, threads)
            for _ in range(5):
                kernel.run()
            if not (counts == 5).all():
                return False
        return True

    with ThreadPoolExecutor(6) as callers:
        assert all(callers.map(call, range(12)))


def test_there_is_a_barrier_between_stages(make_spec: MakeSpec, address_of: AddressOf) -> None:
    roles = {
        "in": (BufferRole.INPUT, 64),
        "shared": (BufferRole.SHARED, 64),
        "out": (BufferRole.OUTPUT, 64),
    }
    spec = make_spec("sum", {"gather_stage": 64, "sum_stage": 64}, roles)
    buffers = [aligned_zeros(256).view(np.float32) for _ in range(3)]
    kernel = BoundKernel(spec, [address_of(s.symbol) for s in spec.stages], buffers, threads=4)
    for value in range(1, 300):
        buffers[0][:] = value
        kernel.run()
        assert (buffers[2] == 64 * value).all()


def test_idle_workers_sleep(make_spec: MakeSpec, address_of: AddressOf) -> None:
    kernel, _ = counter(make_spec, address_of, 1000, 4)
    kernel.run()
    workers = native().tw_pool_workers()
    assert workers >= 3
    deadline = time.monotonic() + 30
    while native().tw_pool_sleeping() < workers and time.monotonic() < deadline:
        time.sleep(0.001)
    assert native().tw_pool_sleeping() == workers
    kernel.run()  # and they wake up again


def test_a_forked_child_has_a_pool_of_its_own(make_spec: MakeSpec, address_of: AddressOf) -> None:
    kernel, counts = counter(make_spec, address_of, 1000, 4)
    kernel.run()
    child = os.fork()
    if child == 0:
        started_with = native().tw_pool_workers()
        kernel.run()
        right = started_with == 0 and native().tw_pool_workers() == 3 and (counts == 2).all()
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    kernel.run()
    assert (counts == 2).all()


BOUND = """
import os, sys, time
from pathlib import Path
import numpy as np
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.runtime.bench import BoundKernel
from tilewright.compiler.runtime.kernel import (
    ABI_VERSION, BufferRole, BufferSpec, KernelSpec, StageSpec
)
from tilewright.compiler.runtime.native import native
from tilewright.compiler.runtime.pool import bind_workers

import ctypes
address = ctypes.cast(ctypes.CDLL(sys.argv[1]).count, ctypes.c_void_p).value
counts = np.zeros(4096 + 16, np.int32)
counts = counts[-counts.ctypes.data // 4 % 16 :][:4096]
buffer = BufferSpec("counts", BufferRole.OUTPUT, DType.INT32, (4096,), "row", (), 4 * 4096)
spec = KernelSpec(ABI_VERSION, "count", (StageSpec("count", 4096),), (buffer,), 64)

def run(threads):
    BoundKernel(spec, [address], [counts], threads).run()

def workers():
    others = {int(p.name) for p in Path("/proc/self/task").iterdir()} - {os.getpid()}
    return sorted(sorted(os.sched_getaffinity(t)) for t in others)

def become(expected):
    # a worker that has just started goes to its place as soon as the system lets it run
    deadline = time.monotonic() + 60
    while workers() != sorted(expected) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert workers() == sorted(expected)

mine = sorted(os.sched_getaffinity(0))
run(1)
assert native().tw_pool_workers() == 0 and workers() == [], "one thread needs no worker"
run(3)
assert native().tw_pool_workers() == 2 and len(workers()) == 2
bind_workers([mine[-1]])
become([[mine[-1]]] * 2)  # those that run are moved
run(4)
assert native().tw_pool_workers() == 3
for _ in range(200):
    run(4)
become([[mine[-1]]] * 3)  # one that starts, or wakes up, goes there too
bind_workers(mine)
become([[mine[w % len(mine)]] for w in range(3)])
for refused in ([mine[0], 60000], [-1], [0] * 256, ["0"]):
    try:
        bind_workers(refused)
    except InvalidArgumentError as error:
        assert len(refused) != 2 or "processor 60000" in str(error)
    else:
        raise AssertionError(refused)
become([[mine[w % len(mine)]] for w in range(3)])
bind_workers([])
become([mine] * 3)
assert sorted(os.sched_getaffinity(0)) == mine, "the calling thread stays as it is"
assert (counts == counts[0]).all()
"""


def in_python(script: str, library_path: Path) -> subprocess.CompletedProcess[str]:
    """Run a script that uses the library, in a process with a pool of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", script, str(library_path)],
        capture_output=True,
        text=True,
        cwd=HERE.parents[2],
        env=environment,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no threads")
def test_workers_are_bound_where_the_user_says(library_path: Path) -> None:
    done = in_python(BOUND, library_path)
    assert done.returncode == 0, done.stderr


WITHOUT_PLACEMENT = """
import ctypes, struct
# allow each system call, but let sched_setaffinity fail with ENOSYS
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 203), (6, 0, 0, 0x50026), (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
system = ctypes.CDLL(None)
assert system.prctl(38, 1, 0, 0, 0) == 0 and system.prctl(22, 2, program, 0, 0) == 0
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls have numbers")
def test_threads_start_where_the_system_places_none(library_path: Path) -> None:
    """A sandbox may refuse to place threads."""
    begins = BOUND.split("mine = ")[0]
    done = in_python(f"{WITHOUT_PLACEMENT}{begins}\nrun(3)\nprint(len(workers()))", library_path)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no threads")
def test_binding_while_stages_run(make_spec: MakeSpec, address_of: AddressOf) -> None:
    mine = sorted(os.sched_getaffinity(0))

    def call(seed: int) -> bool:
        kernel, counts = counter(make_spec, address_of, 100 + seed, 4)
        for _ in range(300):
            kernel.run()
        return bool((counts == 300).all())

    with ThreadPoolExecutor(3) as callers:
        results = [callers.submit(call, seed) for seed in range(6)]
        while not all(result.done() for result in results):
            for processors in ([mine[0]], mine, []):
                bind_workers(processors)
        assert all(result.result() for result in results)


def built(folder: Path, name: str, *flags: str) -> Path:
    """A program of this folder with the pool in it."""
    options = ["-O2", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", *flags, f"-I{NATIVE}"]
    sources = [HERE / f"{name}.c", *sorted(NATIVE.glob("*.c"))]
    subprocess.run(["cc", *options, "-o", folder / name, *sources], check=True)
    return folder / name


@pytest.mark.parametrize("flags", [(), ("-DTW_NO_FUTEX",)], ids=["futex", "condition-variable"])
def test_stress(tmp_path: Path, flags: tuple[str, ...]) -> None:
    program = built(tmp_path, "stress", *flags)
    for callers in ("1", "4"):
        done = subprocess.run(
            [program, callers], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "8 workers\n"


def test_a_fork_while_a_first_stage_begins(tmp_path: Path) -> None:
    program = built(tmp_path, "early_fork", "-Wl,--wrap=pthread_atfork")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
