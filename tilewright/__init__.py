"""Tilewright: faster, verified inference for ONNX models, tuned and measured on your device.

    import tilewright

    model = tilewright.compile_model("model.onnx")
    (scores,) = model.run({"image": image})

Names of this package are imported on first use, so that a device that only runs artifacts needs no
package except NumPy. The folders `compiler`, `tuner`, `db` and `service` next to this file are
links to the folders at the top of the repository; a wheel contains the folders themselves.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.compiler.api import compile_model
    from tilewright.compiler.bindings import ort
    from tilewright.compiler.bindings.ort.session import InferenceSession
    from tilewright.compiler.bindings.torch.backend import tilewright as torch_backend
    from tilewright.compiler.errors import (
        ArtifactError,
        CompilerError,
        InvalidArgumentError,
        InvalidInputError,
        InvalidModelError,
        OutOfMemoryError,
        ScheduleError,
        UnknownTargetError,
        UnsupportedOperatorError,
    )
    from tilewright.compiler.runtime.artifact import load_artifact
    from tilewright.compiler.runtime.model import Model
    from tilewright.compiler.runtime.pool import bind_workers
    from tilewright.service.client import AsyncClient, Client
    from tilewright.service.local_tuning import tune
    from tilewright.tuner.options import TuningError

    __version__: str

__all__ = [
    "ArtifactError",
    "AsyncClient",
    "Client",
    "CompilerError",
    "InferenceSession",
    "InvalidArgumentError",
    "InvalidInputError",
    "InvalidModelError",
    "Model",
    "OutOfMemoryError",
    "ScheduleError",
    "TuningError",
    "UnknownTargetError",
    "UnsupportedOperatorError",
    "__version__",
    "bind_workers",
    "compile_model",
    "load_artifact",
    "ort",
    "torch_backend",
    "tune",
]

# The module of each name, and the extra with the packages that the module needs.
_PLACES = {
    "AsyncClient": ("service.client", "service"),
    "Client": ("service.client", "service"),
    "InferenceSession": ("compiler.bindings.ort.session", "compiler"),
    "Model": ("compiler.runtime.model", ""),
    "TuningError": ("tuner.options", "tuner"),
    "bind_workers": ("compiler.runtime.pool", ""),
    "compile_model": ("compiler.api", "compiler"),
    "load_artifact": ("compiler.runtime.artifact", ""),
    "ort": ("compiler.bindings.ort", "compiler"),
    "torch_backend": ("compiler.bindings.torch.backend", "torch"),
    "tune": ("service.local_tuning", "all"),
}
_OTHER_NAMES = {"torch_backend": "tilewright"}
_MODULES = {"ort"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from tilewright.compiler.package import package_version

        value: Any = package_version()
    elif name in __all__:
        module, extra = _PLACES.get(name, ("compiler.errors", ""))
        try:
            found = import_module(f"tilewright.{module}")
        except ModuleNotFoundError as error:
            if not extra or (error.name or "").startswith("tilewright."):
                raise
            raise ModuleNotFoundError(
                f"tilewright.{name} needs the package '{error.name}': "
                f"pip install 'tilewright[{extra}]' has it",
                name=error.name,
            ) from error
        value = found if name in _MODULES else getattr(found, _OTHER_NAMES.get(name, name))
    else:
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
