"""The trace of a profiled session, in the format of Chrome and Perfetto.

The trace has one event for the creation of the session, and one per run. `tilewright show time`
reports the time of each kernel in a run.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_EVENTS = 1_000_000
"""Maximum number of events in a profile, as in ONNX Runtime; later events are not recorded."""


class SessionTrace:
    """A recorder of a session's events; several threads may record at once.

    Args:
        prefix: the start of the trace file's name, before the date.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self.start_ns = time.perf_counter_ns()

    @contextmanager
    def event(self, name: str, **args: str) -> Iterator[None]:
        """Context manager that records the duration of its block as an event.

        Args:
            name: the name of the event.
            args: details of the event, by name.
        """
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            ended = time.perf_counter_ns()
            noted = {
                "cat": "Session",
                "pid": os.getpid(),
                "tid": threading.get_native_id(),
                "dur": (ended - began) // 1000,
                "ts": (began - self.start_ns) // 1000,
                "ph": "X",
                "name": name,
                "args": args,
            }
            with self._lock:
                if len(self._events) < MOST_EVENTS:
                    self._events.append(noted)

    def write(self) -> str:
        """Write `PREFIX_DATE_TIME.json`, with one event per line, and return its name.

        Raises OSError if the file cannot be written.
        """
        with self._lock:
            lines = [json.dumps(event) for event in self._events]
        base = f"{self._prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        for number in range(1 << 16):
            path = Path(f"{base}_{number}.json" if number else f"{base}.json")
            try:
                with path.open("x") as file:
                    file.write("[\n" + ",\n".join(lines) + "\n]\n")
            except FileExistsError:  # another session ended within this second
                continue
            return str(path)
        raise FileExistsError(f"{base}.json, and all others")
