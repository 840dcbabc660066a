"""The passes, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.ops.products import HALVES
from tilewright.compiler.passes.algebra import algebra
from tilewright.compiler.passes.attention import attention
from tilewright.compiler.passes.block_products import block_products
from tilewright.compiler.passes.bodies import optimise_bodies
from tilewright.compiler.passes.byte_pairs import byte_pairs
from tilewright.compiler.passes.byte_products import byte_products
from tilewright.compiler.passes.byte_tables import byte_tables
from tilewright.compiler.passes.common_subexpressions import common_subexpressions
from tilewright.compiler.passes.constant_folding import constant_folding
from tilewright.compiler.passes.dead_code import dead_code
from tilewright.compiler.passes.dead_taps import dead_taps
from tilewright.compiler.passes.enlarge_last import enlarge_last
from tilewright.compiler.passes.fold_batch_norm import fold_batch_norm
from tilewright.compiler.passes.fold_scale import fold_scale
from tilewright.compiler.passes.gelu import gelu
from tilewright.compiler.passes.layer_norm import layer_norm
from tilewright.compiler.passes.lower_gemm import lower_gemm
from tilewright.compiler.passes.merge_matmuls import merge_matmuls
from tilewright.compiler.passes.narrow import narrow, narrow_products
from tilewright.compiler.passes.no_ops import no_ops
from tilewright.compiler.passes.pool_first import pool_first
from tilewright.compiler.passes.quantisation import ByteFactor, unsigned
from tilewright.compiler.passes.quantise_first import quantise_first
from tilewright.compiler.passes.quantised_pairs import quantised_pairs
from tilewright.compiler.passes.quantised_products import quantised_products
from tilewright.compiler.passes.requantised import requantised
from tilewright.compiler.passes.reshapes import reshapes
from tilewright.compiler.passes.transposes import transposes
from tilewright.compiler.passes.widen import multiplied_type, widen
from tilewright.compiler.timings import Timings, timed

Pass = Callable[[Graph], Graph]
Observer = Callable[[str, Graph], None]
"""Called with a pass's name and the graph after it: `--dump-after PASS`."""

PASSES: tuple[Pass, ...] = (
    dead_code,
    block_products,  # while constant integers are still separate from their scales
    quantised_products,  # while constant integers are still separate from their scales
    byte_products,
    byte_pairs,
    quantise_first,
    requantised,  # while the operators between two quantisations are unchanged
    byte_tables,  # while the operators between two quantisations are unchanged
    constant_folding,
    common_subexpressions,
    layer_norm,  # the idioms first: later passes would rewrite their parts
    gelu,
    attention,
    quantised_pairs,  # products that attention did not match
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
"""The whole list repeats until nothing changes, at most this often."""


def optimise(
    graph: Graph,
    observer: Observer | None = None,
    timings: Timings | None = None,
    without: Collection[str] = (),
    factor: ByteFactor = unsigned,
    stored: DType = DType.FLOAT32,
    repeated: bool = False,
) -> Graph:
    """Run the passes until nothing changes, then optimise the bodies of control flow in the same
    way.

    The list of passes repeats at most `ROUNDS` times.

    Args:
        graph: the graph.
        observer: called with the name of each pass, and the graph after it.
        timings: counts the time of each pass.
        without: names of passes that do not run.
        factor: maps a stored integer type to the type in which the target multiplies it; None if it
            does not.
        stored: the type in which `narrow` stores values, except in bodies; a graph whose products
            all have one 16-bit float type keeps that type.
        repeated: whether the graph is the body of a loop (`narrow`).

    Raises:
        InvalidModelError: if a weight is infinite in the type of `narrow`.
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
    of_bytes: dict[Pass, Pass] = {
        byte_products: partial(byte_products, factor=factor),
        quantised_products: partial(quantised_products, factor=factor),
        byte_pairs: partial(byte_pairs, factor=factor),
        quantised_pairs: partial(quantised_pairs, factor=factor),
    }
    for _ in range(ROUNDS):
        before = graph
        for each in passes:
            graph = step(of_bytes.get(each, each), graph, each.__name__)
        if graph.nodes == before.nodes:
            break

    def of_body(body: Graph, inner: bool) -> Graph:
        again = repeated or inner
        return optimise(body, None, timings, without, factor, repeated=again)

    graph = optimise_bodies(graph, of_body)
    narrow_type = own or stored
    last: list[Pass] = [partial(narrow_products, dtype=dtype) for dtype in halves]
    if narrow_type is not DType.FLOAT32:
        last = [partial(narrow, dtype=narrow_type, repeated=repeated)]
    for each in last:
        graph = step(each, graph, narrow.__name__)
    return graph
