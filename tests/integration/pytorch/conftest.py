"""Tests of `bindings.torch`; they skip where PyTorch is not installed, as it is not in CI."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewright.compiler.errors import ModelWarning


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No graph of another test, a separate folder of kept models, and every warning an error."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TILEWRIGHT_KEPT_FOLDER", str(tmp_path / "kept"))
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are compiled, or loaded."""
    from tilewright.compiler.bindings.torch import graph_function

    found: list[Any] = []

    class Counted(graph_function.CompilationCache):
        def compile(self, model: Any, options: Any) -> Any:
            found.append(super().compile(model, options))
            return found[-1]

    monkeypatch.setattr(graph_function, "CompilationCache", Counted)
    return found
