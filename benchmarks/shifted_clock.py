"""Runs a Python module in a process with a wrong clock.

`python -m benchmarks.shifted_clock SECONDS MODULE ARGUMENT...` adds SECONDS to `time.time()`.
"""

from __future__ import annotations

import runpy
import sys
import time


def main() -> None:
    """Command line: shift `time.time` before other modules are imported, then run the module."""
    seconds, sys.argv = float(sys.argv[1]), sys.argv[2:]
    right = time.time
    time.time = lambda: right() + seconds
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
