"""Runners of measurements: the protocol that the tune loop uses, locally or over a network.

A runner takes many batches and yields results as they finish. It keeps each result until
`acknowledge`, before which the tune loop stores the trials. So if the process is killed in between,
the next process gets the result again through `resume`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tilewright.tuner.protocol.batches import MeasureRequest, MeasureResult


class Runner(Protocol):
    """Measures batches of candidates. Methods are called from one thread."""

    @property
    def capacity(self) -> int:
        """Return how many requests may be in flight before further ones only wait."""

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        """Queue a request. `blobs` maps digests to the bytes that the request names.

        A request id that was submitted before is not queued again: `poll` returns its result again.
        """

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        """Return results that finished since the last call; wait up to the timeout for one."""

    def acknowledge(self, request_ids: Sequence[str]) -> None:
        """Report that the results of these requests are stored; the runner may forget them."""

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
