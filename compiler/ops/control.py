"""Control-flow operators: `loop` and `branch` run graphs (bodies), `refuse` ends a run.

    %1: uint8[256] = loop(n, go, x, w) {body=graph, decides=true, most=10, rows=(1), states=1}
      graph "body"
      input step: int64[]
      input state.0: float32[4]
      input capture.0: float32[4]
      ...
      output on
      output next
    %2: float32[4] = field(%1) {dtype="float32", offset=128, shape=(4)}

Every operator has one output. The output of `loop` and `branch` is a block of bytes that holds all
results, each at a multiple of 64 bytes. The operator `field` selects a result; it is a view, which
runs no code. Values of the enclosing graph that a body reads are operands of the node; constants
belong to the body.

    %3: float32[4] = refuse(%go) {dtype="float32", message="why", shape=(4)}

`refuse` ends the run with an error message. A `branch` has it in a body that only invalid runs
select. Its operand is any boolean value, which prevents constant folding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidInputError, InvalidModelError
from tilewright.compiler.graph.ir import Attrs, Graph, attr
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.semantics import from_memory
from tilewright.compiler.ops.attributes import integer, ints, word
from tilewright.compiler.ops.native import no_expression
from tilewright.compiler.ops.registry import Operator, OpKind, RunBody
from tilewright.compiler.ops.shapes import operand_count
from tilewright.compiler.sizes import typical

STEP = TensorType(DType.INT64, ())
GOING = TensorType(DType.BOOL, ())

SLOT_BYTES = 64
"""Alignment in bytes of each result in a control operator's output block; equal to the alignment of
all values."""

MANY_STEPS = 1_000_000
"""Maximum number of steps that cost estimates assume for a loop."""

ENDLESS_STEPS = 100_000
"""Maximum number of steps of an unbounded loop that the NumPy interpreter runs."""

NOT_ENDED = "a loop has not ended"
"""Start of the error message for a loop that exceeds ENDLESS_STEPS, by which
`service.jobs.inputs.random_choices` recognises the error."""

ENDLESS = (1 << 63) - 1
"""The trip count of an unbounded loop."""

GUESSED_STEPS = 16
"""Number of steps that cost estimates assume for an unbounded loop."""


@dataclass(frozen=True, slots=True)
class ResultSlot:
    """One result of a loop or branch: its type, and its offset in bytes in the node's output.

    The output of such a node is one block of bytes, which holds all results.
    """

    type: TensorType
    offset: int


@dataclass(frozen=True, slots=True)
class LoopForm:
    """The attributes of a `loop` node.

    The inputs of the body are the index of the step, the states, and the captured values. Its
    outputs are: whether another step follows (if `decides`), the next states, and further values.

    Attributes:
        body: the graph of one step.
        decides: whether the body decides if another step follows.
        states: number of values that each step passes to the next one.
        rows: positions of those outputs of the body that the loop stacks over all steps.
        most: maximum number of steps; None if unbounded, which is not possible with `rows`.
    """

    body: Graph
    decides: bool
    states: int
    rows: tuple[int, ...]
    most: int | None

    @property
    def slots(self) -> tuple[ResultSlot, ...]:
        """The type of each result of the loop, and its byte offset in the output, in order.

        The results are the number of steps taken, whether another step would follow, the last
        states, and the stacked outputs.
        """
        kinds = [self.body.types[value] for value in self.body.outputs]
        most = 0 if self.most is None else self.most
        stacked = [TensorType(kinds[row].dtype, (most, *kinds[row].shape)) for row in self.rows]
        return _slots([STEP, GOING, *kinds[self.decides :][: self.states], *stacked])

    @property
    def expected_steps(self) -> int:
        """The number of steps that cost estimates assume.

        It is a fixed guess for an unbounded loop. Otherwise it is the maximum number of steps,
        evaluated at typical sizes and limited to MANY_STEPS.
        """
        return GUESSED_STEPS if self.most is None else min(typical(self.most), MANY_STEPS)


def loop_form(attrs: Attrs) -> LoopForm:
    """Parse the attributes of a `loop` node.

    Raises:
        InvalidModelError: if an attribute is missing or invalid.
    """
    most = integer(attrs, "most") if attr(attrs, "most") is not None else None
    decides = bool(integer(attrs, "decides"))
    states, rows = integer(attrs, "states"), ints(attrs, "rows")
    return LoopForm(_body(attrs, "body"), decides, states, rows, most)


def branch_slots(attrs: Attrs) -> tuple[ResultSlot, ...]:
    """Return the type and byte offset of each result in the output of a `branch` node.

    A branch runs one of two graphs (`bodies`), whose results have the same types. The output of the
    node is a block of bytes with all results.
    """
    body = _body(attrs, "then")
    return _slots([body.types[value] for value in body.outputs])


def _slots(types: Sequence[TensorType]) -> tuple[ResultSlot, ...]:
    offset, found = 0, []
    for kind in types:
        found.append(ResultSlot(kind, offset))
        offset += _aligned(kind)
    return tuple(found)


def _aligned(kind: TensorType) -> int:
    return -(-max(kind.bytes, 1) // SLOT_BYTES) * SLOT_BYTES


def _block(slots: Sequence[ResultSlot]) -> TensorType:
    last = slots[-1]
    return TensorType(DType.UINT8, (last.offset + _aligned(last.type),))


def _body(attrs: Attrs, key: str) -> Graph:
    body = attr(attrs, key)
    if not isinstance(body, Graph):
        raise InvalidModelError(f"attribute '{key}' is not a graph")
    return body


def _check_inputs(body: Graph, kinds: Sequence[TensorType]) -> None:
    taken = [body.types[value] for value in body.inputs]
    if taken != list(kinds):
        raise InvalidModelError(
            f"the body '{body.name}' takes {_listed(taken)}, it is given {_listed(kinds)}"
        )


def _listed(kinds: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, kinds))})"


def _infer_loop(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    form = loop_form(attrs)
    body, states = form.body, form.states
    if len(types) < 2 + max(states, 0) or types[0] != STEP or types[1] != GOING or states < 0:
        raise InvalidModelError(
            f"{_listed(types)} are not the number of steps, whether to begin, and {states} states"
        )
    _check_inputs(body, [STEP, *types[2:]])
    given = [body.types[value] for value in body.outputs]
    wanted = [*([GOING] if form.decides else []), *types[2 : 2 + states]]
    if given[: len(wanted)] != wanted:
        raise InvalidModelError(f"the body gives {_listed(given)}, its states are others")
    if any(not form.decides <= row < len(given) for row in form.rows):
        raise InvalidModelError(f"rows {form.rows} are not outputs of a body with {len(given)}")
    if form.most is None and form.rows:
        raise InvalidModelError("rows are stacked, and nothing bounds their number")
    if form.most is not None and form.most < 0:
        raise InvalidModelError(f"there are at most {form.most} steps")
    return _block(form.slots)


def _infer_branch(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    if not types or types[0] != GOING:
        raise InvalidModelError(f"the condition of {_listed(types)} is not a boolean")
    bodies = [_body(attrs, key) for key in ("then", "otherwise")]
    for body in bodies:
        _check_inputs(body, types[1:])
    one, other = ([body.types[value] for value in body.outputs] for body in bodies)
    if one != other or not one:
        raise InvalidModelError(f"its branches give {_listed(one)} and {_listed(other)}")
    return _block(branch_slots(attrs))


def _infer_field(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    kind = TensorType(DType(word(attrs, "dtype")), ints(attrs, "shape"))
    offset, (block,) = integer(attrs, "offset"), types
    if block.dtype is not DType.UINT8 or len(block.shape) != 1:
        raise InvalidModelError(f"{block} is not a block of bytes")
    if any(size < 0 for size in (offset, *kind.shape)) or offset % SLOT_BYTES != 0:
        raise InvalidModelError(f"{kind} at byte {offset} is not a field")
    if offset + kind.bytes > block.bytes:
        raise InvalidModelError(f"{kind} at byte {offset} does not lie in {block}")
    return kind


def _run_loop(
    operands: Sequence[np.ndarray], attrs: Attrs, run: RunBody
) -> Mapping[int, np.ndarray]:
    form = loop_form(attrs)
    trips, go, *rest = operands
    states, captured = rest[: form.states], rest[form.states :]
    limit = int(trips) if form.most is None else min(int(trips), form.most)
    going, step = bool(go), 0
    rows: list[list[np.ndarray]] = []
    while going and step < limit:
        if form.most is None and step >= ENDLESS_STEPS:
            raise InvalidInputError(f"{NOT_ENDED} after {ENDLESS_STEPS} steps")
        made = run(form.body, [np.array(step, np.int64), *states, *captured])
        states = made[form.decides :][: form.states]
        rows.append([made[row] for row in form.rows])
        going, step = bool(made[0]) if form.decides else True, step + 1
    stacked = [
        _stacked(slot.type, [row[number] for row in rows])
        for number, slot in enumerate(form.slots[2 + form.states :])
    ]
    results = [np.array(step, np.int64), np.array(going), *states, *stacked]
    return {slot.offset: array for slot, array in zip(form.slots, results, strict=True)}


def _stacked(kind: TensorType, rows: Sequence[np.ndarray]) -> np.ndarray:
    """Stack the outputs `rows` of all steps; the positions of steps not taken are zero.

    `kind` is the type of the result. Its first extent is the maximum number of steps.
    """
    whole = np.zeros(kind.shape, rows[0].dtype if rows else kind.dtype.numpy)
    whole[: len(rows)] = np.array(rows, whole.dtype).reshape(len(rows), *kind.shape[1:])
    return whole


def _run_branch(
    operands: Sequence[np.ndarray], attrs: Attrs, run: RunBody
) -> Mapping[int, np.ndarray]:
    chosen, *captured = operands
    results = run(_body(attrs, "then" if bool(chosen) else "otherwise"), captured)
    return {s.offset: array for s, array in zip(branch_slots(attrs), results, strict=True)}


def _infer_refuse(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    if list(types) != [GOING]:
        raise InvalidModelError(f"{_listed(types)} is not a boolean")
    word(attrs, "message")
    return TensorType(DType(word(attrs, "dtype")), ints(attrs, "shape"))


def _run_refuse(
    _operands: Sequence[np.ndarray], attrs: Attrs, _run: RunBody
) -> Mapping[int, np.ndarray]:
    raise InvalidInputError(word(attrs, "message"))


def _field_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    kind = _infer_field([TensorType(DType.UINT8, arrays[0].shape)], attrs)
    start = integer(attrs, "offset")
    held = np.ascontiguousarray(arrays[0][start : start + prod(kind.shape) * kind.dtype.bytes])
    return from_memory(held.view(kind.dtype.numpy).reshape(kind.shape), kind.dtype)


def _no_reference(_arrays: Sequence[np.ndarray], _attrs: Attrs) -> np.ndarray:
    raise ValueError("an operator with bodies is run by the interpreter")


OPERATORS = (
    Operator("loop", OpKind.CONTROL, _infer_loop, _no_reference, no_expression, control=_run_loop),
    Operator(
        "branch", OpKind.CONTROL, _infer_branch, _no_reference, no_expression, control=_run_branch
    ),
    Operator(
        "refuse", OpKind.CONTROL, _infer_refuse, _no_reference, no_expression, control=_run_refuse
    ),
    Operator("field", OpKind.VIEW, _infer_field, _field_reference, no_expression),
)
