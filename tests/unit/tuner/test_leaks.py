"""Processes after crashes and hangs: as many as before, and every failure has its text."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.tuner.test_builder import FakeTask, _schedules, pretend
from tests.unit.tuner.test_local_runner import _result, _statuses, library
from tilewright.tuner.measure import builder as builder_module
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.protocol.measurement import Status

__all__ = ["library"]

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

CRASHES = 3


def children() -> set[int]:
    """Child processes of this one, except for those that have ended."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            # "pid (name) state parent ...": a name may hold anything but its last bracket
            state, parent = (entry / "stat").read_text().rpartition(") ")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if entry.name.isdigit() and int(parent) == os.getpid() and state != "Z":
            found.add(int(entry.name))
    return found


def files() -> dict[str, str]:
    """Files, pipes and sockets that this process has open: the target of each descriptor."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = os.readlink(entry)
        except FileNotFoundError:
            continue  # the folder's own, or closed meanwhile
    return found


def _soon(state: Callable[[], bool]) -> bool:
    """Whether a state is reached; the end of a process takes its moment, and longer on a busy
    machine."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if state():
            return True
        time.sleep(0.05)
    return False


def _settled(before: set[int], most: int) -> bool:
    """Whether soon no more than `most` processes are new."""
    return _soon(lambda: len(children() - before) <= most)


def test_builders_that_crash_and_hang_leave_no_process_behind() -> None:
    workers = 2
    warm = ProcessBuilder(workers=1, compile_candidate=pretend)  # starts multiprocessing's own
    warm.submit(FakeTask(), _schedules("good")).results()  # type: ignore[arg-type]
    warm.close()
    before = children()
    builder = ProcessBuilder(workers=workers, limit_seconds=1.0, compile_candidate=pretend)
    try:
        names = ["crashes"] * CRASHES + ["hangs"] * 2 + ["good"]
        results = builder.submit(FakeTask(), _schedules(*names)).results()  # type: ignore[arg-type]
        assert results[-1].status is Status.OK
        assert all(r.error for r in results if r.status is not Status.OK)
        assert _settled(before, workers)
    finally:
        builder.close()
    assert _settled(before, 0)


def test_batches_that_crash_leave_no_file_open() -> None:
    """Each crash costs a process and its pipes; a pool that kept them would end at the limit."""
    builder = ProcessBuilder(workers=1, compile_candidate=pretend)
    try:
        builder.submit(FakeTask(), _schedules("crashes", "good")).results()  # type: ignore[arg-type]
        before = files()
        for _ in range(CRASHES):
            results = builder.submit(FakeTask(), _schedules("crashes", "refused")).results()  # type: ignore[arg-type]
            assert [r.status for r in results] == [Status.BUILD_ERROR] * 2
        assert _soon(lambda: len(files()) <= len(before)), (before, files())
    finally:
        builder.close()


def test_what_a_builder_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long run: the last candidates, not all of them."""
    monkeypatch.setattr(builder_module, "CACHE_ENTRIES", 8)
    builder = ProcessBuilder(workers=1, compile_candidate=pretend)
    try:
        made = []
        for names in (("good",) * 20, ("good",) * 4):
            schedules = _schedules(*names)
            made.append(builder.submit(FakeTask(), schedules).results())  # type: ignore[arg-type]
        # the first four were forgotten, and are built again
        assert all(a.object != b.object for a, b in zip(made[0], made[1], strict=False))
        again = builder.submit(FakeTask(), _schedules(*("good",) * 4)).results()  # type: ignore[arg-type]
        assert [b.object for b in again] == [b.object for b in made[1]]
    finally:
        builder.close()


def test_batches_that_crash_leave_one_harness(library: bytes) -> None:
    before = children()
    runner = LocalRunner("w1")
    try:
        for _ in range(CRASHES):
            statuses = _statuses(runner, library, "crashes", "good")
            assert statuses == {"crashes": Status.CRASH, "good": Status.OK}
        assert _settled(before, 1)
    finally:
        runner.close()
    assert _settled(before, 0)


def test_every_failure_has_its_text(library: bytes) -> None:
    runner = LocalRunner("w1")
    bad = ("crashes", "wrong", "unfinished", "hangs", "absent")
    try:
        result = _result(runner, library, *bad, "good", limit_seconds=0.5)
    finally:
        runner.close()
    failed = {name: m.error for name, m in result.measurements if not m.ok}
    assert failed.keys() == set(bad) and all(failed.values())
