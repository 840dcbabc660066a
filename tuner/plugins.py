"""Finds the members of a package: to add a cost model or a strategy is to add a file."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any


def members(package: ModuleType, attribute: str) -> dict[str, Any]:
    """The attribute of this name of each module of a package, by the module's name with dashes."""
    found: dict[str, Any] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        if hasattr(module, attribute):
            found[info.name.replace("_", "-")] = getattr(module, attribute)
    return found
