"""Error messages name the fault and suggest the names that are similar to an unknown one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

from tilewright.compiler.errors import suggestion, unknown_choice
from tilewright.compiler.frontend.dimensions import check_dims
from tilewright.compiler.targets.host import resolve_target
from tilewright.service.cli.common import dump_observer
from tilewright.service.jobs.inputs.given_files import checked_values
from tilewright.service.options import stated_words
from tilewright.service.quantize.samples import Input
from tilewright.tuner.search import make_strategy


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("liner", ("nearest", "linear", "cubic"), "; did you mean 'linear'?"),
        ("rows", ("row", "columns", "row2"), "; did you mean 'row' or 'row2'?"),
        ("lanczos", ("up", "down"), ""),
        ("any", (), ""),
    ],
)
def test_similar_names_are_suggested(name: str, known: tuple[str, ...], expected: str) -> None:
    assert suggestion(name, known) == expected


def test_the_known_words_are_listed() -> None:
    assert unknown_choice("--on", "x", ["a"]) == "--on is 'x', expected a"
    assert unknown_choice("--on", "x", ["a", "b", "c"]) == "--on is 'x', expected a, b or c"


def suggesting_calls() -> list[tuple[Callable[[], object], str]]:
    """Calls with an unknown name, and the name that their errors suggest."""
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2])
    graph = helper.make_graph([], "g", [info], [info])
    return [
        (lambda: check_dims(graph, {"bach": 2}), "batch"),
        (lambda: resolve_target("zen4"), "znver4"),
        (lambda: dump_observer(["dead_cod"]), "dead_code"),
        (lambda: stated_words({"thread": 2}), "threads"),
        (lambda: checked_values({"rat": 1.0}, [Input("rate", np.dtype(np.int32), ())]), "rate"),
        (lambda: make_strategy("bayesan", None), "bayesian"),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("number", range(len(suggesting_calls())))
def test_errors_suggest_similar_names(number: int) -> None:
    call, name = suggesting_calls()[number]
    with pytest.raises(Exception, match=f"did you mean .*'{name}'"):
        call()
