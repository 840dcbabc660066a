"""The node tests of the ONNX backend suite, run through the operators' references.

All tests are tried whose operators have rules. Those that use another operator, type or form end in
a typed error, never in a wrong result or another exception.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from compiler import ops
from compiler.errors import CompilerError, InvalidModelError, UnsupportedOperatorError
from compiler.frontend.onnx_import import import_model
from compiler.graph.ir import Graph
from compiler.ops.interpret import run_graph

# onnx divides by zero and overflows while it makes its cases
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:onnx")

EXCEPTIONS = {
    # rounded to float16 after each operator, where the expected values round once
    "test_attention_4d_causal_fp16_expanded",
}

ENOUGH = 500
"""847 tests ran with onnx 1.23; far fewer means that the filter broke."""

REFUSALS = (
    "is not supported",  # an element type, or an opset before 7
    "is not a tensor",  # sequences and optionals
    "dimension",  # inputs without elements
)


@cache
def cases() -> tuple[Any, ...]:
    """The tests that use operators with rules only, without constructing others' data."""
    known = {op for domain, op in ops.onnx_rules() if domain == ""}
    return tuple(
        case
        for case in load_model_tests(kind="node")
        if all(node.op_type in known for node in case.model.graph.node)
        and case.name not in EXCEPTIONS
    )


def imported(case: Any) -> tuple[Graph | None, str]:
    """The graph, or why there is none.

    The suite gives shapes and axes as inputs; where the import needs them, they become constants.
    """
    try:
        return import_model(case.model), ""
    except UnsupportedOperatorError as error:
        if "run-time value" not in error.reason:
            return None, str(error)
    except InvalidModelError as error:
        return None, str(error)
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    arrays = case.data_sets[0][0]
    for info, array in list(zip(model.graph.input, arrays, strict=False))[1:]:
        if array is not None:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), info.name))
    try:
        return import_model(model), ""
    except CompilerError as error:
        return None, str(error)


def raw(array: Any) -> np.ndarray:
    """bfloat16 as its raw bits."""
    array = np.asarray(array)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def test_the_node_suite() -> None:
    ran, refused = 0, []
    for case in cases():
        graph, reason = imported(case)
        if graph is None:
            refused.append((case.name, reason))
            continue
        for inputs, outputs in case.data_sets:
            feeds = {
                info.name: raw(array)
                for info, array in zip(case.model.graph.input, inputs, strict=False)
                if info.name in graph.inputs
            }
            if any(array.dtype == object for array in feeds.values()):
                continue  # numbers given as text
            found = run_graph(graph, feeds)
            for mine, theirs in zip(found, map(raw, outputs), strict=True):
                assert mine.dtype == theirs.dtype, case.name
                np.testing.assert_allclose(
                    mine, theirs, case.rtol, case.atol, strict=True, err_msg=case.name
                )
            ran += 1
    assert ran >= ENOUGH
    odd = [
        (name, reason)
        for name, reason in refused
        if not reason.startswith("node '") and not any(r in reason for r in REFUSALS)
    ]
    assert not odd, "refused for a reason that the suite does not explain"


@pytest.mark.parametrize("op_type", ["TopK", "Unique", "NonZero"])
def test_operators_without_a_rule_are_refused_by_name(op_type: str) -> None:
    case = next(
        case
        for case in load_model_tests(kind="node")
        if any(node.op_type == op_type for node in case.model.graph.node)
        and "opset" not in case.name
    )
    with pytest.raises((UnsupportedOperatorError, InvalidModelError), match=op_type):
        import_model(case.model)
