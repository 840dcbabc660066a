"""Functions in a bounded child: its limits, and the faults that end it."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.processes import ended
from tests.waiting import until
from tilewright.compiler.errors import (
    CompilerError,
    InvalidModelError,
    UnsupportedOperatorError,
    enough_memory_for,
)
from tilewright.compiler.loops.layout import Layout
from tilewright.compiler.process import bounded
from tilewright.compiler.process.bounded import BoundedChild, Limits, NoAnswer, Reason
from tilewright.tuner.cancel import CancelToken

LIMITS = Limits(256 << 20, 60.0)

AT_ONCE = 1.0
"""Seconds within which a child ends if its answer is no longer wanted."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")


def here() -> tuple[int, int, str]:
    return os.getpid(), os.nice(0), os.environ["OPENBLAS_NUM_THREADS"]


def doubled(array: np.ndarray) -> dict[str, np.ndarray]:
    assert not array.flags.writeable
    twice = array * 2
    return {"twice": twice, "again": twice, "empty": twice[:0], "row": twice[0]}


def length(array: np.ndarray) -> int:
    return len(array)


def blocked() -> Layout:
    return Layout.parse("0 1/16 2 3 1%16")


def summed(count: int, ask: Callable[..., int]) -> int:
    return sum(ask(number) for number in range(count))


def recovering(ask: Callable[..., int]) -> str:
    try:
        ask(1)
    except InvalidModelError as error:
        return f"as told: {error}"
    return ""


def endless() -> None:
    while True:
        time.sleep(0.01)


def busy() -> None:
    while True:
        pass


def held(gib: int) -> int:
    return sum(bytearray(gib << 30))


def refused(kind: str) -> None:
    match kind:
        case "model":
            raise InvalidModelError("node 'a' is wrong")
        case "operator":
            raise UnsupportedOperatorError("a", "Loop", "", 17, "the data decide", waits_for=("b",))
        case "memory":
            with enough_memory_for("to compile the model"):
                raise MemoryError
        case "bug":
            raise KeyError("k0_out.room")
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)


def named(path: str, then: Callable[[], None]) -> None:
    """Write the id of this process to a file, then call a function."""
    Path(path).write_text(str(os.getpid()))
    then()


def _until_written(path: Path) -> int:
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def test_a_function_runs_in_a_nice_process_of_its_own() -> None:
    found = bounded.run(here, (), LIMITS)
    assert not isinstance(found, NoAnswer)
    pid, niceness, threads = found
    assert pid != os.getpid()
    assert niceness == min(os.nice(0) + bounded.NICENESS, 19)
    assert threads == os.environ.get("OPENBLAS_NUM_THREADS", "1")
    assert ended(pid)


def test_arrays_come_back_as_they_are_and_may_be_written_to() -> None:
    made = np.arange(600_000, dtype=np.float32).reshape(2, -1)
    found = bounded.run(doubled, (made,), LIMITS)
    assert not isinstance(found, NoAnswer)
    np.testing.assert_array_equal(found["twice"], made * 2)
    np.testing.assert_array_equal(found["row"], made[0] * 2)
    assert found["again"] is found["twice"]
    assert found["empty"].shape == (0, 300_000)
    assert found["twice"].ctypes.data % 16 == 0
    np.testing.assert_array_equal(made[0, :3], [0, 1, 2])
    found["twice"] += 1
    assert found["twice"][0, 0] == 1


def test_a_layout_is_found_in_the_process_that_it_comes_to() -> None:
    """The hash of None, which a factor may have for its last part, differs from process to
    process."""
    assert bounded.run(blocked, (), LIMITS) in {blocked()}


def test_time_is_limited() -> None:
    begun = time.monotonic()
    found = bounded.run(endless, (), Limits(LIMITS.memory_bytes, 0.5))
    assert found == NoAnswer(Reason.TIME, "takes more than 0.5 s")
    assert time.monotonic() - begun < 30


def test_memory_is_limited() -> None:
    assert held(0) == 0
    found = bounded.run(held, (2,), LIMITS)
    assert found == NoAnswer(Reason.MEMORY, "takes more memory than it may")
    assert bounded.run(held, (0,), LIMITS) == 0


def test_arrays_of_a_question_are_not_memory_that_the_child_takes() -> None:
    assert bounded.run(length, (np.zeros(1 << 30, np.uint8),), LIMITS) == 1 << 30


