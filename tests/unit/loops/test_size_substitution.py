"""Loop nests at sizes of their open dimensions: the resulting sizes, axes and indices."""

from __future__ import annotations

import pytest

from tilewright.compiler import sizes
from tilewright.compiler.loops import size_substitution
from tilewright.compiler.loops.expr import Role, Tensor
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Stage, Store
from tilewright.compiler.sizes import Dimension, dynamic_size

N = Dimension("n", 1, 40)


def copy(rows: int, columns: int) -> LoopNest:
    """A copy whose axes have one name."""
    outer, inner = Axis("i", rows), Axis("i", columns)
    x = Tensor("x", (rows, columns))
    y = Tensor("y", (rows, columns), role=Role.OUTPUT)
    compute = Compute(stores=(Store(y[outer, inner], x[outer, inner]),), body=x[outer, inner])
    body = For(outer, 1, (For(inner, 1, (compute,)),))
    return LoopNest("copy", (x, y), (), (Stage("copy", (body,)),))


def test_axes_of_one_name_stay_apart_where_they_come_to_have_one_extent() -> None:
    nest = copy(dynamic_size(N), 8)
    assert [axis.name for axis in nest.at({"n": 7}).axes] == ["i", "i"]
    closed = nest.at({"n": 8})
    assert closed.axes == (Axis("i", 8), Axis("i'", 8))
    assert all(tensor.shape == (8, 8) for tensor in closed.buffers)


def test_an_axis_of_one_value_leaves_the_indices() -> None:
    closed = copy(dynamic_size(N), 8).at({"n": 1})
    (compute,) = closed.computes
    assert [str(index) for index in compute.stores[0].target.index] == ["0", "i"]


def test_a_nest_without_open_sizes_is_itself() -> None:
    nest = copy(3, 8)
    assert nest.at({}) is nest


def test_each_size_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many places have it: a search closes hundreds of nests."""
    asked: list[int] = []

    def at(size: int, values: object) -> int:
        asked.append(size)
        return sizes.at(size, values)  # type: ignore[arg-type]

    monkeypatch.setattr(size_substitution, "at", at)
    rows = dynamic_size(N)
    copy(rows * 3, rows + 1).at({"n": 5})
    assert len(asked) == len(set(asked)) == 2


def test_sizes_that_a_dimension_cannot_have_are_refused() -> None:
    with pytest.raises(ValueError, match="n"):
        copy(dynamic_size(N), 8).at({"n": 41})
    with pytest.raises(KeyError):
        copy(dynamic_size(N), 8).at({})
