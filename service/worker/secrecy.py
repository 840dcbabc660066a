"""Hides the worker's token from other processes of the same machine, such as candidates."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from tilewright.tuner.measure.harness.driver import Log

_PR_SET_DUMPABLE = 4


def hide_secrets(token: str, log: Log) -> None:
    """Prevent other users from reading the worker's token in this process.

    Memory and environment become readable by root only, and the token is overwritten in the command
    line. On systems other than Linux, the function does nothing. A failure is logged.

    Args:
        token: the token.
        log: writes messages.
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
        OSError: if the operating system denies it.
    """
    arguments = (ctypes.c_ulong(0) for _ in range(4))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, *arguments) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def hide_argument(secret: str) -> bool:
    """Overwrite a secret in this process's command line, which every user can read.

    Return whether the command line no longer contains the secret.
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
