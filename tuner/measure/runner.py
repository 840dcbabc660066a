"""The runner interface: measures batches for the tune loop, locally or over a network.

A runner takes many batches and returns results as they finish. It keeps each result until
`acknowledge`, which the tune loop calls after it has stored the trials. If the process is killed
before that, the next process gets the result again through `resume`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tilewright.tuner.protocol.batches import MeasureRequest, MeasureResult


class Runner(Protocol):
    """Measures batches of candidates. Methods are called from one thread."""

    @property
    def capacity(self) -> int:
        """Return the number of requests in flight beyond which further requests only wait."""

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        """Queue a request. `blobs` maps the digests in the request to bytes.

        A request id that was submitted before is not queued again: `poll` returns its result again.
        """

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        """Return results that finished since the last call; wait up to the timeout for one."""

    def acknowledge(self, request_ids: Sequence[str]) -> None:
        """Report that the results of these requests are stored; the runner may delete them."""

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        """Stop these requests (None: all) as soon as possible.

        They still yield results: candidates that were not measured have the status CANCELLED.
        """

    def resume(self) -> list[MeasureRequest]:
        """Return the unacknowledged requests of this job from an earlier process.

        `poll` returns their results as if this process had submitted them.
        """

    def close(self) -> None:
        """Release processes and files. Results that were not polled are lost to this process."""
