"""Cost models, which rank candidates by predicted speed, so that only promising ones are measured.

Each module of this package that defines `make_model` is a cost model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tilewright.compiler.errors import unknown_choice
from tilewright.tuner.cost_model.protocol import CostModel, Sample
from tilewright.tuner.plugins import members

__all__ = ["CostModel", "Sample", "cost_models", "make_cost_model"]


def cost_models() -> dict[str, Callable[[int], CostModel]]:
    """Return a factory for each cost model, by name. A factory takes a random seed."""
    return members(sys.modules[__name__], "make_model")


def make_cost_model(name: str, seed: int, base: bytes = b"") -> CostModel:
    """Create a cost model by name.

    Args:
        name: a key of `cost_models`.
        seed: the seed of the model's random choices.
        base: a model saved by `CostModel.save`, from which training continues; empty for none.

    Raises:
        ValueError: if the name is unknown, or if `base` was saved by another kind of model or with
            another version of the features.
    """
    known = cost_models()
    if name not in known:
        raise ValueError(unknown_choice("the cost model", name, sorted(known)))
    model = known[name](seed)
    if base:
        model.load(base)
    return model
