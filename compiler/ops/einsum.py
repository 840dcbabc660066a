"""Einsum, as matrix products of two operands at a time."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.compiler.ops.moves import transposed
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import Shape
from tilewright.compiler.ops.wide_rules import in_wide_type
from tilewright.compiler.sizes import equal


@dataclass(frozen=True, slots=True)
class _Term:
    """An operand of einsum: a value of the graph, and the label of each of its dimensions.

    A label is a letter of the equation, or a number for a dimension that `...` covers.
    """

    value: str
    labels: tuple[str, ...]


def _parse(
    node: OnnxNode, shapes: Sequence[Shape]
) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Parse the equation; return the labels of each operand's dimensions, and of the result's.

    The dimensions that `...` covers get numbers as labels.
    """
    equation = node.word("equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise node.invalid(f"equation '{equation}' has {len(terms)} terms for {len(shapes)} inputs")
    free = [len(s) - len(t.replace("...", "")) for t, s in zip(terms, shapes, strict=True)]
    count = max((f for f, t in zip(free, terms, strict=True) if "..." in t), default=0)
    hidden = tuple(str(i) for i in range(count))

    def labels(term: str, rank: int) -> tuple[str, ...]:
        before, dots, after = term.partition("...")
        inner = hidden[count - (rank - len(before) - len(after)) :] if dots and count else ()
        found = (*before, *inner, *after)
        named = [label for label in found if label not in hidden]
        if len(found) != rank or any(label not in string.ascii_letters for label in named):
            raise node.invalid(
                f"term '{term}' of '{equation}' does not name {rank} dimensions by letters"
            )
        return found

    inputs = [labels(term, len(shape)) for term, shape in zip(terms, shapes, strict=True)]
    every = [label for term in inputs for label in term]
    if arrow:
        named = len(right.replace("...", ""))
        output = labels(right, named + (count if "..." in right else 0))
    else:
        once = sorted(x for x in set(every) if every.count(x) == 1 and x not in hidden)
        output = (*hidden, *once)
    if len(set(output)) != len(output) or not set(output) <= set(every):
        raise node.invalid(f"the result of '{equation}' repeats a label or has a new one")
    return inputs, output


def _diagonal(node: OnnxNode, term: _Term) -> _Term:
    """Replace dimensions that share a label by one dimension, which holds the diagonal."""
    value, labels = term.value, list(term.labels)
    repeated = next((label for label in labels if labels.count(label) > 1), None)
    if repeated is None:
        return term
    first = labels.index(repeated)
    second = labels.index(repeated, first + 1)
    others = [d for d in range(len(labels)) if d not in (first, second)]
    value = transposed(node, value, (*others, first, second))
    *rest, rows, columns = node.shape(value)
    if not equal(rows, columns):
        raise node.invalid(
            f"label '{repeated}' of '{node.word('equation')}' names extents that differ, {rows} "
            f"and {columns}"
        )
    flat = node.reshape(value, (*rest, rows * columns))
    picked = node.emit(
        "slice",
        [flat],
        starts=(0,) * (len(rest) + 1),
        steps=(*(1,) * len(rest), columns + 1),
        sizes=(*rest, rows),
    )
    return _diagonal(node, _Term(picked, (*(labels[d] for d in others), repeated)))


def _summed(node: OnnxNode, term: _Term, kept: set[str]) -> _Term:
    """Sum a term over the dimensions whose labels are not in `kept`."""
    axes = tuple(d for d, label in enumerate(term.labels) if label not in kept)
    if not axes:
        return term
    value = node.emit("reduce_sum", [term.value], axes=axes, keepdims=0)
    return _Term(value, tuple(label for label in term.labels if label in kept))


def _without_ones(node: OnnxNode, term: _Term, other: _Term) -> _Term:
    """Remove the dimensions of extent 1 along which the product broadcasts this term.

    These are the dimensions that the other term has with a larger extent.
    """
    extents = dict(zip(other.labels, node.shape(other.value), strict=True))
    shape = node.shape(term.value)
    kept = [d for d, x in enumerate(term.labels) if shape[d] != 1 or extents.get(x, 1) == 1]
    value = node.reshape(term.value, tuple(shape[d] for d in kept))
    return _Term(value, tuple(term.labels[d] for d in kept))


def _spread(node: OnnxNode, term: _Term, labels: Sequence[str]) -> str:
    """Transpose a term's dimensions to the order of `labels`, with extent 1 for missing labels."""
    order = [term.labels.index(label) for label in labels if label in term.labels]
    value = transposed(node, term.value, order)
    extents = iter(node.shape(value))
    shape = [next(extents) if label in term.labels else 1 for label in labels]
    first = next((d for d, label in enumerate(labels) if label in term.labels), len(labels))
    return node.reshape(value, tuple(shape[first:]))


def _product(node: OnnxNode, a: _Term, b: _Term, kept: set[str]) -> _Term:
    """Emit the product of two terms, summed over the shared labels that are not in `kept`."""
    a, b = _without_ones(node, a, b), _without_ones(node, b, a)
    shared = [label for label in a.labels if label in b.labels]
    batch = [label for label in shared if label in kept]
    inner = [label for label in shared if label not in kept]
    left = [label for label in a.labels if label not in shared]
    right = [label for label in b.labels if label not in shared]
    extents = dict(zip(a.labels, node.shape(a.value), strict=True))
    for label, extent in zip(b.labels, node.shape(b.value), strict=True):
        if not equal(extents.setdefault(label, extent), extent):
            raise node.invalid(
                f"label '{label}' of '{node.word('equation')}' names extents that differ, "
                f"{extents[label]} and {extent}"
            )

    labels = (*batch, *left, *right)
    if not inner:
        spread = [_spread(node, term, labels) for term in (a, b)]
        return _Term(node.emit("mul", spread), labels)

    def arranged(term: _Term, *groups: list[str]) -> str:
        order = [term.labels.index(label) for group in groups for label in group]
        shape = [prod(extents[label] for label in group) for group in groups[1:]]
        lead = [extents[label] for label in groups[0]]
        return node.reshape(transposed(node, term.value, order), (*lead, *shape))

    operands = [arranged(a, batch, left, inner), arranged(b, batch, inner, right)]
    value = node.emit("matmul", operands)
    return _Term(node.reshape(value, tuple(extents[label] for label in labels)), labels)


def _onnx_einsum(node: OnnxNode) -> str:
    """Import Einsum.

    With three or more operands of a 16-bit type, intermediate products are float32, because they
    may exceed the range of float16.
    """
    return _terms(node) if len(node.inputs) < 3 else str(in_wide_type(_terms)(node))


def _terms(node: OnnxNode) -> str:
    values = [node.input(i) for i in range(len(node.inputs))]
    inputs, output = _parse(node, [node.shape(value) for value in values])
    terms = [_diagonal(node, _Term(v, labels)) for v, labels in zip(values, inputs, strict=True)]
    result, *rest = terms
    # number of occurrences of a label in the result and the remaining terms
    wanted = Counter(output)
    wanted.update(label for term in rest for label in term.labels)
    for term in rest:
        wanted.subtract(term.labels)
        kept = {label for label, count in wanted.items() if count}
        result = _summed(node, result, kept | set(term.labels))
        term = _summed(node, term, kept | set(result.labels))
        result = _product(node, result, term, kept)
    result = _summed(node, result, set(output))
    return transposed(node, result.value, [result.labels.index(label) for label in output])


RULES = (OnnxRule("Einsum", _onnx_einsum),)
