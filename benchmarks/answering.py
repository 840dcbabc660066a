"""Line protocol of an engine in a separate process: JSON requests in, JSON answers out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def serve(answer: Answer, requests: TextIO, answers: TextIO) -> None:
    """Answer one JSON request per line until `requests` ends.

    If `answer` raises an exception, the answer is an object with the text of the exception under
    `error`.
    """
    for line in requests:
        try:
            found = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the race goes on without this engine, and says why
            found = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def serve_parent(answer: Answer) -> None:
    """Answer requests from the standard input on the standard output, until the input ends.

    Anything else that Python or native libraries print goes to the standard error, so that it
    cannot corrupt the answers.
    """
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(answer, sys.stdin, channel)
