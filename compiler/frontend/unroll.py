"""Import of Scan and Loop: short loops are unrolled, others become control-flow nodes.

Unrolling imports the body once per step. The steps can be fused with one another and with
surrounding nodes, and equal steps share their kernels. A control-flow node compiles its body once,
for any number of steps, and may end on a condition that is computed at run time. The shapes must be
the same in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import UnsupportedOperatorError
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.enclosed import Enclosure
from tilewright.compiler.ops.loops import looped, truth
from tilewright.compiler.ops.moves import flip, part, transposed
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import is_dynamic

STEP_LIMIT = 4096
"""Maximum number of steps of an unrolled loop. More steps would make a graph too large to
compile."""

SPELLED_NODES = 128
"""Maximum number of nodes after unrolling for which a loop is unrolled by default. These nodes
compile in about 0.2 s, and elementwise steps fuse. Steps with a matrix product are as fast in a
run-time loop: they take 0.8 to 1.02 of the time, for states of 32 to 512 elements."""


@dataclass(frozen=True, slots=True)
class LoopBody:
    """The body of a Loop or Scan, with functions for the two ways to import it.

    Attributes:
        inputs, outputs: the number of its inputs and of its outputs.
        weight: its number of nodes; nodes of nested loops count several times.
        step: imports one unrolled step, and returns the values of the body's outputs. Its arguments
            are the index of the step, the values of the body's inputs, and whether nested loops
            must be unrolled too.
        enclosed: imports the body into an `Enclosure`, as a graph of its own. Its arguments are the
            enclosure and the values of the body's inputs.
        spelled: whether the loop must be unrolled. This is the case inside a body that could not be
            imported as a graph of its own.
    """

    inputs: int
    outputs: int
    weight: int
    step: Callable[[int, Sequence[str], bool], list[str]]
    enclosed: Callable[[Enclosure, Sequence[str]], list[str]]
    spelled: bool

    @property
    def short(self) -> int:
        """The maximum number of steps for which unrolling is the first choice.

        A loop with more steps is first imported as a control-flow node, and unrolled only if this
        fails.
        """
        return STEP_LIMIT if self.spelled else min(STEP_LIMIT, SPELLED_NODES // self.weight)


def imported_scan(node: OnnxNode, body: LoopBody) -> list[str]:
    """Import a Scan: returns the states after the last step, then the stacked results of all steps.

    The body takes the states, then one slice of each scanned input. It returns the next states,
    then one slice of each stacked result.

    Raises:
        InvalidModelError: if the operands contradict each other.
        UnsupportedOperatorError: if the loop must be unrolled because shapes differ between steps,
            but it has more than `STEP_LIMIT` steps.
    """
    if node.opset < 9:
        return _batched_scan(node, body)
    values = [node.input(i) for i in range(len(node.inputs))]
    return _scanned(node, values, body)


def _batched_scan(node: OnnxNode, body: LoopBody) -> list[str]:
    """Import a Scan of opset 8, whose operands have a leading batch dimension.

    The Scan is imported once per element of the batch, and scans dimension 1 of its inputs. Returns
    the results, in which dimension 0 is the batch again.
    """
    if node.optional(0) is not None:
        raise node.unsupported("sequence_lens (input 0) of opset 8")
    values = [node.input(i) for i in range(1, len(node.inputs))]
    batch = node.shape(values[0])[0] if node.shape(values[0]) else 0
    if not batch or any(node.shape(value)[:1] != (batch,) for value in values):
        raise node.invalid("the operands differ in their batches (dimension 0)")
    results = []
    for number in range(batch):
        rows = [_at(node, value, 0, number) for value in values]
        results.append(_scanned(node, rows, body))
    return [_stacked(node, list(parts), 0) for parts in zip(*results, strict=True)]


@dataclass(frozen=True, slots=True)
class _Scan:
    """The operands of a Scan.

    Attributes:
        states: the initial states.
        sequences: for each scanned input, its value, the dimension along which it is scanned, and 1
            if it is scanned in reverse, else 0.
        length: the number of steps.
    """

    states: list[str]
    sequences: list[tuple[str, int, int]]
    length: int


def _scanned(node: OnnxNode, values: list[str], body: LoopBody) -> list[str]:
    count = node.integer("num_scan_inputs")
    if len(values) != body.inputs or not 1 <= count <= body.inputs:
        raise node.invalid(
            f"it has {len(values)} operands, {count} of them scanned, and its body {body.inputs} "
            "inputs"
        )
    states, sequences = values[: body.inputs - count], values[body.inputs - count :]
    made = body.outputs - len(states)
    axes = node.ints("scan_input_axes") or (0,) * count
    backwards = node.ints("scan_input_directions") or node.ints("directions") or (0,) * count
    out_axes = node.ints("scan_output_axes") or (0,) * made
    out_backwards = node.ints("scan_output_directions") or (0,) * made
    dims = [_dimension(node, s, a) for s, a in zip(sequences, axes, strict=True)]
    lengths = {node.shape(s)[dim] for s, dim in zip(sequences, dims, strict=True)}
    if len(lengths) != 1:
        raise node.invalid(f"the sequences differ in length: {sorted(lengths)}")
    (length,) = lengths
    scan = _Scan(states, list(zip(sequences, dims, backwards, strict=True)), length)
    if not is_dynamic(length) and length <= body.short:
        states, wholes = _spelled_scan(node, scan, body, body.spelled)
    else:
        try:
            states, wholes = _looped_scan(node, scan, body)
        except UnsupportedOperatorError as error:
            with _refused(node, error):
                _check_length(node, length)
                states, wholes = _spelled_scan(node, scan, body, True)
    stacked = [
        _turned(node, flip(node, whole, [0]) if back else whole, axis)
        for whole, axis, back in zip(wholes, out_axes, out_backwards, strict=True)
    ]
    return [*states, *stacked]


def _spelled_scan(
    node: OnnxNode, scan: _Scan, body: LoopBody, tried: bool
) -> tuple[list[str], list[str]]:
    states = scan.states
    rows: list[list[str]] = [[] for _ in range(body.outputs - len(states))]
    for number in range(scan.length):
        slices = [
            _at(node, s, dim, scan.length - 1 - number if back else number)
            for s, dim, back in scan.sequences
        ]
        results = body.step(number, [*states, *slices], tried)
        states = results[: len(states)]
        for row, result in zip(rows, results[len(states) :], strict=True):
            row.append(result)
    if rows and not scan.length:
        raise node.unsupported("it has no steps and collects values")
    return states, [_stacked(node, row, 0) for row in rows]


def _looped_scan(node: OnnxNode, scan: _Scan, body: LoopBody) -> tuple[list[str], list[str]]:
    """Import a Scan as a control-flow node.

    Returns the states after the last step, and the stacked results of all steps. Each step gathers
    its slices from the scanned inputs.
    """

    def step(enclosure: Enclosure, number: str, states: Sequence[str]) -> list[str]:
        inner = enclosure.node
        last = inner.scalar(scan.length - 1, DType.INT64)
        places = (number, inner.emit("sub", [last, number]))
        slices = [
            inner.emit("gather", [enclosure.capture(s), places[back]], axis=dim)
            for s, dim, back in scan.sequences
        ]
        return [inner.constant(np.array(True)), *body.enclosed(enclosure, [*states, *slices])]

    found = looped(node, scan.length, node.constant(np.array(True)), scan.states, step)
    return found.states, found.rows


def imported_loop(node: OnnxNode, body: LoopBody) -> list[str]:
    """Import a Loop: returns the states after the last step, then the stacked results of all steps.

    The end condition may stop the loop before its trip count. The first dimension of the stacked
    results then has a data-dependent extent, whose maximum must be known at import: the trip count,
    or a limit of a counter in the end condition.

    Raises:
        InvalidModelError: if the operands contradict each other.
        UnsupportedOperatorError: if the loop must be unrolled because shapes differ between steps,
            but it has more than `STEP_LIMIT` steps or a number of steps that is known only at run
            time; or if the size of the results is unbounded.
    """
    states = [node.input(i) for i in range(2, len(node.inputs))]
    if len(states) != body.inputs - 2 or body.outputs < 1 + len(states):
        raise node.invalid(
            f"it has {len(states)} states, and its body {body.inputs} inputs, expected two more"
        )
    limit, begin = node.optional(0), node.optional(1)
    if limit is None and begin is None:
        raise node.unsupported(
            "it has neither a trip count (input 0) nor a condition (input 1) that ends it"
        )
    unknown = [v for v in (limit, begin) if v is not None and node.builder.known(v) is None]
    trips = _known_integer(node, limit)
    if not unknown and (trips is None or trips <= body.short):
        try:
            return _spelled_loop(node, trips, states, body, body.short, body.spelled)
        except UnsupportedOperatorError as error:
            if error.node != node.name:
                # a node in the body is not supported; in a loop, fewer operands are constants
                raise
    try:
        return _looped_loop(node, trips, states, body)
    except UnsupportedOperatorError as error:
        if not unknown:
            with _refused(node, error):
                return _spelled_loop(node, trips, states, body, STEP_LIMIT, True)
        inputs = (n for value in unknown for n in node.builder.inputs_of(value))
        raise UnsupportedOperatorError(
            error.node,
            error.operator,
            error.domain,
            error.opset,
            f"{error.reason}; the trip count (input 0) or the condition (input 1) of "
            f"{node.label} depends on a run-time value",
            tuple(dict.fromkeys([*inputs, *error.depends_on])),
            tuple(dict.fromkeys([*unknown, *error.waits_for])),
        ) from error


@contextmanager
def _refused(node: OnnxNode, error: UnsupportedOperatorError) -> Iterator[None]:
    """Context in which a loop is unrolled because its import as a control-flow node failed.

    If unrolling fails too, an error with both reasons is raised. `error` is the error of the first
    attempt.
    """
    try:
        yield
    except UnsupportedOperatorError as again:
        if (error.node, again.node) != (node.name, node.name):
            raise
        raise node.unsupported(f"{error.reason}; unrolled: {again.reason}") from again


def _known_integer(node: OnnxNode, value: str | None) -> int | None:
    """The trip count of a Loop as a number or dynamic size.

    Returns None if the operand is omitted or computed at run time.

    Raises:
        InvalidModelError: if the operand has more than one element.
    """
    if value is None:
        return None
    if node.type(value).elements != 1:
        raise node.invalid(f"the trip count (input 0) is {node.type(value)}, expected one int64")
    known = node.builder.known(value)
    if known is not None:
        return int(known.reshape(-1)[0])
    size = node.builder.sizes.get(value)
    return None if size is None else size.item()


def _looped_loop(
    node: OnnxNode, trips: int | None, states: Sequence[str], body: LoopBody
) -> list[str]:
    """Import a Loop as a control-flow node.

    Returns the states after the last step, then the stacked results of all steps. The number of
    steps may be computed at run time, from the trip count and the end condition. `trips` is the
    trip count, or None if it is unknown at import.
    """
    if not node.builder.sequences.keys().isdisjoint(states):
        raise node.unsupported("a state is a sequence, which is not implemented")
    limit, begin = node.optional(0), node.optional(1)
    count: int | str | None = trips
    if trips is None and limit is not None:
        count = node.reshape(cast_to(node, limit, DType.INT64), ())
    start = node.constant(np.array(True)) if begin is None else truth(node, begin)

    def step(enclosure: Enclosure, number: str, values: Sequence[str]) -> list[str]:
        going = enclosure.node.constant(np.array(True))
        return body.enclosed(enclosure, [number, going, *values])

    found = looped(node, count, start, states, step)
    if found.exact:
        return [*found.states, *found.rows]
    return [*found.states, *(node.emit("trim", [v, found.steps], axis=0) for v in found.rows)]


def _spelled_loop(
    node: OnnxNode,
    trips: int | None,
    states: list[str],
    body: LoopBody,
    most: int,
    tried: bool,
) -> list[str]:
    """Import a Loop by unrolling it; the end condition must be known at import after each step.

    Returns the states after the last step, then the stacked results of all steps.

    Args:
        node: the Loop.
        trips: the trip count; None if unlimited.
        states: the initial states.
        body: the body.
        most: the maximum number of steps.
        tried: passed to `LoopBody.step`: whether loops inside the body must be unrolled too.

    Raises:
        UnsupportedOperatorError: if the loop has more than `most` steps, or the end condition is
            computed at run time.
    """
    begin = node.optional(1)
    goes_on = None if begin is None else node.builder.known(begin)
    going = goes_on is None or bool(goes_on.reshape(-1)[0])
    rows: list[list[str]] = [[] for _ in range(body.outputs - 1 - len(states))]
    number = 0
    while going and (trips is None or number < trips):
        _check_length(node, number + 1, most)
        count = node.constant(np.array(number, np.int64))
        results = body.step(number, [count, node.constant(np.array(True)), *states], tried)
        known = node.builder.known(results[0])
        if known is None:
            raise node.unsupported("a run-time value decides when the loop ends")
        going = bool(known.reshape(-1)[0])
        states = results[1 : 1 + len(states)]
        for row, result in zip(rows, results[1 + len(states) :], strict=True):
            row.append(result)
        number += 1
    if rows and not number:
        raise node.unsupported("it has no steps and collects values")
    return [*states, *(_stacked(node, row, 0) for row in rows)]


def _dimension(node: OnnxNode, value: str, axis: int) -> int:
    rank = len(node.shape(value))
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for {show(node.shape(value))}")
    return axis % rank


def _check_length(node: OnnxNode, length: int, most: int | None = None) -> None:
    most = STEP_LIMIT if most is None else most
    if length > most:
        raise node.unsupported(f"it takes more than {most} steps, the limit of unrolled loops")


def _at(node: OnnxNode, value: str, dim: int, place: int) -> str:
    """The slice of `value` at index `place` along dimension `dim`, without that dimension."""
    shape = node.shape(value)
    return node.reshape(part(node, value, dim, place, 1), (*shape[:dim], *shape[dim + 1 :]))


def _stacked(node: OnnxNode, values: list[str], axis: int) -> str:
    """Stack values of one shape along a new dimension at position `axis` of the result."""
    rows = [node.reshape(value, (1, *node.shape(value))) for value in values]
    whole = rows[0] if len(rows) == 1 else node.emit("concat", rows, axis=0)
    return _turned(node, whole, axis)


def _turned(node: OnnxNode, whole: str, axis: int) -> str:
    """Transpose a tensor so that its first dimension becomes dimension `axis`.

    Raises:
        InvalidModelError: if `axis` is out of range; a negative one counts from the end.
    """
    rank = len(node.shape(whole))
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for {show(node.shape(whole))}")
    dim = axis % rank
    order = [*range(1, dim + 1), 0, *range(dim + 1, rank)]
    return transposed(node, whole, order)
