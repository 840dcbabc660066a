"""Estimates how far rounding may change the results of a few operators of a model.

The operators run again on slightly perturbed inputs. Values that the operators round or compare are
perturbed too, so that a value close to a threshold falls on either side of it. A large spread of
the results shows that the operators are ill-conditioned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.ops.registry import OpKind
from tilewright.tuner.measure.oracle import MOVING

LEAST_CHANNEL = 16
"""Minimum number of elements per channel. In smaller channels, errors are relative to the largest
element of the whole value."""

MOVES = 8
"""Number of perturbed runs in addition to the reference. The first run moves all operands of
discontinuous operators up, the second down; each later run moves each element at random."""

POOL = 65_521
"""Number of random numbers in the pool of a comparison. It is prime, so that consecutive rows of a
value get different numbers."""

MOVED_BY = 2.0**-23
"""Standard deviation of the random factors around 1 that perturb float32 values: one rounding of
float32."""

HALF_MOVED_BY = {DType.FLOAT16: 2.0**-12, DType.BFLOAT16: 2.0**-9}
"""`MOVED_BY` for 16-bit types: half the distance between 1 and the next smaller number."""

SUM_MOVED_BY = 2.5e-6
"""Perturbation of sums of products, as a fraction of the largest element of their channel. It is an
eighth of the error that is allowed for the sums of a step.

After a subtraction, the error may be a large fraction of the result itself. The constant also
applies to all values that bodies of control flow read, because nothing is perturbed inside bodies.
"""

TERMS_MOVED_BY = 2.0**-25
"""Minimum perturbation of sums of products, as a fraction of the sum of their terms' magnitudes. If
thousands of terms cancel, the result is small compared with the roundings of the partial sums."""

NEAR_TIE = 2.0**-20
"""Perturbation of an operand of a discontinuous operator, such as a comparison, as a fraction of
the operand's largest element. It stands for the rounding of a preceding sum."""

DEVIATION_FACTOR = 8.0
"""Allowed distance of a float from the reference, as a multiple of the largest distance in
perturbed runs."""

MOST_DEVIATION = 0.02
"""Limit of the allowed distance of a float from the reference, as a fraction of the channel's
largest element. A step for which rounding explains a larger error is not evidence of
correctness."""

PRODUCTS = (OpKind.CONTRACTION, OpKind.ATTENTION)

HALF_MOST_DEVIATION = 0.25
"""`MOST_DEVIATION` for programs that multiply in 16 bits. An activation may leave little of a sum;
the rounding of the sum is then a large fraction of the result."""

SUMS = (OpKind.CONTRACTION, OpKind.ATTENTION, OpKind.REDUCTION, OpKind.ROW)


@dataclass(frozen=True, slots=True)
class RoundingInterval:
    """For each element of a value, the range of results that rounding may cause.

    Attributes:
        low: the lower end for each element.
        high: the upper end for each element.
        found: the result of the last perturbed run.
        deviation: the distance by which rounding may move each element. Unlike `low` and `high`, it
            is not limited by `MOST_DEVIATION`.
    """

    low: np.ndarray
    high: np.ndarray
    found: np.ndarray
    deviation: np.ndarray


def jumps(graph: Graph) -> bool:
    """Whether the graph has a discontinuous operator, such as a comparison or a rounding."""
    return any(_jumps(each, node) for each in graph.walk() for node in each.nodes)


def has_bodies(graph: Graph) -> bool:
    """Whether the graph has a node with bodies: a loop or a branch."""
    return any(node.bodies for node in graph.nodes)


