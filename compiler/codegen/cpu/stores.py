"""Checks on the stores of a `Compute`: whether they may be delayed, and are independent."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.codegen.cpu.context import Context
from tilewright.compiler.codegen.cpu.order import is_in_order
from tilewright.compiler.loops.expr import Load, Space, walk
from tilewright.compiler.loops.nest import Store
from tilewright.compiler.sizes import is_dynamic


def may_be_delayed(context: Context, stores: Sequence[Store]) -> bool:
    """Return whether to compute all results of a register tile before storing the first one.

    This is done on in-order cores, for a single store whose value does not read the stored tensor.
    Each result then stays in the register of its sum, so that operations on several results
    overlap. If each result were stored immediately, all results would use one register in turn. The
    results of several stores would need too many registers.
    """
    if not is_in_order(context.emitter.target) or len(stores) != 1:
        return False
    (store,) = stores
    read = {node.tensor.name for node in walk(store.value) if isinstance(node, Load)}
    return store.target.tensor.name not in read


def are_independent(stores: Sequence[Store]) -> bool:
    """Return whether several stores are independent; false for a single store.

    Stores are independent if no store's value reads an element that another one writes at the same
    point.
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
    """Return whether a load and a store to `target` never access the same element at one point."""
    if load.tensor.name != target.tensor.name:
        return True
    if load.indirect or target.indirect or load.tensor.space is not Space.MEMORY:
        return False
    gaps = (a - b for a, b in zip(load.index, target.index, strict=True))
    return any(not gap.terms and not is_dynamic(gap.constant) and gap.constant != 0 for gap in gaps)
