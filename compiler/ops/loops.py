"""Import of loops and branches as nodes with bodies (`compiler.ops.control`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError, ModelWarning
from tilewright.compiler.graph.ir import AttrValue, Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.control import ENDLESS, GOING, STEP, branch_slots, loop_form
from tilewright.compiler.ops.enclosed import Enclosure, inlined
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.ops.trip_counts import State, known_integer, trip_count
from tilewright.compiler.sizes import always_smaller, is_dynamic, larger, typical

BodyBuilder = Callable[[Enclosure, str, Sequence[str]], Sequence[str]]
"""Builds the body of a loop. The arguments are the enclosure, the index of the step, and the
states, as values of the enclosure's graph. Returns whether another step follows, the next states,
and the values to stack."""

BranchBuilder = Callable[[Enclosure], Sequence[str]]
"""Builds the body of a branch, and returns its outputs as values of the enclosure's graph."""

NO_LIMIT = (1 << 31) - 1
"""Minimum trip count that stands for an unknown number of steps in exported models."""

COLLECTED_BYTES = 1 << 30
"""Maximum size in bytes of the rows that a loop collects, if only its condition bounds the number
of steps."""

CHEAP_ELEMENTS = 1 << 12
"""Number of elements up to which both branches are computed unconditionally, so that their nodes
can fuse with surrounding nodes. The limit applies to each branch."""

CHEAP = (OpKind.ELEMENTWISE, OpKind.MOVEMENT, OpKind.PIECES, OpKind.VIEW, OpKind.GATHER)


@dataclass(frozen=True, slots=True)
class Looped:
    """The results of a loop, as values of the graph.

    Attributes:
        states: the states after the last step.
        rows: the values that the loop stacks over all steps. Their first extent is the maximum
            number of steps.
        steps: the number of steps taken.
        exact: whether the loop always takes its maximum number of steps.
    """

    states: list[str]
    rows: list[str]
    steps: str
    exact: bool


def looped(
    node: OnnxNode, trips: int | str | None, begin: str, states: Sequence[str], body: BodyBuilder
) -> Looped:
    """Emit a loop that runs a body at run time, and return its results.

    Args:
        node: the ONNX node that is imported.
        trips: the maximum number of steps (an integer or a dynamic size), the name of the value
            that holds it, or None for an unbounded loop.
        begin: a boolean value that is true if the loop takes a first step.
        states: the initial states.
        body: builds the graph of one step.

    Raises:
        UnsupportedOperatorError: if the body's shapes depend on the step, or if the loop stacks
            values and no number known at import bounds the steps.
        InvalidModelError: if the body is invalid, for example because shapes do not fit.
    """
    trips = None if isinstance(trips, int) and trips >= NO_LIMIT else trips
    most = None if trips is None or isinstance(trips, str) else larger(trips, 0)
    enclosure = Enclosure(node)
    inner = enclosure.node
    kinds = [node.type(value) for value in states]
    step = enclosure.input("step", STEP)
    given = [
        enclosure.input(f"state.{k}", kind, value) if kind.elements else _empty(inner, kind)
        for k, (kind, value) in enumerate(zip(kinds, states, strict=True))
    ]
    with enclosure.errors():
        going, *made = body(enclosure, step, given)
        if inner.type(going).dtype is not DType.BOOL or inner.type(going).elements != 1:
            raise node.invalid(f"its condition is {inner.type(going)}, not a boolean")
        going = inner.reshape(going, ())
        following, rows = made[: len(states)], made[len(states) :]
        for number, (kind, value) in enumerate(zip(kinds, following, strict=True)):
            if inner.type(value) != kind:
                raise node.unsupported(
                    f"state {number} is {kind} before a step and {inner.type(value)} after it"
                )
        moving = [k for k, kind in enumerate(kinds) if kind.elements]
        stacking = [value for value in rows if inner.type(value).elements]
        known = inner.builder.known(going)
        decides = known is None or not bool(known)
        counted = None
        if decides:
            starts = (known_integer(node.builder, value) for value in states)
            pairs = zip(given, map(State, starts, following), strict=True)
            counted = trip_count(inner.builder, going, step, dict(pairs))
        if counted is not None and _affordable(counted.most, [inner.type(v) for v in stacking]):
            most, whole = _fewer(most, counted.most)
            decides = not (counted.exact and whole)
        outputs = [*([going] if decides else []), *(following[k] for k in moving)]
        # A row that is also a state, or is collected twice, is an output only once.
        positions = {value: k for k, value in reversed(list(enumerate(outputs))) if k >= decides}
        for value in stacking:
            if value not in positions:
                positions[value] = len(outputs)
                outputs.append(value)
        graph = enclosure.graph(outputs)
    if rows and most is None:
        raise node.unsupported("steps that collect values have no bound known at import")
    if most == 0:
        nothing = [
            _empty(node, TensorType(inner.type(v).dtype, (0, *inner.shape(v)))) for v in rows
        ]
        return Looped(list(states), nothing, node.constant(np.array(0)), True)
    limit = (
        trips
        if isinstance(trips, str)
        else node.scalar(ENDLESS if most is None else most, DType.INT64)
    )
    operands = [limit, begin, *(states[k] for k in moving), *enclosure.captured]
    attrs: dict[str, AttrValue | None] = {
        "body": graph,
        "decides": decides,
        "most": most,
        "rows": tuple(positions[value] for value in stacking),
        "states": len(moving),
    }
    block = node.emit("loop", operands, **attrs)
    present = tuple((k, v) for k, v in attrs.items() if v is not None)
    steps, _, *results = (
        _field(node, block, slot.type, slot.offset) for slot in loop_form(present).slots
    )
    after = dict(zip(moving, results, strict=False))
    stacked = iter(results[len(moving) :])
    wholes = [
        next(stacked)
        if inner.type(value).elements
        else _empty(
            node,
            TensorType(inner.type(value).dtype, (0 if most is None else most, *inner.shape(value))),
        )
        for value in rows
    ]
    begins = node.builder.known(begin)
    certain = begins is not None and bool(begins) and not isinstance(trips, str)
    exact = most is not None and not decides and certain
    return Looped([after.get(k, value) for k, value in enumerate(states)], wholes, steps, exact)


