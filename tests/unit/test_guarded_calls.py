"""Forbidden accesses of a kernel under test are found, and the tests go on; libc's functions
replace the kernel."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kernels import GUARD_BYTES, Guarded, call_guarded, in_child

LIBC = ctypes.CDLL(None)


def address(name: str) -> int:
    found = ctypes.cast(getattr(LIBC, name), ctypes.c_void_p).value
    assert found
    return found


def fill(start: int, count: int) -> None:
    """memset(start, 0, count), as if it were a stage."""
    call_guarded(address("memset"), start, 0, count, range(0))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("beyond", [1, 1 << 20, GUARD_BYTES])
def test_a_byte_outside_is_a_fault(late: bool, beyond: int) -> None:
    block = Guarded(4096, late=late)
    start = block.bytes.ctypes.data
    with pytest.raises(AssertionError, match="it died of SIGSEGV"):
        fill(start + 4096 + beyond - 1, 1)
    with pytest.raises(AssertionError, match="it died of SIGSEGV"):
        fill(start - beyond, 1)
    fill(start, 4096)
    assert not block.bytes.any()


def test_bytes_of_its_pages_that_are_not_its_own_are_looked_at() -> None:
    block = Guarded(100, late=True)
    fill(block.bytes.ctypes.data, 101)
    with pytest.raises(AssertionError, match="'x': written behind its end"):
        block.check("x")


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """TimeoutError after this number of seconds; the timer of the test itself goes on
    afterwards."""

    def stop(*_: object) -> None:
        raise TimeoutError

    handler = signal.signal(signal.SIGALRM, stop)
    rest, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, rest)
        signal.signal(signal.SIGALRM, handler)


def test_what_never_ends_is_ended_by_the_alarm_of_the_test() -> None:
    with pytest.raises(TimeoutError), alarm(0.05):
        call_guarded(address("sleep"), 3600, 0, 0, range(0))


def test_the_alarm_comes_through_while_another_thread_runs_a_kernel() -> None:
    beside = threading.Thread(
        target=call_guarded, args=(address("usleep"), 300_000, 0, 0, range(0))
    )
    with alarm(0.1):
        beside.start()
        with pytest.raises(TimeoutError):
            time.sleep(2)
        beside.join()


def test_faults_elsewhere_are_left_to_those_who_took_them_before() -> None:
    block = Guarded(1, late=True)
    fill(block.bytes.ctypes.data, 1)

    def work() -> None:
        with open(os.devnull, "w") as nowhere:
            faulthandler.enable(nowhere)  # whose place it keeps: it would print all that runs
            ctypes.memset(8, 0, 1)

    with pytest.raises(AssertionError, match="it died of SIGSEGV"):
        in_child(work)
