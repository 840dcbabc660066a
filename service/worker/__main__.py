"""Runs a measurement worker: `python -m tilewright.service.worker`."""

from __future__ import annotations

from tilewright.service.worker.process import main

if __name__ == "__main__":
    raise SystemExit(main())
