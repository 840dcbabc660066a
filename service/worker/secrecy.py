"""Hides the worker's token from other processes of the same machine, including candidates."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from tilewright.tuner.measure.harness.driver import Log

_PR_SET_DUMPABLE = 4


def hide_secrets(token: str, log: Log) -> None:
    """Make this process's memory and environment readable by root only, and hide the token.

    The token is blanked in the command line. On systems other than Linux, nothing happens. A
    failure is logged.
    """
    if sys.platform != "linux":
        return
    try:
        hide_process()
        if not hide_argument(token):
            log("the token can be read in the process list: give it with --token-file")
    except (OSError, ValueError, IndexError) as error:
        log(f"the token may be read by other processes of this user: {error}")


def hide_process() -> None:
    """Allow only root to read this process's memory, environment and files in /proc.

    Raises:
        OSError: if the system denies it.
    """
    arguments = (ctypes.c_ulong(0) for _ in range(4))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, *arguments) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def hide_argument(secret: str) -> bool:
    """Blank a secret in this process's command line, which every user may read.

    Return whether no trace of it is left.
    """
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    wanted = secret.encode()
    while start and wanted:
        place = ctypes.string_at(start, end - start).find(wanted)
        if place < 0:
            break
        ctypes.memset(start + place, ord("*"), len(wanted))
    return wanted not in Path("/proc/self/cmdline").read_bytes()
