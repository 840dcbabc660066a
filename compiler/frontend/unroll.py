"""Scan and Loop whose number of steps is known at import, step by step.

The body is imported once for each step; equal steps share their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compiler.ops.moves import part, transposed
from compiler.ops.onnx_node import OnnxNode
from compiler.ops.shapes import show

STEP_LIMIT = 4096
"""More steps would make a graph too large to compile."""

Step = Callable[[int, Sequence[str]], list[str]]
"""The body's outputs for a step's number and inputs."""


def unrolled_scan(node: OnnxNode, inputs: int, outputs: int, step: Step) -> list[str]:
    """States after the last step, then what each step gave, stacked.

    `inputs` and `outputs` are those of the body: states first, then slices.

    Raises:
        InvalidModelError: if the operands contradict each other.
        UnsupportedOperatorError: if there are too many steps.
    """
    if node.opset < 9:
        return _batched_scan(node, inputs, outputs, step)
    values = [node.input(i) for i in range(len(node.inputs))]
    return _scanned(node, values, inputs, outputs, step)


def _batched_scan(node: OnnxNode, inputs: int, outputs: int, step: Step) -> list[str]:
    """Opset 8: every operand has a batch in front, and sequences run along dimension 1."""
    if node.optional(0) is not None:
        raise node.unsupported("sequence_lens")
    values = [node.input(i) for i in range(1, len(node.inputs))]
    batch = node.shape(values[0])[0] if node.shape(values[0]) else 0
    if not batch or any(node.shape(value)[:1] != (batch,) for value in values):
        raise node.invalid("the operands differ in their batches")
    results = []
    for number in range(batch):
        rows = [_at(node, value, 0, number) for value in values]
        results.append(_scanned(node, rows, inputs, outputs, step))
    return [_stacked(node, list(parts), 0) for parts in zip(*results, strict=True)]


def _scanned(node: OnnxNode, values: list[str], inputs: int, outputs: int, step: Step) -> list[str]:
    count = node.integer("num_scan_inputs")
    if len(values) != inputs or not 1 <= count <= inputs:
        raise node.invalid(f"{len(values)} operands, {count} of them scanned, for {inputs} inputs")
    states, sequences = values[: inputs - count], values[inputs - count :]
    made = outputs - len(states)
    axes = node.ints("scan_input_axes") or (0,) * count
    backwards = node.ints("scan_input_directions") or node.ints("directions") or (0,) * count
    out_axes = node.ints("scan_output_axes") or (0,) * made
    out_backwards = node.ints("scan_output_directions") or (0,) * made
    dims = [_dimension(node, s, a) for s, a in zip(sequences, axes, strict=True)]
    lengths = {node.shape(s)[dim] for s, dim in zip(sequences, dims, strict=True)}
    if len(lengths) != 1:
        raise node.invalid(f"the sequences differ in length: {sorted(lengths)}")
    (length,) = lengths
    _check_length(node, length)
    rows: list[list[str]] = [[] for _ in range(made)]
    for number in range(length):
        slices = [
            _at(node, s, dim, length - 1 - number if back else number)
            for s, dim, back in zip(sequences, dims, backwards, strict=True)
        ]
        results = step(number, [*states, *slices])
        states = results[: len(states)]
        for row, result in zip(rows, results[len(states) :], strict=True):
            row.append(result)
    stacked = [
        _stacked(node, row[::-1] if back else row, axis)
        for row, axis, back in zip(rows, out_axes, out_backwards, strict=True)
    ]
    return [*states, *stacked]


def unrolled_loop(node: OnnxNode, inputs: int, outputs: int, step: Step) -> list[str]:
    """States after the last step, then what each step gave, stacked.

    The number of steps, and whether the body goes on, must be known at import.

    Raises:
        InvalidModelError: if the operands contradict each other.
        UnsupportedOperatorError: if a run-time value decides when the loop ends.
    """
    limit = node.static(0, "the trip count")
    goes_on = node.static(1, "the condition")
    states = [node.input(i) for i in range(2, len(node.inputs))]
    if len(states) != inputs - 2 or outputs < 1 + len(states):
        raise node.invalid(f"{len(states)} states for a body of {inputs} inputs")
    if limit is None and goes_on is None:
        raise node.unsupported("a loop without an end")
    going = goes_on is None or bool(goes_on.reshape(-1)[0])
    trips = STEP_LIMIT + 1 if limit is None else int(limit.reshape(-1)[0])
    rows: list[list[str]] = [[] for _ in range(outputs - 1 - len(states))]
    number = 0
    while going and number < trips:
        _check_length(node, number + 1)
        count = node.constant(np.array(number, np.int64))
        results = step(number, [count, node.constant(np.array(True)), *states])
        known = node.builder.known(results[0])
        if known is None:
            raise node.unsupported("a run-time value decides when the loop ends")
        going = bool(known.reshape(-1)[0])
        states = results[1 : 1 + len(states)]
        for row, result in zip(rows, results[1 + len(states) :], strict=True):
            row.append(result)
        number += 1
    if rows and not number:
        raise node.unsupported("a loop without steps that collects values")
    return [*states, *(_stacked(node, row, 0) for row in rows)]


def _dimension(node: OnnxNode, value: str, axis: int) -> int:
    rank = len(node.shape(value))
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for {show(node.shape(value))}")
    return axis % rank


def _check_length(node: OnnxNode, length: int) -> None:
    if length > STEP_LIMIT:
        raise node.unsupported(f"more than {STEP_LIMIT} steps")


def _at(node: OnnxNode, value: str, dim: int, place: int) -> str:
    """One place along a dimension, which vanishes."""
    shape = node.shape(value)
    return node.reshape(part(node, value, dim, place, 1), (*shape[:dim], *shape[dim + 1 :]))


def _stacked(node: OnnxNode, values: list[str], axis: int) -> str:
    """The values along a new dimension."""
    shape = node.shape(values[0])
    rank = len(shape) + 1
    rows = [node.reshape(value, (1, *node.shape(value))) for value in values]
    whole = rows[0] if len(rows) == 1 else node.emit("concat", rows, axis=0)
    dim = axis % rank
    order = [*range(1, dim + 1), 0, *range(dim + 1, rank)]
    return transposed(node, whole, order)
