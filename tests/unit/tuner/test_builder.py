"""The process builder: failures are data and hit only their own candidate."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pebble import ProcessFuture, ProcessPool
from pebble.pool.process import WorkerManager

from tests.unit.tuner.compilers import pretend
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.timings import StageTime, Timings
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.protocol.measurement import RecordKey, Status


@dataclass(frozen=True)
class Text:
    value: str

    def text(self) -> str:
        return self.value


TWO_THREADS = Mode(resolve_target("x86-64-v3"), 2)


@dataclass(frozen=True)
class FakeTask:
    """As much of a task as a builder looks at."""

    workload: Text = Text("conv")
    mode: Mode = TWO_THREADS

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.workload.value, *self.mode.key)


@pytest.fixture(scope="module")
def builder() -> Iterator[ProcessBuilder]:
    # importlib import mode names this module after its file: the child finds `pretend` by pickle.
    pool = ProcessBuilder(workers=1, limit_seconds=3.0, compile_candidate=pretend)
    yield pool
    pool.close()


def _schedules(*names: str) -> list[Schedule]:
    return [Schedule.of(name, n=number) for number, name in enumerate(names)]


def test_each_failure_is_its_own(builder: ProcessBuilder) -> None:
    names = ("good", "refused", "crashes", "bug", "hangs", "fine")
    schedules = _schedules(*names)
    ticket = builder.submit(FakeTask(), schedules)  # type: ignore[arg-type]
    results = ticket.results()
    assert ticket.done()
    assert [r.schedule for r in results] == schedules
    assert [r.status for r in results] == [
        Status.OK,
        Status.BUILD_ERROR,
        Status.BUILD_ERROR,
        Status.BUILD_ERROR,
        Status.BUILD_TIMEOUT,
        Status.OK,
    ]
    assert "tile does not divide" in results[1].error
    assert "IndexError" in results[3].error
    assert (
        results[0].spec == {"name": "conv"}
        and str(TWO_THREADS.to_json()).encode() in results[0].object
    )
    assert results[0].object_digest == "good" and results[0].build_seconds >= 0


def test_processes_start_when_they_are_asked_to_and_end_with_the_builder() -> None:
    """They load the compiler while the caller plans; without anything to build no process
    starts."""
    before = set(multiprocessing.active_children())
    pool = ProcessBuilder(workers=2, compile_candidate=pretend)
    assert set(multiprocessing.active_children()) == before
    pool.start()
    started = set(multiprocessing.active_children()) - before
    pool.close()
    assert len(started) == 2
    assert not started & set(multiprocessing.active_children())


def test_what_was_built_is_not_built_again(builder: ProcessBuilder) -> None:
    schedules = _schedules("again", "refused")
    first = builder.submit(FakeTask(), schedules).results()  # type: ignore[arg-type]
    second = builder.submit(FakeTask(), schedules).results()  # type: ignore[arg-type]
    assert first == second
    other = FakeTask(mode=replace(TWO_THREADS, threads=1))
    third = builder.submit(other, schedules).results()  # type: ignore[arg-type]
    assert third[0].object != first[0].object


def test_steps_are_timed_once_for_each_build() -> None:
    timings = Timings()
    pool = ProcessBuilder(workers=1, compile_candidate=pretend, timings=timings)
    try:
        schedules = _schedules("one", "refused", "two")
        for _ in range(2):
            pool.submit(FakeTask(), schedules).results()  # type: ignore[arg-type]
    finally:
        pool.close()
    assert timings.stages == (StageTime("lower", 0.5, 2), StageTime("codegen", 4.0, 2))


def test_a_batch_can_be_given_up(builder: ProcessBuilder) -> None:
    ticket = builder.submit(FakeTask(), _schedules("hangs", "late"))  # type: ignore[arg-type]
    ticket.cancel()
    assert [r.status for r in ticket.results()] == [Status.CANCELLED] * 2
    (after,) = builder.submit(FakeTask(), _schedules("next")).results()  # type: ignore[arg-type]
    assert after.status is Status.OK


def test_what_is_not_built_when_the_builder_closes_is_given_up() -> None:
    pool = ProcessBuilder(workers=1, compile_candidate=pretend)
    first = pool.submit(FakeTask(), _schedules("one"))  # type: ignore[arg-type]
    first.results()
    ticket = pool.submit(FakeTask(), _schedules("hangs", "late"))  # type: ignore[arg-type]
    pool.close()
    assert ticket.done()
    assert [built.status for built in ticket.results()] == [Status.CANCELLED] * 2
    later = pool.submit(FakeTask(), _schedules("later"))  # type: ignore[arg-type]
    assert [built.status for built in later.results()] == [Status.CANCELLED]
    assert [built.status for built in first.results()] == [Status.OK]


def test_processes_end_before_their_locks_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that still starts would find no lock, and write a traceback."""
    left: list[int] = []
    close = WorkerManager.close_channels

    def closing(manager: WorkerManager) -> None:
        left.append(len(manager.workers))
        close(manager)

    monkeypatch.setattr(WorkerManager, "close_channels", closing)
    builder = ProcessBuilder(workers=2, compile_candidate=pretend)
    builder.start()
    builder.close()
    assert left == [0]


