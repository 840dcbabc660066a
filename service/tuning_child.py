"""A command that ends when the process ends that started it, even if that was killed.

python -m tilewright.service.tuning_child PARENT FOLDER tune model.onnx ...

`PARENT` is the process, and `FOLDER` what it cannot remove any more then.
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
    """Run the command and exit with its status."""
    parent, folder, *words = arguments
    watch = threading.Thread(target=_watch, args=(int(parent), Path(folder)), daemon=True)
    watch.start()
    from tilewright.service.cli import main as tilewright  # takes long enough for the parent to end

    tilewright(words)


def _watch(parent: int, folder: Path) -> None:
    """Ends this process when it is no child of that process."""
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(sys.argv[1:])
