"""Target descriptions, one module a CPU family.

A module has `TARGETS`, its described targets, and `detect(triple, cpu, features)`, which returns
the Target of a host of this family, or None for any other host. `NOT_COMPUTED` is there where LLVM
aborts on arithmetic in some types, or never ends: no kernel may compute in them.
"""

from __future__ import annotations

from collections.abc import Mapping


def switches(features: Mapping[str, bool]) -> tuple[str, ...]:
    """Detected features as LLVM's switches, sorted; absent ones are turned off by name.

    A hypervisor may hide an instruction set that the CPU's name implies.
    """
    return tuple(sorted(f"{'+' if present else '-'}{name}" for name, present in features.items()))
