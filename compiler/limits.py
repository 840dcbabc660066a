"""Limits and option values shared by the compiler, the API and the workers' messages.

This module imports only the standard library.
"""

from __future__ import annotations

from typing import Literal

MAX_THREADS = 256
"""Threads that one run can use: TW_MAX_THREADS of the C runtime."""

LARGEST_SIZE = 1 << 40
"""The largest size of a dimension."""

Numerics = Literal["fast", "strict", "loose"]

Precision = Literal["float32", "bfloat16", "float16"]
"""Types in which values between products are stored, and in which products multiply."""
