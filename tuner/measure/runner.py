"""Runners of measurements: the protocol that the tune loop uses, locally or over a network.

A runner takes many batches and yields results as they finish. A result stays the runner's until
`acknowledge`: the tune loop stores the trials first, so a process that is killed in between finds
the result again through `resume`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from tilewright.tuner.protocol.batches import MeasureRequest, MeasureResult


class Runner(Protocol):
    """Measures batches of candidates. Methods are called from one thread."""

    @property
    def capacity(self) -> int:
        """How many requests may be in flight before more of them only wait."""

    def submit(self, request: MeasureRequest, blobs: Mapping[str, bytes]) -> None:
        """Queue a request. `blobs` holds, by digest, the bytes that the request names.

        A request id that was submitted before is not queued twice: its result is polled again.
        """

    def poll(self, timeout_seconds: float) -> list[MeasureResult]:
        """Results that finished since, waiting up to the timeout for a first one."""

    def acknowledge(self, request_ids: Sequence[str]) -> None:
        """The results of these requests are stored; the runner may forget them."""

    def cancel(self, request_ids: Sequence[str] | None = None) -> None:
        """Stop these requests (None: all) as soon as possible.

        They still yield results: candidates that were not measured have the status CANCELLED.
        """

    def resume(self) -> list[MeasureRequest]:
        """Requests of this job from an earlier process that were not acknowledged. Their results
        are polled as if this process had submitted them."""

    def close(self) -> None:
        """Release processes and files; results that were not polled are lost to this process."""
