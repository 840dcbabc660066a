"""Finds the plug-ins of a package, so that a cost model or strategy is added as a new file."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any


def members(package: ModuleType, attribute: str) -> dict[str, Any]:
    """Import all modules of a package, and return the `attribute` of each module that has it.

    The keys are the module names with dashes instead of underscores.
    """
    found: dict[str, Any] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        if hasattr(module, attribute):
            found[info.name.replace("_", "-")] = getattr(module, attribute)
    return found
