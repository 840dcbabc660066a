"""Sizes and types that models that are cut meet where they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.integration.test_segments import BOOL, FLOAT, Info, agrees, model, staged
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.errors import InvalidInputError, ModelWarning, OutOfMemoryError
from tilewright.compiler.runtime.artifact import load_artifact
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.specialise.jit import SegmentCompiler
from tilewright.service.jobs.evidence.end_to_end import FixedSchedules
from tilewright.service.jobs.pipeline.tuning import build_artifact
from tilewright.service.jobs.plan.planning import ModelRequest
from tilewright.service.jobs.plan.segment_planning import plan_programs


def chosen(x: Info, mark: Info) -> onnx.ModelProto:
    """The elements of one input whose places in the other one are not 0."""
    node = helper.make_node
    nodes = [
        node("NonZero", [mark[0]], ["found"]),
        node("Transpose", ["found"], ["rows"], perm=[1, 0]),
        node("GatherND", [x[0], "rows"], ["values"]),
    ]
    return model(nodes, list(dict.fromkeys((x, mark))), ["values"])


def test_more_places_than_a_dimension_can_have_are_a_range_without_an_end() -> None:
    x = ("x", FLOAT, ("a", "b", "c", "d"))  # 4096 ** 4 places
    proto = chosen(x, x)
    made = staged(proto)
    for extent in (2, 3):
        agrees(made, proto, x=np.ones((2, extent, 1, 2), np.float32))
    assert made.reasons == ()
    assert made.programs == 2


def test_one_name_for_two_sizes_is_two_dimensions() -> None:
    """Exporters gave the inputs of unlike extents one name ('N') in 2021."""
    proto = chosen(("x", FLOAT, ("n", 2)), ("mark", BOOL, ("n",)))
    made = staged(proto)
    x, mark = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([False, True, True])
    with pytest.warns(ModelWarning, match=r"the sizes of 'mark\[0\]' differ"):
        agrees(made, proto, x=x, mark=mark)
    agrees(made, proto, x=x, mark=mark[:2])  # the warning is not repeated
    agrees(made, proto, x=x[:3], mark=mark)
    ranged = staged(proto, dims={"n": "1..4"})
    with pytest.raises(InvalidInputError, match=r"'mark': dimension 0 .* is 3, input 'x' has 5"):
        ranged.run({"x": x, "mark": mark})


def test_sizes_that_are_extents_stay_so_behind_a_cut() -> None:
    """A shape is computed before a second cut and used behind it, as Faster R-CNN does."""
    node = helper.make_node
    proto = model(
        [
            node("NonZero", ["mark"], ["found"]),
            node("Squeeze", ["found", "first"], ["places"]),
            node("Gather", ["x", "places"], ["rows"], axis=0),
            node("Shape", ["rows"], ["rows_shape"]),
            node("Gather", ["rows_shape", "first"], ["count"], axis=0),
            node("Concat", ["count", "two", "rest"], ["shape"], axis=0),
            node("NonZero", ["rows"], ["others"]),
            node("Shape", ["others"], ["others_shape"]),
            node("Cast", ["others_shape"], ["numbers"], to=FLOAT),
            node("ReduceSum", ["numbers"], ["sum"], keepdims=0),
            node("Add", ["rows", "sum"], ["moved"]),
            node("Reshape", ["moved", "shape"], ["y"]),
        ],
        [("x", FLOAT, ("n", 4)), ("mark", BOOL, ("n",))],
        ["y"],
        first=np.array([0]),
        two=np.array([2]),
        rest=np.array([-1]),
    )
    made = staged(proto)
    for count in (5, 2, 9):
        x = np.random.default_rng(count).standard_normal((count, 4)).astype(np.float32)
        x[0, 1] = 0
        agrees(made, proto, x=x, mark=np.arange(count) % 3 > 0)
    assert made.reasons == ()
    assert made.programs == 3


def test_bfloat16_is_taken_by_its_name_and_as_bits() -> None:
    made = staged(chosen(("x", TensorProto.BFLOAT16, ("n",)), ("mark", BOOL, ("n",))))
    x, mark = np.arange(4, dtype=ml_dtypes.bfloat16), np.array([True, False, True, True])
    wanted = x[mark].view(np.uint16)
    for given in (x, x.view(np.uint16)):
        (values,) = made.run({"x": given, "mark": mark})
        assert values.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(values, x[mark])
    session = made.bind({"values": "x"}, initial={"x": x})
    np.testing.assert_array_equal(session.state("x"), x.view(np.uint16))
    session.run({"mark": mark})
    np.testing.assert_array_equal(session.state("x"), wanted)


def two_counts() -> onnx.ModelProto:
    """A sum of the positions of two selections: as many each time, or one."""
    node = helper.make_node
    return model(
        [
            node("NonZero", ["a"], ["ones"]),
            node("NonZero", ["b"], ["others"]),
            node("Add", ["ones", "others"], ["sum"]),
        ],
        [("a", FLOAT, (9,)), ("b", FLOAT, (9,))],
        ["sum"],
    )


@pytest.mark.skipif(not linkers(), reason="no linker")
def test_a_run_that_contradicts_itself_costs_the_next_ones_nothing(tmp_path: Path) -> None:
    proto = two_counts()
    plans = plan_programs(ModelRequest(proto.SerializeToString()), {})
    build_artifact(plans, FixedSchedules({}), tmp_path / "a")
    loaded = load_artifact(tmp_path / "a")
    assert isinstance(loaded, GuardedModel)

    def first(count: int) -> np.ndarray:
        return (np.arange(9) < count).astype(np.float32)

    for made in (loaded, staged(proto)):
        agrees(made, proto, a=first(3), b=first(3))
        programs = made.programs
        with pytest.raises(InvalidInputError, match="for the values that the data determine"):
            made.run({"a": first(4), "b": first(5)})
        for count in (3, 7):
            agrees(made, proto, a=first(count), b=first(count))
        assert made.programs == programs
    agrees(made, proto, a=first(1), b=first(4))  # a program for these sizes alone
    assert made.programs == programs + 1


def test_no_program_is_left_out_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = SegmentCompiler._compiled

    def scarce(self: Any, cut: Any, facts: Any, values: Any) -> Any:
        if facts.sizes:  # none of them is chosen, behind the cut
            raise OutOfMemoryError("there is not enough memory to compile the model")
        return compiled(self, cut, facts, values)

    monkeypatch.setattr(SegmentCompiler, "_compiled", scarce)
    proto = chosen(("x", FLOAT, (4,)), ("mark", BOOL, (4,)))
    with pytest.raises(OutOfMemoryError):
        plan_programs(ModelRequest(proto.SerializeToString()), {})
