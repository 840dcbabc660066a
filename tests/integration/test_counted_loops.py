"""Loops without a trip count, whose conditions compare counters with sizes: against ONNX Runtime.

Exporters of TensorFlow and Keras write recurrent networks like this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from tests.integration.control_models import (
    BOOL,
    FLOAT,
    INT64,
    RANDOM,
    STEP,
    agree,
    body,
    info,
    model,
    node,
    within,
)
from tilewright.compiler.api import compile_model
from tilewright.compiler.driver import load_graph
from tilewright.compiler.errors import UnsupportedOperatorError
from tilewright.compiler.graph.ir import attr
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.program import Loop
from tilewright.compiler.sizes import Dimension

FEATURES, HIDDEN, LONG = 3, 5, 60
INT32 = TensorProto.INT32
WEIGHTS = {
    "w": np.float32(RANDOM.standard_normal((FEATURES, HIDDEN))),
    "u": np.float32(RANDOM.standard_normal((HIDDEN, HIDDEN)) / 4),
}
STEPS_OF_X = [
    node("Shape", ["x"], ["shape"]),
    node("Gather", ["shape", "0"], ["n64"], axis=0),
    node("Cast", ["n64"], ["n"], to=INT32),
]
CELL = [
    node("Gather", ["x", "time"], ["row"], axis=0),
    node("MatMul", ["row", "w"], ["wx"]),
    node("MatMul", ["h", "u"], ["uh"]),
    node("Add", ["wx", "uh"], ["sum"]),
    node("Tanh", ["sum"], ["new"]),
    node("Identity", ["new"], ["made"]),
]
"""x: (time, batch, features); h: (batch, hidden)."""


def masked() -> onnx.ModelProto:
    """As tf2onnx exports a masked RNN: two conditions on counters in int32, compared as floats. A
    masked step keeps the state."""
    step = body(
        [
            *CELL,
            node("Gather", ["mask", "time"], ["kept"], axis=0),
            node("Where", ["kept", "new", "h"], ["h2"]),
            node("Identity", ["h2"], ["held"]),
            node("Add", ["time", "one"], ["time2"]),
            node("Add", ["count", "one"], ["count2"]),
            node("Cast", ["time2"], ["time2f"], to=FLOAT),
            node("Cast", ["n"], ["nf"], to=FLOAT),
            node("Less", ["time2f", "nf"], ["inside"]),
            node("Less", ["count2", "n"], ["more"]),
            node("And", ["inside", "more"], ["on"]),
        ],
        [*STEP, info("count", INT32, ()), info("time", INT32, ()), info("h")],
        [info("on", BOOL, ()), info("count2", INT32, ()), info("time2", INT32, ()), info("h2"),
         info("held")],
        {"one": np.int32(1)},
    )  # fmt: skip
    nodes = [
        *STEPS_OF_X,
        node("Less", ["none", "n"], ["begin"]),
        node(
            "Loop", ["", "begin", "none", "none", "h0"], ["steps", "time", "h", "rows"], body=step
        ),
    ]
    inputs = {"x": np.zeros((LONG, 2, FEATURES), np.float32), "mask": np.zeros((LONG, 2, 1), bool),
              "h0": np.zeros((2, HIDDEN), np.float32)}  # fmt: skip
    constants = {**WEIGHTS, "0": np.array(0), "none": np.int32(0)}
    return model(nodes, inputs, ["time", "h", "rows"], constants)


def backwards() -> onnx.ModelProto:
    """From the last step to the first; the largest trip count means unlimited."""
    step = body(
        [
            *CELL,
            node("Sub", ["time", "one"], ["time2"]),
            node("GreaterOrEqual", ["time2", "zero"], ["on"]),
        ],
        [*STEP, info("time", INT64, ()), info("h")],
        [info("on", BOOL, ()), info("time2", INT64, ()), info("new"), info("made")],
        {"one": np.array(1), "zero": np.array(0)},
    )
    nodes = [
        *STEPS_OF_X,
        node("Sub", ["n64", "one"], ["last"]),
        node("Loop", ["limit", "", "last", "h0"], ["time", "h", "rows"], body=step),
    ]
    inputs = {"x": np.zeros((LONG, 2, FEATURES), np.float32),
              "h0": np.zeros((2, HIDDEN), np.float32)}  # fmt: skip
    constants = {**WEIGHTS, "0": np.array(0), "one": np.array(1), "limit": np.array((1 << 63) - 1)}
    return model(nodes, inputs, ["time", "h", "rows"], constants)


def from_the_second() -> onnx.ModelProto:
    """A sequence of one step has no second: sizes do not determine whether the loop begins."""
    step = body(
        [*CELL, node("Add", ["time", "one"], ["time2"]), node("Less", ["time2", "n64"], ["on"])],
        [*STEP, info("time", INT64, ()), info("h")],
        [info("on", BOOL, ()), info("time2", INT64, ()), info("new"), info("made")],
        {"one": np.array(1)},
    )
    nodes = [
        *STEPS_OF_X,
        node("Less", ["one", "n64"], ["begin"]),
        node("Loop", ["", "begin", "one", "h0"], ["time", "h", "rows"], body=step),
    ]
    inputs = {"x": np.zeros((LONG, 2, FEATURES), np.float32),
              "h0": np.zeros((2, HIDDEN), np.float32)}  # fmt: skip
    return model(
        nodes, inputs, ["time", "h", "rows"], {**WEIGHTS, "0": np.array(0), "one": np.array(1)}
    )


def until_small() -> onnx.ModelProto:
    """At most as many steps as there are, and none once the state is small."""
    step = body(
        [
            *CELL,
            node("Add", ["time", "one"], ["time2"]),
            node("Less", ["time2", "n64"], ["inside"]),
            node("ReduceMax", ["new"], ["top"], keepdims=0),
            node("Greater", ["top", "least"], ["large"]),
            node("And", ["large", "inside"], ["on"]),
        ],
        [*STEP, info("time", INT64, ()), info("h")],
        [info("on", BOOL, ()), info("time2", INT64, ()), info("new"), info("made")],
        {"one": np.array(1)},
    )
    nodes = [
        *STEPS_OF_X,
        node("Loop", ["", "go", "first", "h0"], ["time", "h", "rows"], body=step),
    ]
    inputs = {"x": np.zeros((LONG, 2, FEATURES), np.float32),
              "h0": np.zeros((2, HIDDEN), np.float32),
              "least": np.zeros((), np.float32)}  # fmt: skip
    constants = {**WEIGHTS, "0": np.array(0), "first": np.array(0), "go": np.array(True)}
    return model(nodes, inputs, ["time", "h", "rows"], constants)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "masked": masked,
    "backwards": backwards,
    "from the second": from_the_second,
    "until small": until_small,
}


def feeds(proto: onnx.ModelProto, steps: int) -> dict[str, Any]:
    random = np.random.default_rng(steps)
    found: dict[str, Any] = {
        "x": np.float32(random.standard_normal((steps, 2, FEATURES))),
        "mask": random.random((steps, 2, 1)) < 0.6,
        "h0": np.float32(random.standard_normal((2, HIDDEN))),
        "least": np.array(0.3, np.float32),
    }
    return {port.name: found[port.name] for port in proto.graph.input}


def opened(proto: onnx.ModelProto) -> onnx.ModelProto:
    for port in proto.graph.input:
        if port.name in ("x", "mask"):
            port.type.tensor_type.shape.dim[0].dim_param = "time"
    return proto


@pytest.mark.parametrize("name", MODELS)
def test_sequences_of_a_fixed_length(name: str) -> None:
    proto = MODELS[name]()
    executable = compile_model(proto)
    assert isinstance(executable, Executable) and within(executable, Loop) == 1
    given = feeds(proto, LONG)
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    agree(executable.run(given), expected)


@pytest.mark.parametrize("name", MODELS)
def test_one_program_for_sequences_of_any_length(name: str) -> None:
    proto = opened(MODELS[name]())
    executable = compile_model(proto)
    assert isinstance(executable, GuardedModel)
    assert executable.ranged is not None, executable.reason
    assert within(executable.ranged, Loop) == 1
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for steps in (1, 2, 7, LONG) if name != "from the second" else (2, 3, LONG):
        given = feeds(proto, steps)
        agree(executable.run(given), session.run(None, given))
    assert executable.made == ()


def test_counted_rows_need_not_be_cut() -> None:
    """Where the ranges say that the loop begins, the number of its steps is that of the input."""
    graph = load_graph(opened(masked()), {"time": Dimension("time", 1, 4096)})
    (loop,) = (each for each in graph.nodes if each.op == "loop")
    assert not attr(loop.attrs, "decides")
    assert not [each for each in graph.nodes if each.op == "trim"]


def test_a_bound_of_the_run_is_refused_in_words() -> None:
    step = body(
        [node("Add", ["i", "one"], ["j"]), node("Less", ["j", "n"], ["on"])],
        STEP,
        [info("on", BOOL, ()), info("j", INT64, ())],
        {"one": np.array(1)},
    )
    loop = node("Loop", ["", "go"], ["rows"], body=step)
    proto = model([loop], {"n": np.zeros((), np.int64)}, ["rows"], {"go": np.array(True)})
    with pytest.raises(UnsupportedOperatorError, match="have no bound known"):
        compile_model(proto)
