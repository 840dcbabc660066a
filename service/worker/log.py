"""Writes the log of a worker to standard error, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from tilewright.service.show.text import one_sentence


class WorkerLog(Protocol):
    """A function that writes a message to the log.

    The level is one of Python's `logging`, such as `logging.INFO`.
    """

    def __call__(self, text: str, level: int = logging.WARNING, /) -> None: ...


@dataclass(frozen=True, slots=True)
class ErrorLog:
    """Writes messages to standard error, as text or as lines of JSON.

    A line of JSON has the same keys as the service's log: `event`, `level`, `timestamp`.

    Attributes:
        least: the lowest level that is written.
        as_json: whether to write JSON.
    """

    least: int = logging.INFO
    as_json: bool = False

    def __call__(self, text: str, level: int = logging.WARNING, /) -> None:
        if level < self.least:
            return
        line = f"{time.strftime('%H:%M:%S')} {one_sentence(text)}"
        if self.as_json:
            at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            name = logging.getLevelName(level).lower()
            line = json.dumps({"event": text, "level": name, "timestamp": at})
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
