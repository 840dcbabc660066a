"""Keeps the token from other processes of the same machine, candidates among them."""

from __future__ import annotations

import sys

from tilewright.service.worker.held_lease import Log
from tilewright.tuner.measure import linux


def hide_secrets(token: str, log: Log) -> None:
    """Close this process's memory and environment to all but root, blank its command line."""
    if sys.platform != "linux":
        return
    try:
        linux.hide()
        if not linux.hide_argument(token):
            log("the token can be read in the process list: give it with --token-file")
    except (OSError, ValueError, IndexError) as error:
        log(f"the token may be read by other processes of this user: {error}")