def test_a_broken_pool_costs_no_candidate(builder: ProcessBuilder) -> None:
    """Pebble gives up a pool whose process died before it reported its task."""
    ticket = builder.submit(FakeTask(), _schedules("one", "two"))  # type: ignore[arg-type]
    broken = builder._pool
    broken._pool_manager.handle_broken_pool(BrokenProcessPool("All workers expired"))
    assert [built.status for built in ticket.results()] == [Status.OK] * 2
    (after,) = builder.submit(FakeTask(), _schedules("next")).results()  # type: ignore[arg-type]
    assert after.status is Status.OK
    assert builder._pool is not broken


def test_a_broken_pool_leaves_no_process_behind() -> None:
    """One that still starts would look for semaphores that are gone, and print a traceback."""
    before = set(multiprocessing.active_children())
    pool = ProcessBuilder(workers=2, compile_candidate=pretend)
    try:
        pool.start()
        started = set(multiprocessing.active_children()) - before
        pool._pool._pool_manager.handle_broken_pool(BrokenProcessPool("All workers expired"))
        (built,) = pool.submit(FakeTask(), _schedules("one")).results()  # type: ignore[arg-type]
        assert built.status is Status.OK
        assert not started & set(multiprocessing.active_children())
    finally:
        pool.close()


def test_a_candidate_that_breaks_every_pool_is_refused(
    builder: ProcessBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = ProcessPool.schedule

    def breaks(pool: ProcessPool, *arguments: object, **options: object) -> ProcessFuture:
        future = schedule(pool, *arguments, **options)
        pool._pool_manager.handle_broken_pool(BrokenProcessPool("All workers expired"))
        return future

    monkeypatch.setattr(ProcessPool, "schedule", breaks)
    (built,) = builder.submit(FakeTask(), _schedules("hangs")).results()  # type: ignore[arg-type]
    assert built.status is Status.BUILD_ERROR
    assert "process died" in built.error


def test_ctrl_c_in_the_terminal_harms_no_candidate() -> None:
    """It reaches the whole process group, including a builder that still imports."""
    builder = ProcessBuilder(workers=2, compile_candidate=pretend)
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.wait(0.01):
            for child in multiprocessing.active_children():
                if child.pid is not None:
                    os.kill(child.pid, signal.SIGINT)

    pressing = threading.Thread(target=interrupt)
    pressing.start()
    try:
        ticket = builder.submit(FakeTask(), _schedules("a", "b", "c"))  # type: ignore[arg-type]
        assert [built.status for built in ticket.results()] == [Status.OK] * 3
    finally:
        stop.set()
        pressing.join()
        builder.close()


KILLED = """
import os, signal, sys, time
from pathlib import Path
from tests.unit.tuner.compilers import patient
from tests.unit.tuner.test_builder import FakeTask, Text, _schedules
from tilewright.tuner.measure.builder import ProcessBuilder

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    builder = ProcessBuilder(workers=1, compile_candidate=patient)
    ticket = builder.submit(FakeTask(Text(str(folder))), _schedules("a"))
    while not list(folder.iterdir()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_builders_end_with_a_tuner_that_is_killed(tmp_path: Path) -> None:
    """They are in the middle of a build, and would go on until its end: this one never ends."""
    notes, script = tmp_path / "notes", tmp_path / "killed.py"
    notes.mkdir()
    script.write_text(KILLED)
    try:
        killed = subprocess.run(  # the builder has its output: it is read until that one ends, too
            [sys.executable, script, notes],
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            stdout=subprocess.PIPE,
            timeout=100,
            check=False,
        )
    finally:
        (notes / "go").touch()
    assert killed.returncode == -signal.SIGKILL


def test_a_builder_loads_numpy_after_it_is_configured() -> None:
    """NumPy reads the number of its threads when it is imported."""
    code = (
        "import sys; from tilewright.tuner.measure import build_child, builder; "
        "assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
