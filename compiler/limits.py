"""Limits and option values shared by the compiler, the API and the workers' messages.

This module imports only the standard library.
"""

from __future__ import annotations

from typing import Literal

MAX_THREADS = 256
"""Maximum number of threads of a run; equal to TW_MAX_THREADS of the C runtime."""

LARGEST_SIZE = 1 << 40
"""Maximum size of a dimension."""

Numerics = Literal["fast", "strict", "loose"]

Precision = Literal["float32", "bfloat16", "float16"]
"""Element types of the values that are stored between products such as convolutions, and of the
factors of these products."""
