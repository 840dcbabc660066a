"""An engine in a process of its own: requests come in as lines of JSON, answers go out as such."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

Answer = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def serve(answer: Answer, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until the input ends."""
    for line in requests:
        try:
            found = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the race goes on without this engine, and says why
            found = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


def serve_parent(answer: Answer) -> None:
    """Answer what comes over the standard input.

    What libraries print, in Python or below, must not land among the answers: it goes to the
    standard error.
    """
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(answer, sys.stdin, channel)
