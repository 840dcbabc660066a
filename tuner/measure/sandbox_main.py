"""The child process that runs candidates: `python -m tuner.measure.sandbox_main`.

It reads one JSON job a line from standard input and answers with JSON events, one a line, on what
was its standard output. A candidate that crashes takes this process down and nothing else; the last
event says which one it was. Only the standard library, NumPy and compiler.runtime are imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any, TextIO

from tuner.measure.batch_session import Session


def _private_channel() -> TextIO:
    """Keep the real standard output to ourselves: what a kernel prints goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return channel


def _die_with_parent() -> None:
    """Linux: be killed when the parent is. Elsewhere end of input does it, between kernels."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def _limit_resources() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> None:
    """Serve jobs until standard input ends."""
    channel = _private_channel()
    _die_with_parent()
    _limit_resources()

    def emit(**event: Any) -> None:
        channel.write(json.dumps(event) + "\n")

    session = Session(emit)
    emit(event="ready", pid=os.getpid())
    for line in sys.stdin:
        job = json.loads(line)
        session.run(job)


if __name__ == "__main__":
    main()
