"""Merging of adjacent axes."""

from __future__ import annotations

from dataclasses import replace

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue
from tilewright.compiler.loops.expr import IndexValue, Load, Tensor
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.layout import ROW_MAJOR, blocked
from tilewright.compiler.plan.workload import Halo
from tilewright.compiler.schedule.merge import merge_axes
from tilewright.compiler.schedule.problem import Problem, compose


def merged(
    op: str,
    *shapes: tuple[int, ...],
    halo: Halo = (),
    block: int = 0,
    **attrs: AttrValue,
) -> Problem:
    make = Maker()
    inputs = [make.input(f"x{number}", *shape) for number, shape in enumerate(shapes)]
    y = make(op, *inputs, **attrs)
    layout = blocked(4, 1, block) if block else ROW_MAJOR
    places = {name: (layout, halo if name == "x0" else ()) for name in ("x0", y)}
    return merge_axes(compose(as_workload(make.graph(y), (), places)))


def extents(problem: Problem) -> list[int]:
    return [axis.extent for axis in problem.axes]


def test_elementwise_is_one_loop() -> None:
    problem = merged("relu", (2, 3, 5, 7))
    assert extents(problem) == [210]
    assert problem.output.tensor.shape == (210,)
    assert problem.inputs[0].shape == (210,)
    assert problem.inputs[0].bytes == 840


def test_a_broadcast_operand_keeps_its_axis() -> None:
    """(8, 12, 5, 7) + (12, 1, 1): batch, channels, and one axis over the image."""
    problem = merged("add", (8, 12, 5, 7), (12, 1, 1))
    assert extents(problem) == [8, 12, 35]


def test_trailing_broadcast() -> None:
    problem = merged("mul", (4, 6, 10), (10,))
    assert extents(problem) == [24, 10]


def test_axes_of_extent_1_do_not_merge_or_hinder() -> None:
    assert [e for e in extents(merged("relu", (1, 6, 1, 7))) if e > 1] == [6, 7]


def test_transposition_merges_what_stays_together() -> None:
    """(2, 3, 5, 7) to (5, 7, 2, 3): two axes of 35 and 6."""
    assert extents(merged("transpose", (2, 3, 5, 7), perm=(2, 3, 0, 1))) == [35, 6]
    assert extents(merged("transpose", (3, 5, 7), perm=(2, 1, 0))) == [7, 5, 3]


def test_reduced_axes_merge_too() -> None:
    """Rows and columns of each image, and nothing that an axis lies between."""
    problem = merged("reduce_sum", (2, 3, 5, 7), axes=(2, 3), keepdims=0)
    assert extents(problem) == [6]
    assert [axis.extent for axis in problem.reduction.axes] == [35]
    assert problem.inputs[0].shape == (6, 35)
    apart = merged("reduce_max", (2, 3, 5, 7), axes=(1, 3), keepdims=0)
    assert [axis.extent for axis in apart.reduction.axes] == [3, 7]


def test_what_is_read_twice_merges_twice_or_not_at_all() -> None:
    """Layer normalisation reads a row along its reduced axes, and along those of the output."""
    problem = merged("layer_norm", (4, 5, 7), axis=1)
    assert extents(problem) == [4, 5, 7]
    assert all([a.extent for a in r.axes] == [5, 7] for r in problem.reductions)


def test_an_axis_whose_position_counts_stays() -> None:
    problem = merged("arg_max", (4, 5, 7), axis=2, keepdims=0)
    assert extents(problem) == [20]
    (reduction,) = problem.reductions
    assert [axis.extent for axis in reduction.axes] == [7]
    x, first, b = Tensor("x", (4, 5)), Axis("a", 4), Axis("b", 5)
    counted = replace(
        problem,
        axes=(first, b),
        output=Load(Tensor("y", (4, 5), DType.INT64), (affine(first), affine(b))),
        expr=Load(x, (affine(first), affine(b))) + IndexValue(affine(b), DType.FLOAT32),
        inputs=(x,),
    )
    assert merge_axes(counted) == counted


def test_a_halo_keeps_its_rows_apart() -> None:
    halo = ((0, 0), (0, 0), (1, 1), (1, 1))
    assert extents(merged("relu", (2, 3, 5, 7), halo=halo)) == [2, 3, 5, 7]


def test_blocked_images_merge_rows_and_columns() -> None:
    problem = merged("relu", (2, 32, 5, 7), block=16)
    assert extents(problem) == [2, 32, 35]
    assert str(problem.output.tensor.layout) == "0 1/16 2 1%16"


def test_a_slice_merges_where_it_takes_all() -> None:
    """Axes that are read whole merge; one that is cut merges with nothing inside it."""
    problem = merged("slice", (4, 6, 10), starts=(1, 0, 0), sizes=(2, 6, 10))
    assert extents(problem) == [2, 60]
    problem = merged("slice", (4, 6, 10), starts=(0, 0, 2), sizes=(4, 6, 5))
    assert extents(problem) == [24, 5]


def test_a_pointwise_convolution_merges_its_image() -> None:
    one: dict[str, AttrValue] = {
        "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1,
    }  # fmt: skip
    assert extents(merged("conv", (1, 8, 5, 7), (16, 8, 1, 1), **one))[-2:] == [16, 35]
    assert extents(merged("conv", (1, 8, 5, 7), (16, 8, 3, 3), **one))[-2:] == [3, 5]


def test_a_reduced_axis_stands_between() -> None:
    problem = merged("reduce_sum", (4, 6, 5, 7), axes=(1,), keepdims=0)
    assert extents(problem) == [4, 35]
    problem = merged("reduce_sum", (4, 6, 5), axes=(2,), keepdims=0)
    assert extents(problem) == [24]


def test_gathered_rows_do_not_merge_but_their_positions_do() -> None:
    """data[index[i, j], k, l]: the positions lie side by side along i and j."""
    make = Maker()
    data, index = make.input("data", 10, 6, 7), make.input("index", 3, 4, dtype=DType.INT64)
    y = make("gather", data, index, axis=0)
    problem = merge_axes(compose(as_workload(make.graph(y))))
    assert extents(problem) == [12, 6, 7]
