"""Tilewright's compiler: ONNX models to native code through searched schedules.

Importing this package loads neither LLVM nor onnx: a device that runs artifacts has neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.errors import (
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

if TYPE_CHECKING:
    from compiler.compiling import compile_model
    from compiler.runtime.artifact import load_artifact
    from compiler.runtime.pool import bind_workers

_LAZY = {
    "bind_workers": "compiler.runtime.pool",
    "compile_model": "compiler.compiling",
    "load_artifact": "compiler.runtime.artifact",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        try:
            return getattr(importlib.import_module(_LAZY[name]), name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"compiler.{name} needs the package '{error.name}': "
                "pip install 'tilewright[compiler]' has it",
                name=error.name,
            ) from error
    raise AttributeError(f"module 'compiler' has no attribute '{name}'")


__all__ = [
    "ArtifactError",
    "CompilerError",
    "InvalidArgumentError",
    "InvalidInputError",
    "InvalidModelError",
    "OutOfMemoryError",
    "ScheduleError",
    "UnknownTargetError",
    "UnsupportedOperatorError",
    "bind_workers",
    "compile_model",
    "load_artifact",
]
