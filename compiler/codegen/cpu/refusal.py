"""Types that a target cannot compute in, refused before LLVM aborts on them or never ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.dtypes import DType
from compiler.errors import CompilerError
from compiler.loops.expr import Cast, Expr, Fold, Op, walk
from compiler.loops.nest import Compute, For, LoopNest, Node
from compiler.target import Target


def check_types(nest: LoopNest, target: Target) -> None:
    """Refuse a nest that computes in a type that the target has no instructions for.

    Loading, permuting and storing elements of such a type is allowed.

    Raises:
        CompilerError: naming target and type.
    """
    if not target.not_computed:
        return
    for stage in nest.stages:
        for dtype in _computed(stage.body):
            if dtype in target.not_computed:
                raise CompilerError(f"target '{target.name}' cannot compute in {dtype}")


def _computed(body: Sequence[Node]) -> Iterator[DType]:
    for node in body:
        match node:
            case For():
                yield from _computed(node.body)
            case Compute():
                if node.combiner is not None:
                    yield node.body.dtype
                for expr in _expressions(node):
                    yield from _types(expr)


def _expressions(compute: Compute) -> Iterator[Expr]:
    yield compute.body
    yield from (store.value for store in compute.stores)
    if compute.init is not None:
        yield compute.init
    if isinstance(compute.combiner, Fold):
        yield from compute.combiner.joined


def _types(expr: Expr) -> Iterator[DType]:
    """The types that operations and conversions of an expression take and give."""
    for node in walk(expr):
        match node:
            case Op(args=args):
                yield node.dtype
                yield from (arg.dtype for arg in args)
            case Cast(value=value):
                yield node.dtype
                yield value.dtype
            case _:
                pass