def _affordable(steps: int, rows: Sequence[TensorType]) -> bool:
    """Whether stacking values of the types `rows` over `steps` steps needs at most COLLECTED_BYTES.

    If the memory depends on dynamic sizes, it is assumed to suffice. A fixed number of steps must
    be below NO_LIMIT in any case.
    """
    if is_dynamic(steps):
        return True
    each = sum(kind.bytes for kind in rows)
    return steps < NO_LIMIT and (is_dynamic(each) or steps * each <= COLLECTED_BYTES)


def _fewer(most: int | None, counted: int) -> tuple[int, bool]:
    """Return the smaller of two bounds on a loop's steps, and whether the smaller bound is known.

    If dynamic sizes determine which bound is smaller, the result is `most` and False. If `most` is
    None, there is no such bound, and the result is `counted` and True.
    """
    if most is None:
        return counted, True
    fewer = always_smaller(most, counted)
    return (most, False) if fewer is None else (fewer, True)


def branched(
    node: OnnxNode, condition: str, then: BranchBuilder, otherwise: BranchBuilder
) -> list[str]:
    """Emit a branch, of which a run executes only the selected body (graph); return its outputs.

    If both bodies are cheap, the branch instead computes both and selects between their results. If
    one body is invalid, for example because shapes do not fit, only the runs that select it fail.

    Raises:
        InvalidModelError: if both bodies are invalid.
        UnsupportedOperatorError: if a body is not supported, or the bodies' outputs differ in type.
    """
    pairs = _made_branches(node, condition, then, otherwise)
    enclosures, graphs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    kinds = [[graph.types[value] for value in graph.outputs] for graph in graphs]
    if len(kinds[0]) != len(kinds[1]):
        raise node.invalid("its branches differ in the number of their outputs")
    for one, other in zip(*kinds, strict=True):
        if one != other:
            raise node.unsupported(f"its branches give outputs of the types {one} and {other}")
    if all(map(_is_cheap, graphs)):
        return _both(node, condition, graphs, enclosures)
    return branch_of(node, condition, pairs)


def branch_of(
    node: OnnxNode, condition: str, pairs: Sequence[tuple[Enclosure, Graph]]
) -> list[str]:
    """Emit a branch that runs the first body if `condition` is true, else the second.

    `pairs` has two items for each body: the `Enclosure` in which it was built, which lists the
    values that the body reads, and the finished graph. The two graphs have the same output types.
    Returns the outputs of the branch.
    """
    enclosures, graphs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    kinds = [graphs[0].types[value] for value in graphs[0].outputs]
    captured = tuple(dict.fromkeys(v for each in enclosures for v in each.captured))
    bodies = [
        _taking(graph, enclosure.captured, captured, node)
        for graph, enclosure in zip(graphs, enclosures, strict=True)
    ]
    full = [k for k, kind in enumerate(kinds) if kind.elements]
    bodies = [body.replace(outputs=[body.outputs[k] for k in full]) for body in bodies]
    results: dict[int, str] = {}
    if full:
        attrs = {"then": bodies[0], "otherwise": bodies[1]}
        block = node.emit("branch", [condition, *captured], **attrs)
        for k, slot in zip(full, branch_slots(tuple(sorted(attrs.items()))), strict=True):
            results[k] = _field(node, block, slot.type, slot.offset)
    return [results[k] if k in results else _empty(node, kind) for k, kind in enumerate(kinds)]


