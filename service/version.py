"""Determines the version of this installation."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the distribution's version, or "0" in a source tree that is not installed."""
    try:
        return metadata.version("tilewright")
    except metadata.PackageNotFoundError:
        return "0"
