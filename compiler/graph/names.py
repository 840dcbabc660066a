"""Names of values that a graph does not have yet."""

from __future__ import annotations

from collections.abc import Container


def fresh(base: str, taken: Container[str]) -> str:
    """The name, or the name with a number where it is taken."""
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}.{number}"
    return name
