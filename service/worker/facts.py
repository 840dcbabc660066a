"""Collects the properties of a device that a worker reports; LLVM is not needed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tilewright.compiler.runtime.native import vector_bits
from tilewright.compiler.targets.detection import named_device


def device_facts(cores: Collection[int] = ()) -> dict[str, Any]:
    """Return the properties of the device that are stored with every measurement.

    These are the CPU model, the cores, the caches (in bytes) and the frequency governor.

    Args:
        cores: the cores on which candidates run; empty for all that this process may use.
    """
    return named_device(cores=cores or None).brief().to_json()


def registration_facts(cores: Collection[int] = ()) -> dict[str, Any]:
    """Return the properties of the device that the worker reports at its registration.

    These are `device_facts` and the CPU's features, from which the service determines the targets.

    Args:
        cores: the cores on which candidates run; empty for all that this process may use.
    """
    facts = named_device(cores=cores or None)
    return replace(facts, vector_bits=vector_bits() or facts.vector_bits).to_json()
