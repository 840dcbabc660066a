"""Rewriting of tensor expressions: replacement of subexpressions, and substitution of axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.compiler.loops.expr import (
    Cast,
    Expr,
    IndexValue,
    Item,
    Items,
    Load,
    Op,
    Reduce,
    Tee,
    children,
)
from tilewright.compiler.loops.index import Affine, Axis


def rebuild(node: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return the node with `change` applied to each direct operand.

    The target of a Tee (a node that also stores its value) stays unchanged.
    """
    match node:
        case Op(operation=operation, args=args):
            return Op(operation, tuple(change(a) for a in args))
        case Cast(value=value, type=dtype):
            return Cast(change(value), dtype)
        case Tee(value=value, target=target):
            return Tee(change(value), target)
        case Items(values=values):
            return Items(tuple(change(v) for v in values))
        case Reduce(combiner=combiner, axes=axes, body=body):
            return Reduce(combiner, axes, change(body))
        case Item(reduction=reduction, number=number):
            changed = change(reduction)
            if isinstance(changed, Items):
                return changed.values[number]
            assert isinstance(changed, Reduce), "a tuple is replaced by a tuple"
            return Item(changed, number)
        case Load(tensor=tensor, index=index, indirect=indirect) if indirect:
            return Load(tensor, index, tuple((d, change(e)) for d, e in indirect))
        case _:
            return node


def rewrite(expr: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild an expression from its leaves up.

    `change` receives each node with its operands rebuilt, and returns its replacement, or None to
    keep the node.
    """

    def visit(node: Expr) -> Expr:
        changed = change(node)
        return node if changed is None else changed

    return _from_leaves(expr, {}, visit)


def substitute(expr: Expr, known: Mapping[Expr, Expr]) -> Expr:
    """Replace the subexpressions that are keys of `known` by their values.

    If a key contains another key, the larger one is replaced.
    """
    return _from_leaves(expr, dict(known), lambda node: node)


def _from_leaves(expr: Expr, memo: dict[Expr, Expr], change: Callable[[Expr], Expr]) -> Expr:
    """Return an expression that is rebuilt from its leaves up; equal nodes are rebuilt once.

    `memo` maps nodes to their replacements. A node that is missing in `memo` is rebuilt from the
    replacements of its operands and passed to `change`. The result is added to `memo`. The function
    is iterative, because a chain of activations is hundreds of operations deep.
    """
    pending = [expr]
    while pending:
        node = pending[-1]
        missing = [child for child in children(node) if child not in memo]
        if node not in memo and missing:
            pending += reversed(missing)
            continue
        pending.pop()
        if node not in memo:
            memo[node] = change(rebuild(node, memo.__getitem__))
    return memo[expr]


def load_at(load: Load, places: Mapping[Axis, Affine]) -> Load:
    """Return a load in which the axes of all indices are replaced by indices.

    `places` maps an axis to its replacement.
    """
    index = tuple(i.substitute(places) for i in load.index)
    return Load(load.tensor, index, tuple((d, reindex(e, places)) for d, e in load.indirect))


def reindex(expr: Expr, places: Mapping[Axis, Affine]) -> Expr:
    """Return an expression in which the axes of all indices are replaced by indices.

    `places` maps an axis to its replacement. The axes of reductions stay the same.
    """

    def change(node: Expr) -> Expr | None:
        match node:
            case Load(tensor=tensor, index=index, indirect=indirect):
                return Load(tensor, tuple(i.substitute(places) for i in index), indirect)
            case IndexValue(index=index, type=dtype):
                return IndexValue(index.substitute(places), dtype)
        return None

    return rewrite(expr, change)
