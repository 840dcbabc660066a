"""How often Python's garbage collector runs in the processes that are ours."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000
"""Objects that are made before the collector looks for cycles among them. A compiler makes hundreds
of thousands of small values that hold no cycle: at Python's 700, a tenth of its time went there."""


def relax_collector() -> None:
    """Collect rarely. For a process of our own: a library leaves this to who imports it."""
    gc.set_threshold(YOUNG_OBJECTS)
