"""The limit with which `show kernels` compares kernels."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.service.devices import SPEEDS, FakeDevice
from tests.unit.service.test_notebook import text_of
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.intervals import pieces
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.targets.host import resolve_target
from tilewright.service.jobs.evidence.end_to_end import FixedSchedules
from tilewright.service.jobs.plan.planning import (
    ModelRequest,
    Planned,
    plan_first_sizes,
    plan_model,
)
from tilewright.service.jobs.report.explain import explain
from tilewright.service.jobs.report.shown_sizes import LONG_RUN, shown_sizes


def product(op: str, rows: int | str = 16) -> bytes:
    """(16, 64) by a constant (64, 32), of float32 or of bytes."""
    kind, stored = (TensorProto.FLOAT, np.float32) if op == "MatMul" else (TensorProto.UINT8, "i1")
    graph = helper.make_graph(
        [helper.make_node(op, ["a", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("a", kind, [rows, 64])],
        [helper.make_value_info("y", helper.make_tensor_type_proto(kind_of(op), [rows, 32]))],
        [numpy_helper.from_array(np.ones((64, 32), stored), "w")],
    )
    opsets = [helper.make_opsetid("", 13)]
    return bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())


def nibbles(level: int) -> bytes:
    """(16, 64) by 4-bit weights (32, 64) in blocks of 32; at level 4 of activations of int8."""
    weight = np.full((32, 2, 16), 0x9A, np.uint8)
    sizes = {"K": 64, "N": 32, "bits": 4, "block_size": 32, "accuracy_level": level}
    graph = helper.make_graph(
        [helper.make_node("MatMulNBits", ["a", "w", "s"], ["y"], domain="com.microsoft", **sizes)],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [16, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 32])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.ones((32, 2), np.float32), "s"),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString())


@pytest.mark.parametrize(("level", "at_once"), [(0, 1), (4, 4)])
def test_weights_of_four_bits_take_as_long_as_what_they_are_multiplied_as(
    level: int, at_once: int
) -> None:
    planned = plan_model(ModelRequest(nibbles(level), Mode(resolve_target("cascadelake"))))
    (report,) = explain(planned, None, FakeDevice())
    (kernel,) = (k for k in report.kernels if k.schedule.algorithm == "blocks")
    assert kernel.executed_flops == 2 * 16 * 64 * 32
    assert kernel.bound is not None
    expected = kernel.executed_flops / at_once / SPEEDS.flops_per_second
    assert kernel.bound.compute_seconds == pytest.approx(expected)


def kind_of(op: str) -> int:
    return int(TensorProto.FLOAT if op == "MatMul" else TensorProto.INT32)


@pytest.mark.parametrize(("op", "at_once"), [("MatMul", 1), ("MatMulInteger", 4)])
def test_a_group_of_products_takes_as_long_as_one(op: str, at_once: int) -> None:
    """The peak is that of float32: a kernel of bytes would be beyond it."""
    planned = plan_model(ModelRequest(product(op), Mode(resolve_target("cascadelake"))))
    (report,) = explain(planned, None, FakeDevice())
    (kernel,) = report.kernels
    assert kernel.executed_flops == 2 * 16 * 64 * 32
    assert kernel.bound is not None
    expected = kernel.executed_flops / at_once / SPEEDS.flops_per_second
    assert kernel.bound.compute_seconds == pytest.approx(expected)


def ranged(rows: str) -> Planned:
    request = ModelRequest(product("MatMul", "rows"), Mode(resolve_target("cascadelake")))
    return plan_first_sizes(request, {"rows": (rows,)})


def test_of_a_range_each_size_has_its_kernel() -> None:
    planned = ranged("1..512")
    (step,) = planned.served_plan.kernels
    few = next(p for p in pieces(step.workload) if 22 in p.box[0])
    space = schedule_space(few.workload, Mode(planned.target))
    default = schedule_space(step.workload, Mode(planned.target)).default()
    other = next(s for s in space if s != default)
    source = FixedSchedules({few.workload.key: other})
    at_few, at_many = explain(planned, source, FakeDevice())
    assert (at_few.sizes, at_many.sizes) == ({"rows": 22}, {"rows": 512})
    (first,), (second,) = at_few.kernels, at_many.kernels
    assert (first.serves, second.serves) == ({"rows": "17..128"}, {"rows": "129..512"})
    assert first.schedule == other != second.schedule
    assert first.tuned and not second.tuned and first.number < second.number
    shown = text_of(at_few)
    assert "rows=22" in shown and "rows 17..128" in shown and "tuning" in shown
    for kernel, rows in ((first, 22), (second, 512)):
        assert kernel.flops == kernel.executed_flops == 2 * rows * 64 * 32
        assert kernel.value_bytes == 4 * rows * (64 + 32)
        assert kernel.seconds == at_few.seconds == 1.0


def test_a_kernel_for_all_sizes_says_of_none() -> None:
    reports = explain(ranged("1..512@7,300"), None, FakeDevice())
    assert [report.sizes for report in reports] == [{"rows": 7}, {"rows": 300}]
    kernels = [kernel for report in reports for kernel in report.kernels]
    assert [(k.number, k.serves, k.tuned) for k in kernels] == [(1, {}, False)] * 2
    assert kernels[0].nest == kernels[1].nest


def test_the_largest_sizes_are_those_that_a_run_stays_short_at() -> None:
    per_row = 2 * 64 * 32
    assert shown_sizes(ranged("1..40000000")) == [{"rows": 128}, {"rows": 71554}]
    assert 71554 * per_row <= LONG_RUN < 40000000 * per_row
    assert shown_sizes(ranged("3..4")) == [{"rows": 3}, {"rows": 4}]
    assert shown_sizes(plan_model(ModelRequest(product("MatMul")))) == [{}]
    assert shown_sizes(ranged("3..40@9,7")) == [{"rows": 9}, {"rows": 7}]
