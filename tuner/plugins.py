"""Members of a package that find themselves: adding a cost model or a strategy is adding a file."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any


def members(package: ModuleType, attribute: str) -> dict[str, Any]:
    """What each module of a package calls `attribute`, by the module's name with dashes."""
    found: dict[str, Any] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        if hasattr(module, attribute):
            found[info.name.replace("_", "-")] = getattr(module, attribute)
    return found
