"""The interface of runners, which measure batches of candidates, locally or over a network.

A runner accepts many requests and returns results in the order in which they finish. It keeps each
result until the tuning loop calls `acknowledge`, after it has stored the measurements. If the
tuner's process is killed before this call, a new process calls `resume` and gets the result again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tilewright.tuner.protocol.batches import MeasureRequest, MeasureResult


class Runner(Protocol):
    """Measures batches of candidates. All methods are called from one thread."""

    @property
    def capacity(self) -> int:
        """Return how many requests the runner can process at a time; further ones wait."""

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        """Queue a request to measure candidates.

        `blobs` has the binary data that the request names, by digest. A request whose id was
        submitted before is not measured again: `poll` returns the result of the earlier one once
        more.
        """

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        """Return the results that finished since the last call.

        If there are none, wait for the first one, up to the timeout; then the list may be empty.
        """

    def acknowledge(self, request_ids: Sequence[str]) -> None:
        """Allow the runner to delete the results of these requests, whose trials are stored."""

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        """Stop these requests as soon as possible; None stops all requests.

        `poll` still returns their results, in which candidates that were not measured have the
        status CANCELLED.
        """

    def resume(self) -> list[MeasureRequest]:
        """Take over the requests of an earlier process of this job, and return them.

        Requests whose results were acknowledged as stored are left out. `poll` returns the results
        of the others as if this process had submitted them.
        """

    def close(self) -> None:
        """Release processes and files. Results that `poll` has not returned are lost."""
