"""What a worker tells of its device, found without LLVM."""

from __future__ import annotations

from typing import Any

from compiler.device import find_device


def device_facts() -> dict[str, Any]:
    """The facts that go into every measurement: CPU model, cores, caches (bytes), governor, ..."""
    return find_device().brief().to_json()


def registration_facts() -> dict[str, Any]:
    """The same and the CPU's features, from which the service finds its targets."""
    return find_device().to_json()
