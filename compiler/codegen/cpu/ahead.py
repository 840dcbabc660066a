"""Early loads for in-order cores: each load is emitted several multiply-adds before its use.

    x0 = load; sum += x0 * w          x0 = load; x1 = load; sum += x0 * w
    x1 = load; sum += x1 * w    ->    x2 = load; sum += x1 * w
    x2 = load; sum += x2 * w          sum += x2 * w

An in-order core stalls when it uses a value whose load is not complete. LLVM's scheduler cannot
move loads ahead, because its register allocator reuses each register as soon as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compiler.codegen.cpu.context import Context, RegisterBudget
from tilewright.compiler.codegen.cpu.memory import Loader
from tilewright.compiler.codegen.cpu.order import is_in_order
from tilewright.compiler.codegen.cpu.points import Point, Points
from tilewright.compiler.codegen.cpu.quads import PAIR, quads
from tilewright.compiler.codegen.cpu.resolve import Access, Accesses
from tilewright.compiler.loops.expr import Space

_DISTANCES = (12, 8, 6, 4, 2)
"""Possible distances between a load and its use, in multiply-adds. The first distance for which the
registers suffice is used. The latency of a load is three to five cycles."""

_OTHERS = 3
"""Number of registers reserved for the operands of the operations on complete sums: a bias and two
limits."""


def loads_ahead(
    context: Context,
    budget: RegisterBudget,
    accesses: Accesses,
    points: Points,
    order: Sequence[Point],
) -> Callable[[int], None]:
    """Return a function that emits a register tile's loads some multiply-adds before their use.

    The caller calls the function with each position in `order` before it emits the computation
    there; the function then emits the loads for an entry a few positions later. It does nothing if
    the core executes out of order, or if too few registers are left.

    Args:
        context: the state of code generation for the stage.
        budget: the number of vector registers, and how many of them hold accumulators.
        accesses: the accesses of the operands.
        points: the points of the register tile: all combinations of indices on its unrolled axes.
        order: the tile points in the order in which they are computed.
    """
    emitter = context.emitter
    found = [
        access
        for access in accesses.values()
        if isinstance(access, Access)
        and access.tensor.space is Space.MEMORY
        and access.base is not None
        and not access.indirect_strides
    ]
    if not is_in_order(emitter.target) or not found:
        return lambda number: None
    held: list[list[tuple[int, ...]]] = [[] for _ in order]
    outer: set[tuple[int, ...]] = set()
    for i, access in enumerate(found):
        together, _ = quads(emitter, budget, access, points)
        is_inner = access.base is not None and access.base.depth >= emitter.depth
        for number, point in enumerate(order):
            place, *others = access.place(point)
            key = (i, together.get(place, place), *others)
            if is_inner:
                held[number].append(key)
            else:
                outer.add(key)
    room = budget.registers - budget.accumulators - len(outer) - _OTHERS
    if any(access.is_vector and not access.contiguous for access in found):
        room -= PAIR  # the vectors that are permuted
    distance = next((d for d in _DISTANCES if _most_held(held, d) <= room), 0)
    if not distance:
        return lambda number: None
    loaders = [Loader(context, budget, access, points) for access in found]

    def ahead(number: int) -> None:
        first = 0 if number == 0 else number + distance
        for point in order[first : number + distance + 1]:
            for loader in loaders:
                loader(point)

    return ahead


def _most_held(held: Sequence[Sequence[tuple[int, ...]]], distance: int) -> int:
    """Return the maximum number of loaded values that are in registers at the same time.

    A value is in a register from its load to its last use.

    Args:
        held: the keys of the values that each step uses, in the order of the steps.
        distance: the number of steps between the load of a value and its first use.
    """
    last = {key: number for number, keys in enumerate(held) for key in keys}
    live: set[tuple[int, ...]] = set()
    most = 0
    for number in range(-distance, len(held)):
        if number + distance < len(held):
            live.update(held[number + distance])
        most = max(most, len(live))
        if number >= 0:
            live -= {key for key in held[number] if last[key] == number}
    return most
