"""PyTorch: a backend for `torch.compile`, and export of modules as ONNX files or artifacts.

    model = torch.compile(model.eval(), backend="tilewright")

    from tilewright.compiler.bindings.torch import export
    export(model, (images,), "model.onnx")

Needs PyTorch: `pip install 'tilewright[torch]'`.
"""

from __future__ import annotations

from tilewright.compiler.bindings.torch.backend import tilewright
from tilewright.compiler.bindings.torch.export import export
from tilewright.compiler.bindings.torch.options import BackendOptions
from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError

__all__ = ["BackendOptions", "NotTranslatedError", "export", "tilewright"]
