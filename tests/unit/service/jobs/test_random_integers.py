"""Integer inputs without given values are random rows of the tables that they index, or the number
that the model compares them with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.builder import build_program
from tilewright.compiler.program.random_integers import random_integer_range
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json
from tilewright.service.jobs.evidence.verification import _draw
from tilewright.service.jobs.plan.planning import ModelRequest, plan_first_sizes
from tilewright.tuner.measure.model_runs import draw_inputs
from tilewright.tuner.protocol.runs import INPUT_SEED


def model(nodes: list[Any], inputs: dict[str, int], **tables: np.ndarray) -> bytes:
    given = [helper.make_tensor_value_info(name, kind, ["n"]) for name, kind in inputs.items()]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(array, name) for name, array in tables.items()]
    graph = helper.make_graph(nodes, "embedding", given, [made], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)]).SerializeToString()


def node(op: str, inputs: list[str], output: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs, [output], **attrs)


WORDS = np.arange(300 * 4, dtype=np.float32).reshape(300, 4)
TYPES = np.arange(2 * 4, dtype=np.float32).reshape(2, 4)


def embedding() -> bytes:
    nodes = [
        node("Cast", ["ids"], "wide", to=TensorProto.INT64),
        node("Reshape", ["wide", "rows"], "turned"),
        node("Gather", ["words", "turned"], "a"),
        node("Gather", ["types", "kinds"], "b"),
        node("Add", ["a", "b"], "y"),
    ]
    inputs = {"ids": TensorProto.INT32, "kinds": TensorProto.INT64}
    return model(nodes, inputs, words=WORDS, types=TYPES, rows=np.array([-1]))


def test_random_inputs_reach_all_rows_of_their_tables_and_no_others() -> None:
    planned = plan_first_sizes(ModelRequest(embedding()), {"n": ("1..4096@4000",)})
    drawn = _draw(planned, INPUT_SEED)
    assert set(drawn["ids"]) == set(range(300)) and drawn["ids"].dtype == np.int32
    assert set(drawn["kinds"]) == {0, 1}
    program = build_program(planned.served_plan, None, Mode()).program
    program = program_from_json(program_to_json(program))  # as a device gets it
    on_device = draw_inputs(program.at({"n": 4000}).inputs, INPUT_SEED)
    for name, array in drawn.items():
        np.testing.assert_array_equal(on_device[name], array)


@pytest.mark.parametrize(
    ("nodes", "rows"),
    [
        # a quantised table, and a smaller one
        (
            [
                node("DequantizeLinear", ["bytes", "scale"], "large"),
                node("Gather", ["large", "x"], "a"),
                node("Gather", ["small", "x"], "b"),
                node("Add", ["a", "b"], "y"),
            ],
            7,
        ),
        # columns
        ([node("Gather", ["small", "x"], "y", axis=1)], 4),
        # a table computed from an input, and numbers that are not positions
        (
            [
                node("Cast", ["x"], "table", to=TensorProto.FLOAT),
                node("Gather", ["table", "x"], "y"),
            ],
            None,
        ),
        ([node("Cast", ["x"], "a", to=TensorProto.FLOAT), node("Neg", ["a"], "y")], None),
    ],
)
def test_the_smallest_constant_table_counts(nodes: list[Any], rows: int | None) -> None:
    tables = {
        "bytes": np.ones((30, 4), np.uint8),
        "scale": np.float32(0.5),
        "small": np.ones((7, 4), np.float32),
    }
    source = model(nodes, {"x": TensorProto.INT64}, **{n: np.asarray(t) for n, t in tables.items()})
    known = None if rows is None else (0, rows)
    assert random_integer_range(driver.load_graph(source, {"n": 5}), "x") == known
    planned = plan_first_sizes(ModelRequest(source), {"n": (5,)})
    drawn = _draw(planned, INPUT_SEED)["x"]
    assert drawn.min() >= 0 and drawn.max() < (2 if rows is None else rows)


@pytest.mark.parametrize(("shape", "number"), [([], 16_000), ([1], 16_000), ([2], None)])
def test_a_single_number_is_the_one_that_it_is_compared_with(
    shape: list[int], number: int | None
) -> None:
    """A sampling rate chooses a branch; any other number would choose the other."""
    nodes = [
        node("Cast", ["rate"], "wide", to=TensorProto.INT64),
        node("Equal", ["known", "wide"], "same"),
        node("Cast", ["same"], "y", to=TensorProto.FLOAT),
    ]
    given = [helper.make_tensor_value_info("rate", TensorProto.INT32, shape)]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    known = numpy_helper.from_array(np.array(16_000, np.int64), "known")
    graph = helper.make_graph(nodes, "rates", given, [made], [known])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    planned = plan_first_sizes(ModelRequest(proto.SerializeToString()), {})
    drawn = _draw(planned, INPUT_SEED)["rate"]
    assert drawn.shape == tuple(shape) and drawn.dtype == np.int32
    assert set(drawn.flat) == {number} if number else set(drawn.flat) <= {0, 1}
    program = build_program(planned.served_plan, None, Mode()).program
    program = program_from_json(program_to_json(program))  # as a device gets it
    np.testing.assert_array_equal(draw_inputs(program.inputs, INPUT_SEED)["rate"], drawn)
