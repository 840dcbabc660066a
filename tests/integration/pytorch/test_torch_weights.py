"""Weights and buffers of PyTorch's modules, which are written to."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.compiler.errors import ModelWarning

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from tests.integration.pytorch.comparison import IDS, Small, X, close, same  # noqa: E402
from tilewright.compiler.bindings.torch import graph_function, tilewright  # noqa: E402


def test_weights_that_are_written_to_are_compiled_again(made: list[Any]) -> None:
    model = Small().eval()
    compiled = same(model, IDS)
    model.layer.weight.mul_(2)
    close(compiled(IDS), model(IDS))
    model.layer.weight.data = torch.randn(8, 8)
    close(compiled(IDS), model(IDS))
    model.load_state_dict(Small().state_dict())
    close(compiled(IDS), model(IDS))
    assert len(made) == 4


def test_a_table_is_read_where_it_lies(made: list[Any]) -> None:
    model = Small().eval()
    compiled = same(model, IDS)
    model.table.weight.data.mul_(2)  # a change that no counter sees
    close(compiled(IDS), model(IDS))
    assert len(made) == 1
    assert "(10, 8)" in [str(tuple(port.shape)) for port in made[0].inputs]


def test_weights_that_change_all_the_time_are_not_compiled_in(made: list[Any]) -> None:
    model = nn.Linear(4, 4).eval()
    compiled = same(model, X)
    with pytest.warns(ModelWarning, match="its weights were written to 9 times"):
        for _ in range(12):
            model.weight.add_(0.1)
            close(compiled(X), model(X))
    assert len(made) == 1 + graph_function.MOST_CHANGES


def test_inference_tensors_are_inputs(made: list[Any]) -> None:
    with torch.inference_mode():
        model = nn.Linear(4, 4).eval()
        compiled = torch.compile(model, backend=tilewright)
        close(compiled(X), model(X))
        model.weight.mul_(2)  # an inference tensor counts no changes
        close(compiled(X), model(X))
    assert len(made) == 1


def test_layers_of_one_graph_have_programs_of_their_own(made: list[Any]) -> None:
    layers = [Small().eval() for _ in range(3)]
    wanted = [layer(IDS) for layer in layers]
    for layer in layers:
        layer.compile(backend=tilewright)
    for _ in range(2):
        for layer, each in zip(layers, wanted, strict=True):
            close(layer(IDS), each)
    assert len(made) == 3


def test_buffers_and_arguments_are_written_to(made: list[Any]) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            self.seen.add_(x.sum((0, 1)))
            x.mul_(2)
            return x[0], self.seen * 2

    model, other = Counting(), Counting()
    compiled = torch.compile(model, backend=tilewright)
    for _ in range(2):
        mine, theirs = X.clone(), X.clone()
        close(compiled(mine), other(theirs))
        close(mine, theirs)
        close(model.seen, other.seen)
    assert len(made) == 1
