"""From logical indices to addresses: bounds, division by layouts, guards."""

from __future__ import annotations

import pytest

from tilewright.compiler.codegen.cpu.access import (
    Bound,
    Kind,
    Linear,
    Padding,
    Variable,
    alignment,
    bind,
    divide,
    locate,
)
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Space, Tensor
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.targets.host import resolve_target

TARGET = resolve_target("x86-64-v4")


def runtime(count: int, name: str = "%i", depth: int = 0) -> Variable:
    return Variable(Kind.RUNTIME, count, Value(name, DType.INT64, 1, depth))


def unrolled(count: int) -> Variable:
    return Variable(Kind.UNROLLED, count)


def lane(count: int) -> Variable:
    return Variable(Kind.LANE, count, lanes=count)


def values(form: Linear) -> list[int]:
    """The form at every combination of its variables' values."""
    results = [form.constant]
    for variable, coefficient in form.terms.items():
        points = [n // variable.divisor for n in range(variable.count * variable.divisor)]
        results = [r + coefficient * p for r in results for p in sorted(set(points))]
    return sorted(results)


def test_forms_add_and_cancel() -> None:
    i = runtime(4)
    form = Linear({i: 3}, 1)
    form.add(Linear({i: -1}, 2), 3)
    assert (form.terms, form.constant) == ({}, 7)


def test_bounds() -> None:
    i, j = runtime(4), unrolled(3)
    assert Linear({i: 2, j: -5}, 1).bounds() == (-9, 7)
    ragged = Variable(Kind.LANE, 3, lanes=8)
    assert Linear({ragged: 1}).bounds() == (0, 2)
    assert Linear({ragged: 1}).bounds(whole_vectors=True) == (0, 7)


def test_bind_leaves_out_axes_of_one_iteration() -> None:
    i = runtime(5)
    axis, single = Axis("i", 10), Axis("one", 1)
    form = bind(Emitter(TARGET), {axis: Bound(Linear({i: 2}), 2)}, axis * 3 + single * 7 + 1)
    assert (form.terms, form.constant) == ({i: 6}, 1)


def test_a_remainder_is_known_to_end_at_its_divisor() -> None:
    """2 (i - 8 (i // 8)), of which the range of each term alone would allow -16."""
    axis = Axis("i", 16)
    form = bind(Emitter(TARGET), {axis: Bound(Linear({runtime(16): 1}), 1)}, axis % 8 * 2 + 1)
    assert form.bounds() == (1, 15)


def test_division_that_ranges_prove_costs_nothing() -> None:
    """(16 i + lane) by 16: i and lane."""
    emitter, i, v = Emitter(TARGET), runtime(9), lane(16)
    quotient, rest = divide(emitter, Linear({i: 16, v: 1}, 32), 16)
    assert (quotient.terms, quotient.constant) == ({i: 1}, 2)
    assert (rest.terms, rest.constant) == ({v: 1}, 0)
    assert emitter.lines == []


def test_division_of_lanes_by_less_than_their_number() -> None:
    """lane // 4 stands for lanes; together they are the lane again."""
    quotient, rest = divide(Emitter(TARGET), Linear({lane(16): 1}), 4)
    ((part, coefficient),) = quotient.terms.items()
    assert (part.kind, part.divisor, part.count, coefficient) == (Kind.LANE, 4, 4, 1)
    assert rest.terms[part] == -4


def test_division_at_run_time() -> None:
    emitter, i = Emitter(TARGET), runtime(9)
    quotient, rest = divide(emitter, Linear({i: 3}, 1), 16)
    assert any("udiv" in line for line in emitter.lines)
    assert quotient.bounds() == (0, 1)
    assert rest.bounds() == (0, 15)


def test_division_at_run_time_keeps_tiles_and_lanes() -> None:
    """(4 i + j) by 8, j in [0, 4): i // 2, and 4 (i % 2) + j."""
    emitter, i, j = Emitter(TARGET), runtime(6), unrolled(4)
    quotient, rest = divide(emitter, Linear({i: 4, j: 1}), 8)
    over, left = emitter.lines[-2:]
    assert "udiv" in over
    assert over.endswith(", 2")
    assert "urem" in left
    assert left.endswith(", 2")
    assert sorted(rest.terms.values()) == [1, 4]
    assert values(rest) == list(range(8))
    assert quotient.bounds()[0] == 0


def test_a_tile_across_blocks_is_refused() -> None:
    with pytest.raises(ScheduleError, match="does not align with the layout"):
        divide(Emitter(TARGET), Linear({runtime(6): 3, unrolled(3): 1}), 8)
    with pytest.raises(ScheduleError, match="does not align with the layout"):
        divide(Emitter(TARGET), Linear({unrolled(20): 1}), 8)


def test_address_in_a_blocked_layout_with_a_halo() -> None:
    """x[c, h] of shape (32, 5) in blocks of 16, one row of halo before: bytes from the start."""
    c, h = Axis("c", 32), Axis("h", 5)
    x = Tensor("x", (32, 5), layout=blocked(2, 0, 16), halo=((0, 0), (1, 2)))
    i, j = runtime(2), unrolled(5)
    environment = {c: Bound(Linear({i: 16}), 16), h: Bound(Linear({j: 1}), 1)}
    address = locate(Emitter(TARGET), environment, x[c, h], Padding.READ)
    assert address.offset.terms == {i: 8 * 16 * 4, j: 16 * 4}
    assert address.offset.constant == 16 * 4
    assert address.guards == ()
    assert alignment(address.offset, 64) == 64


@pytest.mark.parametrize(
    ("padding", "shift", "guarded"),
    [
        (Padding.READ, 1, False),
        (Padding.READ, 2, True),
        (Padding.SKIP, 1, True),
        (Padding.NEVER, 1, True),
        (Padding.NEVER, 0, False),
    ],
)
def test_guards_of_static_points(padding: Padding, shift: int, guarded: bool) -> None:
    """Reading one element before the tensor is fine in its halo, unless halos are to be skipped."""
    w = Axis("w", 4)
    x = Tensor("x", (4,), halo=((1, 0),))
    environment = {w: Bound(Linear({unrolled(4): 1}), 1)}
    address = locate(Emitter(TARGET), environment, x[w - shift], padding)
    assert bool(address.guards) == guarded


def test_run_time_reads_of_a_halo_are_not_skipped() -> None:
    """SKIP leaves out the constants; at run time the zeros are read."""
    w = Axis("w", 4)
    x = Tensor("x", (4,), halo=((1, 0),))
    environment = {w: Bound(Linear({runtime(4): 1}), 1)}
    assert not locate(Emitter(TARGET), environment, x[w - 1], Padding.SKIP).guards
    assert locate(Emitter(TARGET), environment, x[w - 1], Padding.NEVER).guards


def test_clipped_variables_and_registers_need_no_guards() -> None:
    k = Axis("k", 9)
    clipped = Variable(Kind.RUNTIME, 9, Value("%k", DType.INT64, 1, 1), clipped=True)
    environment = {k: Bound(Linear({clipped: 1}), 1)}
    x = Tensor("x", (4,))
    register = Tensor("r", (4,), space=Space.REGISTER)
    for tensor in (x, register):
        assert not locate(Emitter(TARGET), environment, tensor[k - 3], Padding.READ).guards
