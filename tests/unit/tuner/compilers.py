"""Compilers that end as the algorithm's name requests. A separate module, so that processes can
import it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.compiler.errors import ScheduleError


def pretend(text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]) -> Mapping[str, Any]:
    """A compiler whose fate hangs on the algorithm's name."""
    match schedule["algorithm"]:
        case "refused":
            raise ScheduleError("tile does not divide")
        case "crashes":
            os._exit(9)
        case "hangs":
            time.sleep(60)
        case "bug":
            raise IndexError("off by one")
    code = f"{text} {schedule} {mode} {os.getpid()} {time.time_ns()}".encode()
    digest, stages = str(schedule["algorithm"]), {"lower": 0.25, "codegen": 2.0}
    return {"object": code, "spec": {"name": text}, "digest": digest, "stages": stages}


def patient(text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]) -> Mapping[str, Any]:
    """A compiler that leaves a note in the folder `text`, and waits for the file `go` in it."""
    folder = Path(text)
    (folder / f"by-{os.getppid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return {"object": b"code", "spec": {}, "digest": str(schedule["algorithm"])}
