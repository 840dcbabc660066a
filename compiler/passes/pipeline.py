"""The list of graph passes in the order in which they run, and the function that runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.ops.products import HALVES
from tilewright.compiler.passes.algebra import algebra
from tilewright.compiler.passes.attention import attention
from tilewright.compiler.passes.block_quantised_products import block_quantised_products
from tilewright.compiler.passes.bodies import optimise_bodies
from tilewright.compiler.passes.common_subexpressions import common_subexpressions
from tilewright.compiler.passes.constant_folding import constant_folding
from tilewright.compiler.passes.dead_code import dead_code
from tilewright.compiler.passes.dead_taps import dead_taps
from tilewright.compiler.passes.enlarge_last import enlarge_last
from tilewright.compiler.passes.fold_batch_norm import fold_batch_norm
from tilewright.compiler.passes.fold_scale import fold_scale
from tilewright.compiler.passes.gelu import gelu
from tilewright.compiler.passes.integer_activation_products import integer_activation_products
from tilewright.compiler.passes.integer_products import integer_products
from tilewright.compiler.passes.layer_norm import layer_norm
from tilewright.compiler.passes.lookup_tables import lookup_tables
from tilewright.compiler.passes.lower_gemm import lower_gemm
from tilewright.compiler.passes.merge_matmuls import merge_matmuls
from tilewright.compiler.passes.mixed_precision import half_precision_products, mixed_precision
from tilewright.compiler.passes.no_ops import no_ops
from tilewright.compiler.passes.pool_first import pool_first
from tilewright.compiler.passes.quantisation import IntegerFactor, unsigned
from tilewright.compiler.passes.quantise_first import quantise_first
from tilewright.compiler.passes.quantised_activation_products import quantised_activation_products
from tilewright.compiler.passes.quantised_products import quantised_products
from tilewright.compiler.passes.requantised import requantised
from tilewright.compiler.passes.reshapes import reshapes
from tilewright.compiler.passes.transposes import transposes
from tilewright.compiler.passes.widen import multiplied_type, widen
from tilewright.compiler.timings import Timings, timed

Pass = Callable[[Graph], Graph]
Observer = Callable[[str, Graph], None]
"""Called after each pass, with the pass's name and the resulting graph; used by `--dump-after
PASS`."""

PASSES: tuple[Pass, ...] = (
    dead_code,
    block_quantised_products,  # while constant integers are still separate from their scales
    quantised_products,  # while constant integers are still separate from their scales
    integer_products,
    integer_activation_products,
    quantise_first,
    requantised,  # while the operators between two quantisations are unchanged
    lookup_tables,  # while the operators between two quantisations are unchanged
    constant_folding,
    common_subexpressions,
    layer_norm,  # the idioms first: later passes would rewrite their parts
    gelu,
    attention,
    quantised_activation_products,  # products that attention did not match
    lower_gemm,
    fold_batch_norm,
    no_ops,
    dead_taps,
    algebra,
    fold_scale,
    pool_first,
    enlarge_last,
    transposes,
    reshapes,
    merge_matmuls,
)

ROUNDS = 8
"""Maximum number of times that the list of passes runs. It is repeated until the graph no longer
changes."""


def optimise(
    graph: Graph,
    observer: Observer | None = None,
    timings: Timings | None = None,
    without: Collection[str] = (),
    factor: IntegerFactor = unsigned,
    lookup_operations: int | None = None,
    stored: DType = DType.FLOAT32,
    repeated: bool = False,
) -> Graph:
    """Run the passes until the graph no longer changes, then optimise the bodies of control flow.

    The list of passes is repeated at most `ROUNDS` times. The passes also run on the bodies.

    Args:
        graph: the graph.
        observer: called with the name of each pass, and the graph after it.
        timings: counts the time of each pass.
        without: names of passes that do not run.
        factor: maps a stored integer type to the type in which the target multiplies it, or to None
            if the target does not multiply it as an integer.
        lookup_operations: a function with more than this number of cheap operators is replaced by a
            lookup in a table (pass `lookup_tables`). It is the number of cheap operations that take
            as long as the lookup (`Target.lookup_operations`). None if cheap operators are never
            replaced, however many they are.
        stored: the type in which the pass `mixed_precision` stores values. With float32, the pass
            does not run. Bodies of control flow are always optimised with float32. If all products
            of a graph or body have factors of one 16-bit float type, the pass stores values in that
            type instead.
        repeated: whether the graph is the body of a loop. The pass `mixed_precision` then stores
            only factors of products in 16 bits.

    Raises:
        InvalidModelError: if a weight is infinite in the type `stored`.
    """

    def step(made: Pass, graph: Graph, name: str) -> Graph:
        with timed(timings, f"pass {name}"):
            graph = made(graph)
        if observer is not None:
            observer(name, graph)
        return graph

    own = multiplied_type(graph)
    types = {kind.dtype for kind in graph.types.values()}
    halves = [dtype for dtype in HALVES if dtype in types]
    if halves:
        graph = step(partial(widen, own=own), graph, widen.__name__)
    passes = [each for each in PASSES if each.__name__ not in without]
    with_options: dict[Pass, Pass] = {
        integer_products: partial(integer_products, factor=factor),
        quantised_products: partial(quantised_products, factor=factor),
        integer_activation_products: partial(integer_activation_products, factor=factor),
        quantised_activation_products: partial(quantised_activation_products, factor=factor),
        lookup_tables: partial(lookup_tables, lookup_operations=lookup_operations),
    }
    for _ in range(ROUNDS):
        before = graph
        for each in passes:
            graph = step(with_options.get(each, each), graph, each.__name__)
        if graph.nodes == before.nodes:
            break

    def of_body(body: Graph, inner: bool) -> Graph:
        again = repeated or inner
        return optimise(body, None, timings, without, factor, lookup_operations, repeated=again)

    graph = optimise_bodies(graph, of_body)
    narrow_type = own or stored
    last: list[Pass] = [partial(half_precision_products, dtype=dtype) for dtype in halves]
    if narrow_type is not DType.FLOAT32:
        last = [partial(mixed_precision, dtype=narrow_type, repeated=repeated)]
    for each in last:
        graph = step(each, graph, mixed_precision.__name__)
    return graph
