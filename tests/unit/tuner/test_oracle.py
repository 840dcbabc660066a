"""Inputs that references are made for."""

from __future__ import annotations

from compiler.dtypes import DType
from tests.graphs import Maker
from tests.kernels import as_workload
from tuner.measure.oracle import input_specs


def test_positions_in_tables_of_trees_reach_every_record() -> None:
    make = Maker()
    places = make.input("places", 30, 40, dtype=DType.INT32)
    x = make.input("x", 30, 5)
    columns, following = (
        make.input(name, 300, dtype=DType.INT32) for name in ("columns", "following")
    )
    thresholds = make.input("thresholds", 300)
    workload = as_workload(make.graph(make("descend", places, x, columns, thresholds, following)))
    drawn = [spec.draw() for spec in input_specs(workload)]
    arrays = dict(zip(workload.graph.inputs, drawn, strict=True))
    (node,) = workload.graph.nodes
    for name, bound in zip(node.inputs, (300, None, 5, None, 300), strict=True):
        if bound is not None:
            found = arrays[name]
            assert 0 <= found.min() < bound // 4
            assert 3 * bound // 4 < found.max() < bound