def rounding_intervals(
    segment: Graph,
    given: Mapping[str, np.ndarray],
    right: np.ndarray,
    draw: NormalPool,
    narrow: DType | None = None,
    mixed: bool = False,
) -> Iterator[RoundingInterval]:
    """Run a graph repeatedly on perturbed inputs, to find how far rounding may change its output.

    After each run, yield the range of each output element over all runs so far. So the ranges widen
    from run to run. The iteration ends early if a perturbed run fails.

    Args:
        segment: the graph; it has one output.
        given: the inputs by name.
        right: the expected output; the ranges always contain it.
        draw: generates random numbers.
        narrow: the 16-bit float type in which the program computes matrix products and
            convolutions; None if it uses wider types.
        mixed: whether the kernel's algorithm adds elements of different rows and columns, as
            Strassen's does. The rounding of the largest sums then affects all others.
    """
    (name,) = segment.outputs
    before, end = _before_jump(segment, name)
    maker = segment.producer(before)
    chosen = maker is not None and _jumps(segment, maker)  # e.g. positions, which may differ widely
    (start,) = run_graph(segment.replace(outputs=[before]), given, float64=True)
    jumped = before != name
    hair = NEAR_TIE * _largest(start) if jumped else 0.0
    numbers = np.abs(_numbers_of(start))
    share = MOST_DEVIATION if narrow is None else HALF_MOST_DEVIATION
    most = share * by_channel(np.where(np.isfinite(numbers), numbers, 0.0))
    deviation = np.zeros(start.shape)
    watched = segment.replace(outputs=[before, name])
    by = SUM_MOVED_BY if has_bodies(segment) else MOVED_BY
    terms: dict[str, np.ndarray] = {}
    for number in range(MOVES):
        moved_by = {v: _moved(a, segment.types[v].dtype, by, draw) for v, a in given.items()}
        mover = _Mover(segment, draw, {0: 1.0, 1: -1.0}.get(number), narrow, mixed, terms)
        try:
            moved, found = run_graph(watched, moved_by, float64=True, chosen=mover)
        except CompilerError:
            return  # a loop that ends on these values does not end on the perturbed ones
        deviation = np.maximum(deviation, errors_of(_numbers_of(moved), _numbers_of(start)))
        reach = hair + np.minimum((0.0 if chosen else DEVIATION_FACTOR) * deviation, most)
        ends = [_numbers_of(start) + sign * reach for sign in (-1.0, 1.0)]
        if jumped:
            dtype = segment.types[before].dtype
            ends = [run_graph(end, {before: to_memory(e, dtype)}, float64=True)[0] for e in ends]
        low, high = np.minimum(*ends), np.maximum(*ends)
        yield RoundingInterval(
            np.minimum(low, right), np.maximum(high, right), found, DEVIATION_FACTOR * deviation
        )


def _before_jump(segment: Graph, name: str) -> tuple[str, Graph]:
    """Find the first discontinuous operator among the last elementwise operators of a graph.

    The search goes backwards from the output. It ends at an operator that reads several computed
    values, or that is neither elementwise nor a view.

    Args:
        segment: the graph.
        name: the output of the graph.

    Returns:
        the operand of the discontinuous operator, and the graph from this operand to the output.
        Without such an operator: `name` and a graph without nodes.
    """
    chain: list[Node] = []
    before, kept, value = name, 0, name
    while True:
        node = segment.producer(value)
        if node is None or ops.get(node.op).kind not in (OpKind.ELEMENTWISE, OpKind.VIEW):
            break
        computed = [each for each in node.inputs if each not in segment.constants]
        if len(computed) != 1:
            break
        chain.append(node)
        (value,) = computed
        if _jumps(segment, node):
            before, kept = value, len(chain)
    nodes = chain[:kept][::-1]
    return before, segment.replace(inputs=[before], nodes=nodes, outputs=[name])


def _numbers_of(array: np.ndarray) -> np.ndarray:
    """Return an array of floats, integers or booleans as float64."""
    return array.astype(np.float64, copy=False)


def _integral(array: np.ndarray) -> bool:
    """Whether all elements of an array are integers; such arrays are not perturbed.

    A perturbed integer may lie slightly below the original, and truncation would then change the
    result.
    """
    return array.dtype.kind != "f" or bool((array == np.rint(array)).all())


def _largest(array: np.ndarray) -> float:
    """Return the largest absolute value of an array; infinities and NaNs are ignored."""
    numbers = _numbers_of(array)
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


class NormalPool:
    """Generates arrays of standard normal random numbers, which perturb a model's values.

    A call takes the shape of the array. The numbers come from one pool of POOL numbers, starting at
    a random position. Generating new numbers would take longer than the operators themselves.
    """

    def __init__(self) -> None:
        self._rng = np.random.default_rng(MOVES)
        self._pool = self._rng.standard_normal(POOL)

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        start = int(self._rng.integers(POOL))
        return np.resize(np.roll(self._pool, start), shape)


