"""Functions and modules of PyTorch, compiled, against their originals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tilewright.compiler.bindings.torch import tilewright


def close(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-5, equal_nan=True)
        assert found.shape == wanted.shape
        return
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        close(one, other)


def same(function: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    """The compiled function gives the results of the original."""
    compiled = torch.compile(function, backend=tilewright, **options)
    close(compiled(*args), function(*args))
    return compiled


X = torch.linspace(-3, 3, 24).reshape(2, 3, 4)
IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


class Small(nn.Module):
    """A table, a layer over tokens, and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.layer = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, ids: Any) -> Any:
        return self.norm(functional.gelu(self.layer(self.table(ids))))
