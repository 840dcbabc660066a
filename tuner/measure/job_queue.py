"""A queue of measurement requests that groups requests to be measured together.

The rounds of a request are spaced in time, so that a disturbance of the device does not affect all
of them. In the gaps, the device measures other requests of the group.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.messages import Request
from tilewright.tuner.protocol.runs import RunRequest

MOST_TOGETHER = 4
"""Limit of the requests that the sandbox processes together. The result of the first request waits
for the result of the last."""

Item = TypeVar("Item")


def go_together(requests: Sequence[Request]) -> bool:
    """Whether the sandbox may process these requests together.

    Several requests may be processed together if they only search for fast candidates. They must
    have the same number of threads, and no trials in common. In the pause between two rounds of
    samples of one request, the device measures another request. Final comparisons of candidates and
    runs of whole programs are processed alone, because they have no such pauses.
    """
    if any(isinstance(request, RunRequest) for request in requests):
        return len(requests) == 1
    measured = [request for request in requests if isinstance(request, MeasureRequest)]
    names = [c.trial_id for request in measured for c in request.candidates]
    return (
        len({request.key.threads for request in measured}) == 1
        and len(set(names)) == len(names)
        and not any(request.incumbent for request in measured)
    )


class JobQueue(Generic[Item]):
    """A thread-safe queue of items that contain requests.

    `take` removes a group of items whose requests may be processed together. `request_of` returns
    the request of an item.
    """

    def __init__(self, request_of: Callable[[Item], Request]) -> None:
        self._request_of = request_of
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: Item) -> bool:
        """Append an item and return True. If the queue is closed, return False instead."""
        with self._changed:
            if not self._closed:
                self._items.append(item)
                self._changed.notify()
            return not self._closed

    def close(self) -> list[Item]:
        """Close the queue: end all waiting calls of `take`, and return the remaining items."""
        with self._changed:
            self._closed = True
            waiting = [*self._items]
            self._items.clear()
            self._changed.notify_all()
            return waiting

    def take(self, timeout_seconds: float | None = None, most: int = MOST_TOGETHER) -> list[Item]:
        """Remove and return the first items whose requests may be processed together.

        If the queue is empty, wait for an item. Return an empty list after the timeout, or if the
        queue is closed.

        Args:
            timeout_seconds: the longest wait; None for no limit.
            most: the largest number of items to return.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed, timeout_seconds)
            if self._closed or not self._items:
                return []
            taken = [self._items.popleft()]
            while self._items and len(taken) < most:
                wanted = [self._request_of(item) for item in (*taken, self._items[0])]
                if not go_together(wanted):
                    break
                taken.append(self._items.popleft())
            return taken