class _Mover:
    """Perturbs the values of one run: the result of each node, and operands of discontinuous nodes.

    `run_graph` calls an instance with each node, its operands and its result; the call returns the
    perturbed result. The operands of a discontinuous node, such as a comparison, are increased,
    decreased, or changed in a random direction per element.
    """

    def __init__(
        self,
        graph: Graph,
        draw: NormalPool,
        sign: float | None,
        narrow: DType | None,
        mixed: bool,
        terms: dict[str, np.ndarray],
    ) -> None:
        """Create the perturbation of one run.

        Args:
            graph: the graph to run.
            draw: generates random numbers.
            sign: 1.0 to increase the operands of discontinuous operators, -1.0 to decrease them,
                None to change each element in a random direction.
            narrow: the 16-bit float type in which the program computes matrix products and
                convolutions; None if it uses wider types.
            mixed: whether the kernel's algorithm adds elements of different rows and columns, as
                Strassen's does.
            terms: a cache that all runs share. For each sum or product, by the name of its result,
                it has the sum of the absolute values of its terms.
        """
        self._terms = terms
        self._graph = graph
        self._draw = draw
        self._sign = sign
        self._narrow = narrow
        self._mixed = mixed

    def __call__(
        self, node: Node, operands: Sequence[np.ndarray], result: np.ndarray
    ) -> np.ndarray:
        operator = ops.get(node.op)
        if _jumps(self._graph, node):
            shifted = [each if _integral(each) else self._shifted(each) for each in operands]
            with np.errstate(all="ignore"):
                return np.asarray(operator.reference(shifted, node.attrs))
        if operator.kind in MOVING or _integral(result):
            return result
        share = HALF_MOVED_BY.get(self._graph.types[node.output].dtype, MOVED_BY)
        if self._narrow is not None and operator.kind in PRODUCTS:
            share = HALF_MOVED_BY[self._narrow]
        by = share * result
        if operator.kind in SUMS or _adds_up(node):
            sizes = np.where(np.isfinite(result), np.abs(result), 0.0)
            by = max(share, SUM_MOVED_BY) * by_channel(sizes)
        floats = all(each.dtype.kind == "f" for each in operands)
        if (operator.kind is OpKind.CONTRACTION and floats) or _adds_up(node):
            if node.output not in self._terms:
                magnitudes = [np.abs(each) if each.dtype.kind == "f" else each for each in operands]
                sums = operator.reference(magnitudes, node.attrs)
                if self._mixed:
                    sums = np.full_like(sums, _largest(sums))
                self._terms[node.output] = sums
            by = np.maximum(by, TERMS_MOVED_BY * self._terms[node.output])
        moved: np.ndarray = result + by * self._draw(result.shape)
        return moved

    def _shifted(self, array: np.ndarray) -> np.ndarray:
        by = NEAR_TIE * _largest(array)
        if self._sign is not None:
            return array + self._sign * by
        shifted: np.ndarray = array + by * np.sign(self._draw(array.shape))
        return shifted


def _moved(array: np.ndarray, dtype: DType, by: float, draw: NormalPool) -> np.ndarray:
    """Return a copy of a float32 array, multiplied by random factors close to 1.

    Arrays of other types, and float32 arrays whose elements are all integers, are returned
    unchanged.

    Args:
        array: the array.
        dtype: its type in the graph.
        by: the standard deviation of the factors.
        draw: the source of random numbers.
    """
    if dtype is not DType.FLOAT32 or _integral(array):  # 16-bit types would absorb the change
        return array
    with np.errstate(over="ignore"):  # the largest float32 may become infinite
        return (array * (1.0 + by * draw(array.shape))).astype(np.float32)


def _jumps(graph: Graph, node: Node) -> bool:
    """Whether a node's result is discontinuous in a float operand that is not a constant."""
    floats = any(
        graph.types[value].dtype.is_float and value not in graph.constants for value in node.inputs
    )
    if not floats or node.bodies or node.op == "field" or _adds_up(node):
        return False
    operator = ops.get(node.op)
    return (
        operator.jumps or operator.native is not None or not graph.types[node.output].dtype.is_float
    )


def _adds_up(node: Node) -> bool:
    """Whether a node calls a function of the C runtime that adds elements.

    The C runtime's functions for other operators only select elements.
    """
    sums = ops.get(node.op).sums
    return sums is not None and sums(node.attrs)


def errors_of(own: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the absolute difference of each element of `own` from the reference `right`.

    The difference is 0 if both elements are NaN or the same infinity. It is infinite if only one of
    the two is NaN or infinite.
    """
    with np.errstate(all="ignore"):
        errors: np.ndarray = np.abs(own - right)
    if np.isfinite(errors).all():
        return errors
    same = (own == right) | (np.isnan(own) & np.isnan(right))
    found: np.ndarray = np.where(same, 0.0, np.where(np.isnan(errors), np.inf, errors))
    return found


def by_channel(sizes: np.ndarray) -> np.ndarray:
    """Replace each element of an array by the largest element of its channel (index of axis 1).

    If the channels have fewer than LEAST_CHANNEL elements, the largest element of the whole array
    is used. The shape is unchanged.
    """
    axes = tuple(axis for axis in range(sizes.ndim) if axis != 1)
    if sizes.ndim < 2 or sizes.size < LEAST_CHANNEL * sizes.shape[1]:
        axes = tuple(range(sizes.ndim))
    return np.broadcast_to(sizes.max(axis=axes, keepdims=True, initial=0.0), sizes.shape)
