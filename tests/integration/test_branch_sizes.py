"""Branches of If where sizes are open: those that the data cut further, and those that sizes
choose, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from tilewright.compiler.api import compile_model
from tilewright.compiler.runtime.guarded import GuardedModel

PLACES = """
    y = If (go) <
        then_branch = places () => (float[a, b] found)
            <float[2, 2] turn = {0, 1, 1, 0}>
            { at = NonZero (x) some = Cast <to = 1> (at) rows = Transpose <perm = [1, 0]> (some)
              found = MatMul (rows, turn) },
        else_branch = none () => (float[c, d] other) { other = Identity (x) }>
"""
"""As many rows as there are elements that are not 0, or the input."""

NESTED = PLACES.replace(
    "found = MatMul (rows, turn)",
    """
    count = Shape (rows) many = ReduceMax <keepdims = 0> (count) more = Greater (many, six)
    found = If (more) <
        then_branch = above () => (float[e, f] large) { large = MatMul (rows, turn) },
        else_branch = below () => (float[g, h] small) { small = Concat <axis = 0> (rows, x) }>
    """,
)


def model(nodes: str, rows: str = "float[n, 2] x, bool go") -> bytes:
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    choice ({rows}) => (y) <int64 zero = {{0}}, int64 one = {{1}}, int64 six = {{6}}>
    {{ {nodes} z = Relu (y) }}
    """
    parsed = onnx.parser.parse_model(text)
    del parsed.graph.output[:]
    parsed.graph.output.append(onnx.ValueInfoProto(name="z"))
    parsed.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    found: bytes = parsed.SerializeToString()
    return found


@pytest.mark.parametrize("nodes", [PLACES, NESTED])
def test_the_data_cut_what_a_branch_does(nodes: str) -> None:
    read = model(nodes)
    reference = onnxruntime.InferenceSession(read)
    executable = compile_model(read, keep=False)
    assert isinstance(executable, GuardedModel)
    for rows in (5, 2, 7):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2) % 3
        for go in (True, False):
            given = {"x": x, "go": np.array(go)}
            (expected,) = reference.run(None, given)
            (found,) = executable.run(given)
            np.testing.assert_allclose(found, expected)
    assert executable.reasons == ()  # programs serve ranges, in the branch as well


SQUEEZED = """
    shape = Shape (x) first = Constant <value_ints = [0]> () count = Gather (shape, zero)
    single = Equal (count, one)
    y = If (single) <
        then_branch = squeeze () => (float[a] flat) { flat = Squeeze (x, first) },
        else_branch = same () => (float[b, c] whole) { whole = Identity (x) }>
"""
MANY = SQUEEZED.replace("Equal (count, one)", "Greater (count, six)").replace(
    "flat = Squeeze (x, first)", "flat = Concat <axis = 0> (x, x)"
)


@pytest.mark.parametrize(
    ("nodes", "served"), [(SQUEEZED, "2..4096"), (MANY.replace("[a]", "[a, d]"), "7..4096")]
)
def test_sizes_that_choose_a_branch_split_the_default_range(nodes: str, served: str) -> None:
    """As exporters write squeeze: of a dimension whose extent is 1, or another."""
    read = model(nodes, "float[n, 2] x")
    reference = onnxruntime.InferenceSession(read)
    executable = compile_model(read, dims={"n": "@9"}, keep=False)
    assert isinstance(executable, GuardedModel) and executable.ranged is not None
    (rows,) = executable.ranged.dimensions
    assert rows.range_text == served
    for count in (9, 1, 3, 8):
        x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
        np.testing.assert_array_equal(executable.run([x])[0], reference.run(None, {"x": x})[0])
    assert executable.programs == 2
    assert len(executable.made) == (1 if nodes is SQUEEZED else 0)
