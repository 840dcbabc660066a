"""Runs a command that ends with its parent process, even if the parent is killed.

python -m tilewright.service.tuning_child PARENT FOLDER tune model.onnx ...

`PARENT` is the parent's process id. The child removes `FOLDER` for a parent that was killed.
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
    """Run the command, and exit with its status.

    If the parent ends before, remove FOLDER and end.
    """
    parent, folder, *words = arguments
    watch = threading.Thread(target=_watch, args=(int(parent), Path(folder)), daemon=True)
    watch.start()
    from tilewright.service.cli import main as tilewright  # slow: the parent may end meanwhile

    tilewright(words)


def _watch(parent: int, folder: Path) -> None:
    """Remove the folder and end this process as soon as the parent has ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
