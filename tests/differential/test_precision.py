"""Models compiled in a narrower precision, against the graph that was narrowed.

Both round the same values at the same places. Sums that float32 rounds otherwise fall to the other
of two 16-bit neighbours now and then, and later values differ by such steps: 2**-8 of an element
for bfloat16, 2**-11 for float16, of which a few add up.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import models
from tilewright.compiler.api import compile_model
from tilewright.compiler.driver import load_graph, optimise
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.runtime.verify import compare
from tilewright.compiler.targets.host import resolve_target

STEP = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
MODELS = ("mobilenetv2", "squeezenet", "minilm-l6-128")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", STEP)
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, precision: str, threads: int) -> None:
    model = models.build(name)
    feeds = models.feeds(name, model)
    graph = optimise(load_graph(model), Mode(precision=precision))
    expected = run_graph(graph, feeds)
    wide = run_graph(load_graph(model), feeds)
    executable = compile_model(model, precision=precision, threads=threads)
    found = executable.run(feeds)
    for got, same, float32 in zip(found, expected, wide, strict=True):
        assert got.dtype == np.float32
        assert compare(got, same) <= 4 * STEP[precision]
        assert compare(got, float32) <= 12 * STEP[precision]


def test_an_unknown_precision_is_named() -> None:
    model = models.build("mlp")
    with pytest.raises(InvalidArgumentError, match="precision is 'int8', expected float32, bfl"):
        compile_model(model, precision="int8")
    with pytest.raises(InvalidArgumentError, match="precision is 'half'"):
        optimise(load_graph(model), Mode(precision="half"))


def test_float32_is_what_it_was() -> None:
    graph, target = load_graph(models.build("mlp")), resolve_target("host")
    assert optimise(graph, Mode(target, precision=DType.FLOAT32)) == optimise(graph, Mode(target))
