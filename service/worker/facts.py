"""Collects the properties of a device that a worker reports, without LLVM."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tilewright.compiler.runtime.native import vector_bits
from tilewright.compiler.targets.detection import named_device


def device_facts(cores: Collection[int] = ()) -> dict[str, Any]:
    """Return the device properties in every measurement: CPU model, cores, caches (bytes),
    governor.

    Args:
        cores: the cores that candidates run on; empty for all that this process may use.
    """
    return named_device(cores=cores or None).brief().to_json()


def registration_facts(cores: Collection[int] = ()) -> dict[str, Any]:
    """Return the device properties for a registration: `device_facts` and the CPU's features.

    The service determines the device's targets from them.

    Args:
        cores: the cores that candidates run on; empty for all that this process may use.
    """
    facts = named_device(cores=cores or None)
    return replace(facts, vector_bits=vector_bits() or facts.vector_bits).to_json()
