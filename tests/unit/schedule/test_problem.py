"""Workloads as one expression: the origin of their loops."""

from __future__ import annotations

import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.graph.ir import AttrValue
from tilewright.compiler.schedule.problem import anchor


@pytest.mark.parametrize(
    ("op", "attrs"),
    [("matmul", {}), ("softmax", {"axis": -1}), ("reduce_sum", {"axes": (1,), "keepdims": 1})],
)
def test_the_anchor_is_what_decides_the_loops_wherever_it_stands(
    op: str, attrs: dict[str, AttrValue]
) -> None:
    make = Maker()
    operands = [make("sqrt", make.input("a", 4, 6))]
    if op == "matmul":
        operands.append(make.input("b", 6, 8))
    found = anchor(as_workload(make.graph(make("exp", make(op, *operands, **attrs)))))
    assert found is not None and found.op == op


def test_elementwise_operators_have_no_anchor() -> None:
    make = Maker()
    y = make("exp", make("sqrt", make.input("a", 4, 6)))
    assert anchor(as_workload(make.graph(y))) is None
