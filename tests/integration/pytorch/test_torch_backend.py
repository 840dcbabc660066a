"""The backend of `torch.compile`: its options, its cache, and its tuner."""

from __future__ import annotations

import threading
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tilewright.compiler.errors import InvalidArgumentError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from tests.integration.pytorch.comparison import X, close, same  # noqa: E402
from tilewright.compiler.bindings.torch import tilewright  # noqa: E402
from tilewright.compiler.driver import compile_with  # noqa: E402

ROOT = Path(__file__).parents[3]


def test_another_process_would_load_it(made: list[Any], tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for factor, entries in ((1.0, 1), (1.0, 1), (2.0, 2)):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Linear(4, 4).eval()
        model.weight.mul_(factor)
        same(model, X)
        assert len(list(kept.iterdir())) == entries
    torch._dynamo.reset()
    same(nn.Linear(4, 4).eval(), X, options={"keep": False})
    assert len(list(kept.iterdir())) == 2


def test_a_tuner_works_while_the_untuned_code_serves(made: list[Any]) -> None:
    go = threading.Event()
    runs: list[Any] = []

    class Tuned:
        def __init__(self, program: Any) -> None:
            self.program = program

        def run(self, arrays: Any) -> Any:
            runs.append(arrays)
            return self.program.run(arrays)

    def tuner(model: Any, options: Any) -> Tuned:
        assert go.wait(30)
        assert options.mode.threads == 1
        return Tuned(compile_with(model, options))

    model = nn.Linear(4, 4).eval()
    compiled = same(model, X, options={"tuner": tuner, "threads": 1})
    assert not runs
    go.set()
    (worker,) = [t for t in threading.enumerate() if t.name == "tilewright-tuner"]
    worker.join(30)
    close(compiled(X), model(X))
    assert len(runs) == 1
    assert len(made) == 1


def test_what_was_tuned_before_serves_at_once(made: list[Any]) -> None:
    kept: list[Any] = []

    class Tuner:
        def kept(self, model: Any, options: Any) -> Any:
            return kept[-1] if kept else None

        def __call__(self, model: Any, options: Any) -> None:
            kept.append(compile_with(model, options))

    model = nn.Linear(4, 4).eval()
    for compiled in (1, 1):  # the second time as another process would
        torch._dynamo.reset()
        same(model, X, options={"tuner": Tuner(), "threads": 1})
        for thread in threading.enumerate():
            if thread.name == "tilewright-tuner":
                thread.join(30)
        assert len(made) == compiled and len(kept) == 1
    torch._dynamo.reset()
    same(model, X, options={"tuner": Tuner(), "threads": 1, "keep": False})
    assert len(made) == 2


def test_schedules_are_looked_up(made: list[Any]) -> None:
    asked = []

    class Nothing:
        def best(self, *key: Any) -> None:
            asked.append(key)

    same(nn.Linear(4, 4).eval(), X, options={"schedules": Nothing()})
    assert asked


def test_unknown_options_are_named() -> None:
    compiled = torch.compile(lambda x: x + 1, backend=tilewright, options={"thread": 2})
    with pytest.raises(Exception, match="has no option 'thread', known are threads, ") as raised:
        compiled(X)
    assert isinstance(raised.value.__cause__ or raised.value, InvalidArgumentError | Exception)


def test_the_entry_point_is_the_backend() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    module, name = groups["torch_dynamo_backends"]["tilewright"].split(":")
    assert getattr(import_module(module), name) is tilewright
