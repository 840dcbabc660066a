"""Stages behind a cut: the nodes of a branch in place of its If, and lists of values."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import tilewright
from tilewright.compiler.errors import UnsupportedOperatorError
from tilewright.compiler.frontend.nodes import subgraph
from tilewright.compiler.frontend.order import reads
from tilewright.compiler.frontend.segments import inlined_branch


def test_values_of_a_body_that_are_called_as_some_of_its_branch_stay_its_own() -> None:
    graph = onnx.parser.parse_graph("""
    choice (float[n, 2] x, bool go) => (float[a, b] y) {
        y = If (go) <
            then_branch = sums () => (float[c, d] found) {
                turned = Relu (x) more = Neg (x)
                found = Scan <num_scan_inputs = 1,
                    body = each (float[2] turned) => (float[2] sum)
                        <float[2] found = {2, 2}>
                        { one = Mul (turned, found) sum = Add (one, more) }> (turned) },
            else_branch = none () => (float[e, f] other) { other = Identity (x) }> }
    """)
    (node,) = graph.node
    made = inlined_branch(subgraph(node, "then_branch", "choice"), node, "choice")
    assert [list(reads(each)) for each in made.node[2:]] == [
        ["choice/turned", "choice/more"],
        ["choice/found"],
    ]


LENGTHS = """
    <ir_version: 8, opset_import: ["" : 17]>
    sequences (float[1] v, int64 n) => (float[m] y) <int64[1] one = {1}> {
        more = Neg (v)
        start = {START}
        all = Loop (n, , start) <body = each (int64 i, bool go, seq(float[k]) before)
            => (bool on, seq(float[k]) after) {
            on = Identity (go)
            length = Add (i, one)
            row = Expand (v, length)
            after = SequenceInsert (before, row)
        }>
        y = ConcatFromSequence <axis = 0> (all)
    }
"""


@pytest.mark.parametrize("start", ["SequenceEmpty ()", "SequenceConstruct (v, more, more)"])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_sequence_crosses_a_cut_as_its_elements(start: str, steps: int) -> None:
    """The run decides here how often a loop inserts; the list is known before."""
    model = onnx.parser.parse_model(LENGTHS.replace("{START}", start))
    inputs = {"v": np.array([1.5], np.float32), "n": np.array(steps)}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    (found,) = tilewright.compile_model(model).run(inputs)
    np.testing.assert_array_equal(found, expected)


WAITING = """
    <ir_version: 8, opset_import: ["" : 17]>
    behind (float[4] x, int64[1] n) => (float[m] y) {
        k, places = TopK (x, n)
        drawn = {NODE} (k)
        y = Add (k, drawn)
    }
"""


def test_what_no_run_could_import_is_refused_by_the_compile() -> None:
    model = onnx.parser.parse_model(WAITING.replace("{NODE}", "Imagined"))
    with pytest.raises(UnsupportedOperatorError, match=r"Imagined .* is not implemented"):
        tilewright.compile_model(model)


def test_numbers_of_a_seed_may_stand_behind_a_cut() -> None:
    model = onnx.parser.parse_model(WAITING.replace("{NODE}", "RandomNormalLike <seed = 2.0>"))
    inputs = {"x": np.array([1, 0, 2, 3], np.float32), "n": np.array([3])}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    (found,) = tilewright.compile_model(model).run(inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_numbers_of_no_seed_may_stand_behind_a_cut() -> None:
    model = onnx.parser.parse_model(WAITING.replace("{NODE}", "RandomUniformLike"))
    executable = tilewright.compile_model(model)
    inputs = {"x": np.array([1, 0, 2, 3], np.float32), "n": np.array([3])}
    (first,), (second,) = executable.run(inputs), executable.run(inputs)
    above = first - np.array([3, 2, 1])
    assert above.min() >= 0 and above.max() < 1 and (first != second).all()
