"""PyTorch: a backend of `torch.compile`, and modules as ONNX files or artifacts.

    model = torch.compile(model.eval(), backend="tilewright")

    from compiler.torch import export
    export(model, (images,), "model.onnx")

Needs PyTorch: `pip install 'tilewright[torch]'`.
"""

from __future__ import annotations

from compiler.torch.backend import tilewright
from compiler.torch.export import export
from compiler.torch.options import BackendOptions
from compiler.torch.symbolic import NotTranslatedError

__all__ = ["BackendOptions", "NotTranslatedError", "export", "tilewright"]
