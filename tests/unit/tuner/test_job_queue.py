"""The queue before the sandbox: the requests that are measured together."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.waiting import AnnouncingCondition
from tilewright.tuner.measure.job_queue import MOST_TOGETHER, JobQueue
from tilewright.tuner.protocol.batches import Candidate, MeasureRequest
from tilewright.tuner.protocol.measurement import RecordKey
from tilewright.tuner.protocol.messages import Request
from tilewright.tuner.protocol.runs import ProfileWork, RunRequest


def _request(
    name: str, *, trial: str = "", threads: int = 1, incumbent: str = ""
) -> MeasureRequest:
    trial = trial or f"t-{name}"
    return MeasureRequest(
        request_id=name,
        key=RecordKey("w", "t", threads),
        candidates=(Candidate(trial, {"algorithm": "x", "choices": {}}, "d", {}),),
        library_digest="l",
        cases=(),
        tolerance=1e-4,
        incumbent=incumbent,
    )


def _taken(*requests: Request) -> list[list[str]]:
    queue: JobQueue[Request] = JobQueue(lambda request: request)
    for request in requests:
        queue.put(request)
    jobs = []
    while job := queue.take(0.0):
        jobs.append([request.request_id for request in job])
    return jobs


def test_what_waits_is_taken_together_up_to_a_limit() -> None:
    names = [f"r{n}" for n in range(MOST_TOGETHER + 1)]
    assert _taken(*map(_request, names)) == [names[:-1], names[-1:]]


@pytest.mark.parametrize(
    "other",
    [
        _request("b", threads=2),
        _request("b", incumbent="t-b"),
    ],
    ids=["other threads", "finalists"],
)
def test_what_cannot_share_a_job_is_taken_apart_and_in_order(other: MeasureRequest) -> None:
    assert _taken(_request("a"), other, _request("c")) == [["a"], ["b"], ["c"]]


def test_two_measurements_of_one_trial_are_told_apart() -> None:
    assert _taken(_request("a"), _request("b", trial="t-a"), _request("c")) == [["a"], ["b", "c"]]


def _while_take_waits(
    queue: JobQueue[MeasureRequest], act: Callable[[], object]
) -> list[MeasureRequest]:
    """The result of a `take` during which another thread acts on the queue."""
    changed = queue._changed = AnnouncingCondition()
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(queue.take, 30.0)
        assert changed.waits.wait(30.0)
        act()
        return taken.result()


def test_take_waits_for_a_first_item() -> None:
    queue: JobQueue[MeasureRequest] = JobQueue(lambda request: request)
    taken = _while_take_waits(queue, lambda: queue.put(_request("a")))
    assert [r.request_id for r in taken] == ["a"]
    assert queue.take(0.01) == []


def test_a_closed_queue_gives_nothing_and_wakes_who_waits() -> None:
    queue: JobQueue[MeasureRequest] = JobQueue(lambda request: request)
    assert _while_take_waits(queue, queue.close) == []
    queue.put(_request("a"))
    assert queue.take(0.0) == []


def test_a_run_of_whole_programs_goes_alone() -> None:
    runs = [
        RunRequest(name, "job", 1, (), (), ProfileWork(0, 1), {}, 0, 1.0) for name in ("x", "y")
    ]
    taken = _taken(_request("a"), _request("b"), *runs, _request("c"))
    assert taken == [["a", "b"], ["x"], ["y"], ["c"]]