def test_a_child_asks_back_and_does_not_pay_for_the_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of the limit goes on by more than the limit during each answer."""
    answered: list[int] = []

    def clock() -> float:
        return time.monotonic() + 2 * LIMITS.seconds * len(answered)

    def answers(number: int) -> int:
        answered.append(number)
        return number * number

    monkeypatch.setattr(bounded, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(bounded, "LOOK_SECONDS", 0.0)  # looks at the clock before each answer
    assert bounded.run(summed, (5,), LIMITS, answers=answers) == 30


def test_errors_of_answers_are_raised_in_the_child_or_here() -> None:
    def refuse(number: int) -> int:
        raise InvalidModelError("no such number")

    def fail(number: int) -> int:
        raise OSError("the disk is full")

    assert bounded.run(recovering, (), LIMITS, answers=refuse) == "as told: no such number"
    with pytest.raises(OSError, match="the disk is full"):
        bounded.run(recovering, (), LIMITS, answers=fail)


@pytest.mark.parametrize("function", [endless, busy])
def test_a_token_ends_the_child_at_once(function: Callable[[], None], tmp_path: Path) -> None:
    token, told = CancelToken(), []
    child = BoundedChild(LIMITS)
    file = tmp_path / "pid"

    def ask() -> None:
        told.append((child.ask(named, (str(file), function), token), time.monotonic()))

    thread = threading.Thread(target=ask)
    thread.start()
    pid = _until_written(file)
    begun = time.monotonic()
    token.cancel()
    thread.join()
    ((found, ends),) = told
    assert found == NoAnswer(Reason.ENDED, "is not wanted any more")
    assert ends - begun < AT_ONCE
    assert ended(pid)
    child.close()


def test_who_stops_a_child_ends_it_for_good() -> None:
    child = BoundedChild(LIMITS)
    told: list[object] = []
    thread = threading.Thread(target=lambda: told.append(child.ask(endless, ())))
    thread.start()
    until(lambda: child._child is not None)
    child.stop()
    thread.join()
    told.append(child.ask(here, ()))
    child.close()
    assert [each.reason for each in told if isinstance(each, NoAnswer)] == [Reason.ENDED] * 2


def test_a_child_answers_many_questions_and_is_replaced_when_it_dies() -> None:
    child = BoundedChild(LIMITS)
    first, second = child.ask(here, ()), child.ask(here, ())
    assert first == second
    died = child.ask(refused, ("crash",))
    assert died == NoAnswer(Reason.CRASHED, "its process was ended by SIGSEGV")
    third = child.ask(here, ())
    assert not isinstance(third, NoAnswer)
    assert third != first
    child.stop()
    child.close()


def test_errors_of_users_are_raised_again() -> None:
    with pytest.raises(InvalidModelError, match=r"^node 'a' is wrong$"):
        bounded.run(refused, ("model",), LIMITS)
    said = r"^node 'a': operator Loop \(ai.onnx, opset 17\) is not supported: the data decide$"
    with pytest.raises(CompilerError, match=said):
        bounded.run(refused, ("operator",), LIMITS)


def test_no_memory_for_a_model_is_the_childs_limit() -> None:
    found = bounded.run(refused, ("memory",), LIMITS)
    assert found == NoAnswer(Reason.MEMORY, "takes more memory than it may")


def test_a_bug_leaves_its_traceback() -> None:
    found = bounded.run(refused, ("bug",), LIMITS)
    assert isinstance(found, NoAnswer)
    assert (found.reason, found.text) == (
        Reason.CRASHED,
        "KeyError: 'k0_out.room'",
    )
    assert "in refused" in found.words


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    """Also when that is killed, and the child is in the middle of its work."""
    told = tmp_path / "pid"
    code = (
        "import sys; sys.path[:] = sys.argv[2:]\n"
        "from tilewright.compiler.process import bounded\n"
        f"from {__name__} import LIMITS, endless, named\n"
        "bounded.run(named, (sys.argv[1], endless), LIMITS)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(told), *sys.path])
    child = _until_written(told)
    assert not ended(child)
    parent.kill()
    parent.wait()
    until(lambda: ended(child), AT_ONCE)


def test_a_child_ends_with_a_parent_that_dies_while_it_loads(tmp_path: Path) -> None:
    """To load the compiler takes seconds on a busy machine."""
    told = tmp_path / "pid"
    slow = f"import os, time\nopen({str(told)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    (tmp_path / "slow.py").write_text(slow)
    code = (
        "import sys, time; sys.path[:] = sys.argv[1:]\n"
        "from tilewright.compiler.process.child import ChildProcess\n"
        "child = ChildProcess('slow', 'serve', with_parent=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), *sys.path])
    child = _until_written(told)
    parent.kill()
    parent.wait()
    until(lambda: ended(child), AT_ONCE)


def test_limits_of_the_parent_hold() -> None:
    """A child cannot have higher limits than its parent, and starts nevertheless."""
    code = (
        "import resource, sys; sys.path[:] = sys.argv[1:]\n"
        "from tilewright.compiler.process import bounded\n"
        f"from {__name__} import here\n"
        "for kind, most in ((resource.RLIMIT_DATA, 8 << 30), (resource.RLIMIT_CPU, 1000)):\n"
        "    resource.setrlimit(kind, (most, most))\n"
        "print(len(bounded.run(here, (), bounded.Limits(64 << 30, 1e6))))\n"
    )
    asked = [sys.executable, "-c", code, *sys.path]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == "3\n"


def test_it_is_imported_where_limits_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has neither the module nor the signals."""
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.delitem(sys.modules, "tilewright.compiler.process.bounded")
    importlib.import_module("tilewright.compiler.process.bounded")
