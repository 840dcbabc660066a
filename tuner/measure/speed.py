"""Readings of a device's present speed, relative to its best speed.

The harness times a fixed reference kernel before and after each batch. If this kernel is slower
than usual, the device throttles or is shared, and times measured at that moment are unreliable.
`speed.c` evaluates the readings. Devices use this module, so it imports only the standard library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.runtime.json_form import Between, JsonForm

ARITHMETIC_LIMIT = 1.1
"""Ratio of the present arithmetic time to the best one above which a device counts as disturbed.

Arithmetic needs no memory, and a processor at a constant clock rate repeats it within 1 %.
"""

MEMORY_LIMIT = 1.5
"""Ratio of the present memory access time to the best one above which a device counts as disturbed.

Caches are shared. Other processes that do not affect kernels often make memory access a tenth
slower.
"""

THROTTLED_SECONDS = 30.0
"""Seconds of uninterrupted disturbance after which a device counts as throttled. Repeating a
measurement is then useless."""

MOST_READINGS, BEST_SHARE = 4096, 0.1
"""Number of speed readings that a harness keeps, and the quantile that counts as the best reading.
The minimum is not used, because it may be a single lucky reading."""

_NotNegative = Annotated[float, Between(0.0, math.inf)]


@dataclass(frozen=True, slots=True)
class Speed(JsonValue):
    """The times of one run of the reference kernel, by which a device's present speed is measured.

    One part of the kernel is limited by arithmetic, the other one by memory accesses.

    Attributes:
        arithmetic_seconds, memory_seconds: the time of each part.
        arithmetic_ratio, memory_ratio: these times divided by the best times on the device.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        derived=("disturbed",), derive=lambda speed: (speed.disturbed,)
    )

    arithmetic_seconds: _NotNegative
    memory_seconds: _NotNegative
    arithmetic_ratio: _NotNegative = 1.0
    memory_ratio: _NotNegative = 1.0

    @property
    def disturbed(self) -> bool:
        """Whether the device was too slow at this moment for reliable measurements.

        This is the case if a ratio exceeds its limit, ARITHMETIC_LIMIT or MEMORY_LIMIT.
        """
        return self.arithmetic_ratio > ARITHMETIC_LIMIT or self.memory_ratio > MEMORY_LIMIT

    @property
    def excess(self) -> float:
        """Return the maximum of the two ratios, each divided by its limit.

        If it exceeds 1, the device was too slow for reliable measurements (`disturbed`).
        """
        return max(self.arithmetic_ratio / ARITHMETIC_LIMIT, self.memory_ratio / MEMORY_LIMIT)
