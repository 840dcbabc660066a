"""The child process that runs candidates: `python -m tilewright.tuner.measure.sandbox_main`.

It reads one JSON job a line from standard input and answers with JSON events, one a line, on what
was its standard output. A candidate that crashes takes this process down and nothing else; the last
event says which one it was. Only the standard library, NumPy and compiler.runtime are imported.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from typing import Any, TextIO

import numpy as np

from tilewright.compiler.runtime.bench import reference_seconds
from tilewright.tuner.measure import linux
from tilewright.tuner.measure.batch_session import BatchSession
from tilewright.tuner.measure.confinement import Confinement
from tilewright.tuner.measure.guards import put_on
from tilewright.tuner.measure.wire import InputSpec, array_to_bytes


def _private_channel() -> TextIO:
    """Keep the real standard output to ourselves: what a kernel prints goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return channel


def _die_with_parent() -> None:
    """Linux: be killed when the parent is. Elsewhere end of input does it, between kernels."""
    if sys.platform == "linux":
        linux.die_with_parent(signal.SIGKILL)


def _import_all() -> None:
    """Have everything imported that work imports as it goes: another user may not find it."""
    saved = array_to_bytes(InputSpec((1,), "float32", 0).draw())
    np.load(io.BytesIO(saved), allow_pickle=False)
    reference_seconds(1)


def main() -> None:
    """Serve jobs until standard input ends. The first line says how this process is confined."""
    channel = _private_channel()
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def emit(**event: Any) -> None:
        channel.write(json.dumps(event) + "\n")

    session = BatchSession(emit)
    confinement = Confinement.from_json(json.loads(sys.stdin.readline()))
    _import_all()
    emit(event="ready", guards=put_on(confinement))
    for line in sys.stdin:
        job = json.loads(line)
        session.run(job)


if __name__ == "__main__":
    main()
