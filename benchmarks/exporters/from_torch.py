"""Export of PyTorch models by torch.onnx.export, with either of its two methods.

These are the tracer (TorchScript) and torch.export (dynamo).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.exporters.written import Feeds

Axes = Mapping[str, Mapping[int, str]]
"""Names of dynamic dimensions, by input and position."""

TRACED_OPSET = 17
EXPORTED_OPSET = 18


def randomise(model: nn.Module) -> None:
    """Give batch normalisations random parameters; their initial ones compute the identity."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, 0.0, 0.05)
            assert module.running_mean is not None
            assert module.running_var is not None
            nn.init.normal_(module.running_mean, 0.0, 0.05)
            nn.init.uniform_(module.running_var, 0.6, 1.2)


def write(
    model: nn.Module,
    runs: Sequence[Mapping[str, torch.Tensor]],
    path: Path,
    axes: Axes,
    dynamo: bool,
) -> Sequence[Feeds]:
    """Export a model to `path`, and return the inputs of the runs as NumPy arrays.

    The tensors of the first run, by input name, are the example inputs. `axes` names the dynamic
    dimensions. `dynamo` selects torch.export instead of the tracer.
    """
    model = model.eval()
    names, first = list(runs[0]), tuple(runs[0].values())
    common: dict[str, Any] = {"input_names": names, "external_data": False}
    if dynamo:
        dynamic_dims = {
            name: dict.fromkeys(axes.get(name, {}), torch.export.Dim.DYNAMIC) for name in names
        }
        torch.onnx.export(
            Keywords(model, names),
            first,
            path,
            dynamo=True,
            opset_version=EXPORTED_OPSET,
            dynamic_shapes=(tuple(dynamic_dims.values()),),
            **common,
        )
    else:
        torch.onnx.export(
            Keywords(model, names),
            first,
            path,
            dynamo=False,
            opset_version=TRACED_OPSET,
            dynamic_axes={name: dict(dims) for name, dims in axes.items()},
            input_names=names,
        )
    return [
        {name: np.ascontiguousarray(value.numpy()) for name, value in run.items()} for run in runs
    ]


class Keywords(nn.Module):  # type: ignore[misc]  # torch is not installed for mypy
    """Wraps a model so that its inputs are positional and its result is tensors only."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)

    def forward(self, *values: torch.Tensor) -> Any:
        return _tensors(self.model(**dict(zip(self.names, values, strict=True))))


def _tensors(result: Any) -> Any:
    """The tensors in a model's result.

    If the result is a mapping, as transformers models return it, the first value is taken.
    """
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, Mapping):
        return next(iter(result.values()))
    return tuple(value for value in result if isinstance(value, torch.Tensor))
