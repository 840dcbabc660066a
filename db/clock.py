"""The clock is an argument. Times in the database are seconds since the epoch, UTC, float64."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]

system_clock: Clock = time.time
