"""Cost models: they predict which candidates are worth a measurement. One file each."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tilewright.compiler.errors import unknown_choice
from tilewright.tuner.cost_model.protocol import CostModel, Sample
from tilewright.tuner.plugins import members

__all__ = ["CostModel", "Sample", "cost_models", "make_cost_model"]


def cost_models() -> dict[str, Callable[[int], CostModel]]:
    """Every cost model by name, as a function that makes one from a seed."""
    return members(sys.modules[__name__], "make_model")


def make_cost_model(name: str, seed: int, base: bytes = b"") -> CostModel:
    """Create the cost model of this name; with `base`, training continues from this saved model.

    Raises:
        ValueError: if the name is unknown, or the base has another kind or feature version.
    """
    known = cost_models()
    if name not in known:
        raise ValueError(unknown_choice("the cost model", name, sorted(known)))
    model = known[name](seed)
    if base:
        model.load(base)
    return model
