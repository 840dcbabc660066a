"""Discovery of plug-ins in a package: a new cost model or search strategy needs only a new file."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any


def members(package: ModuleType, attribute: str) -> dict[str, Any]:
    """Import all modules of a package, and return the attribute named `attribute` of each module.

    Modules without this attribute are left out. The keys of the result are the module names, with
    dashes instead of underscores.
    """
    found: dict[str, Any] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        if hasattr(module, attribute):
            found[info.name.replace("_", "-")] = getattr(module, attribute)
    return found
