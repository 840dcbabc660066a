"""Checks on the stores of a `Compute`: whether they may be delayed, and are independent."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.codegen.cpu.context import Context
from tilewright.compiler.codegen.cpu.order import is_in_order
from tilewright.compiler.loops.expr import Load, Space, walk
from tilewright.compiler.loops.nest import Store
from tilewright.compiler.sizes import is_dynamic


def may_be_delayed(context: Context, stores: Sequence[Store]) -> bool:
    """Return whether all results of a register tile should be computed before the first is stored.

    This is faster on in-order cores: each result stays in the register of its sum, so that the
    operations on several results overlap. Results that are stored immediately all use the same
    register in turn. The function returns false for several stores, whose results would need too
    many registers. It also returns false if the stored value is computed from the stored tensor.
    """
    if not is_in_order(context.emitter.target) or len(stores) != 1:
        return False
    (store,) = stores
    read = {node.tensor.name for node in walk(store.value) if isinstance(node, Load)}
    return store.target.tensor.name not in read


def are_independent(stores: Sequence[Store]) -> bool:
    """Return whether several stores are independent; false for a single store.

    Stores are independent if no store's value reads an element that another store writes for the
    same indices of the unrolled axes.
    """
    written = [store.target for store in stores]
    read = [
        {
            node
            for node in walk(store.value)
            if isinstance(node, Load) and node not in written[i : i + 1]
        }
        for i, store in enumerate(stores)
    ]
    return len(stores) > 1 and all(
        _is_elsewhere(load, target)
        for i, found in enumerate(read)
        for load in found
        for j, target in enumerate(written)
        if i != j
    )


def _is_elsewhere(load: Load, target: Load) -> bool:
    """Return whether a load and a store to `target` never access the same element.

    Both are compared for the same indices of the unrolled axes.
    """
    if load.tensor.name != target.tensor.name:
        return True
    if load.indirect or target.indirect or load.tensor.space is not Space.MEMORY:
        return False
    gaps = (a - b for a, b in zip(load.index, target.index, strict=True))
    return any(not gap.terms and not is_dynamic(gap.constant) and gap.constant != 0 for gap in gaps)
