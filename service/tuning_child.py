"""Runs a command in a process that ends together with its parent, even if the parent is killed.

    python -m tilewright.service.tuning_child PARENT FOLDER tune model.onnx ...

`PARENT` is the id of the parent process. If the parent ends first, this process removes `FOLDER`,
which a killed parent cannot do itself.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> None:
    """Run a command, and exit with its status.

    `arguments` are PARENT, FOLDER and the command's words. If the parent process ends first, remove
    FOLDER and end this process.
    """
    parent, folder, *words = arguments
    watch = threading.Thread(target=_watch, args=(int(parent), Path(folder)), daemon=True)
    watch.start()
    from tilewright.service.cli import main as tilewright  # slow: the parent may end meanwhile

    tilewright(words)


def _watch(parent: int, folder: Path) -> None:
    """Wait until the parent process has ended. Then remove the folder and end this process."""
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
