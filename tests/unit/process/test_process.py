"""Differences of our own processes from a plain one: seen from within such a process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from tilewright.compiler.memo import memo
from tilewright.compiler.process import BLAS_THREADS, release_memory

_PRODUCT = """
import gc, os
from tilewright.compiler.process import configure_process
configure_process()
import numpy
x = numpy.ones((512, 512), "float32")
x @ x
print(gc.get_threshold()[0], os.environ["OPENBLAS_NUM_THREADS"], len(os.listdir("/proc/self/task")))
"""


def _run(**variables: str) -> list[str]:
    given = {name: value for name, value in os.environ.items() if name != BLAS_THREADS}
    done = subprocess.run(
        [sys.executable, "-c", _PRODUCT],
        env={**given, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_products_take_one_thread_and_garbage_waits() -> None:
    assert _run() == ["50000", "1", "1"]


def test_a_users_number_of_threads_stays() -> None:
    threshold, threads, _ = _run(OPENBLAS_NUM_THREADS="2")
    assert (threshold, threads) == ("50000", "2")


@pytest.mark.parametrize(("leaving", "searched"), [("skip_final_collection()", "no"), ("", "yes")])
def test_the_end_of_a_process_searches_no_garbage(leaving: str, searched: str) -> None:
    """A cycle is not collected, and its finaliser's message is not printed."""
    code = f"""
from tilewright.compiler.process import skip_final_collection
class Cycle:
    def __del__(self): print("yes", end="")
cycle = Cycle()
cycle.itself = cycle
del cycle
{leaving}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout or "no") == searched


_FREED = """
import os
from tilewright.compiler.process import release_memory

def held():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

blocks = [bytearray(5000) for _ in range(40_000)]
last = blocks[-1]
full = held()
del blocks
release_memory()
print(full - held())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_memory_below_a_block_that_lives_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FREED], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 150


def test_what_memos_hold_is_given_back_between_jobs() -> None:
    """A tuner that had loaded many models held 200 MiB more than one with a single model."""
    calls = []

    @memo(4)
    def squared(number: int) -> int:
        calls.append(number)
        return number * number

    assert [squared(3), squared(3), squared(4)] == [9, 9, 16] and calls == [3, 4]
    release_memory()
    assert squared(3) == 9 and calls == [3, 4, 3]