def _made_branches(
    node: OnnxNode, condition: str, then: BranchBuilder, otherwise: BranchBuilder
) -> list[tuple[Enclosure, Graph]]:
    """Build the graphs (bodies) of both branches of a conditional.

    An invalid body, for example one whose shapes do not fit, is replaced by a body that ends the
    run with an error.

    Raises:
        InvalidModelError: if both bodies are invalid.
    """
    made: list[tuple[Enclosure, Graph] | InvalidModelError] = []
    for make in (then, otherwise):
        enclosure = Enclosure(node)
        try:
            with enclosure.errors():
                made.append((enclosure, enclosure.graph(make(enclosure))))
        except InvalidModelError as error:
            made.append(error)
    whole = [each for each in made if not isinstance(each, InvalidModelError)]
    failed = [each for each in made if isinstance(each, InvalidModelError)]
    if not whole:
        raise failed[0]
    return [
        _refused(node, condition, each, whole[0][1])
        if isinstance(each, InvalidModelError)
        else each
        for each in made
    ]


def _refused(
    node: OnnxNode, condition: str, error: InvalidModelError, like: Graph
) -> tuple[Enclosure, Graph]:
    """Build a body that ends the run with `error`, in place of an invalid branch; warn about it.

    The body has outputs of the same types as `like`, the graph of the other branch.
    """
    message = f"If '{node.name}': the branch that is chosen contradicts itself: {error}"
    warnings.warn(
        f"If '{node.name}': a branch contradicts itself, and is an error if it is chosen: {error}",
        ModelWarning,
        stacklevel=2,
    )
    enclosure = Enclosure(node)
    chosen = enclosure.capture(condition)
    outputs = [
        enclosure.node.emit(
            "refuse", [chosen], message=message, dtype=kind.dtype.value, shape=kind.shape
        )
        for kind in (like.types[value] for value in like.outputs)
    ]
    return enclosure, enclosure.graph(outputs)


def _both(
    node: OnnxNode, condition: str, graphs: Sequence[Graph], enclosures: Sequence[Enclosure]
) -> list[str]:
    """Emit the nodes of both graphs of a branch, and select each output by `condition` at run time.

    `graphs` are the graphs for a true and a false condition. `enclosures` lists, for each of them,
    the values of the enclosing graph that it reads. Returns the selected outputs.
    """
    pairs = zip(graphs, enclosures, strict=True)
    one, other = (inlined(node.builder, graph, e.captured) for graph, e in pairs)
    return [
        first if first == second else node.emit("where", [condition, first, second])
        for first, second in zip(one, other, strict=True)
    ]


def _taking(graph: Graph, own: Sequence[str], captured: Sequence[str], node: OnnxNode) -> Graph:
    """Return the body `graph` of a branch with one input for each value in `captured`.

    `captured` are all values that the body of either branch reads, and `own` those that `graph`
    reads. Inputs for values that only the other body reads are unused.
    """
    renamed = dict(zip(own, graph.inputs, strict=True))
    inputs = [renamed.get(value, f"unread.{k}") for k, value in enumerate(captured)]
    types = {**graph.types, **{i: node.type(v) for i, v in zip(inputs, captured, strict=True)}}
    return graph.replace(inputs=inputs, types=types)


def _is_cheap(body: Graph) -> bool:
    total = 0
    for inner in body.nodes:
        if ops.get(inner.op).kind not in CHEAP:
            return False
        total += body.types[inner.output].elements
    return typical(total) <= CHEAP_ELEMENTS


def _field(node: OnnxNode, block: str, kind: TensorType, offset: int) -> str:
    return node.emit("field", [block], dtype=kind.dtype.value, offset=offset, shape=kind.shape)


def _empty(node: OnnxNode, kind: TensorType) -> str:
    return node.constant(np.zeros(kind.shape, kind.dtype.numpy), kind.dtype)


def truth(node: OnnxNode, value: str) -> str:
    """Reshape a condition to a boolean scalar.

    Raises:
        InvalidModelError: if it is not a single boolean.
    """
    kind = node.type(value)
    if kind.dtype is not DType.BOOL or kind.elements != 1:
        raise node.invalid(f"the condition is {kind}, not a boolean")
    return node.reshape(value, GOING.shape)
