"""A certificate by steps: every value that a program writes, against the reference of that step.

The reference computes the imported graph in float64. At each value that the program writes, too,
the two are compared, and the reference goes on with the program's own value. So no error is
carried on: each comparison covers the operators since the values that were compared before it, and
passes, fusion, layouts, memory and the kernel with them. By induction the program computes the
imported graph, also where a rounding tie or a choice takes the rest of the model elsewhere.

An element that is further off than rounding allows is excused if rounding explains it: the
operators since the last values run again on values beside those, and what is rounded or chosen
among them is moved by a hair. An integer must be one of the results, a float within a few times as
far from the reference as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compiler import ops
from compiler.dtypes import DType
from compiler.errors import CompilerError
from compiler.graph.ir import Graph, Node
from compiler.loops.semantics import from_memory, to_memory
from compiler.ops.interpret import run_graph
from compiler.ops.registry import OpKind
from service.jobs.observation import Observation
from tuner.measure.oracle import MOVING

_ALLOWED = {
    DType.FLOAT64: 1e-10,
    DType.FLOAT32: 2e-5,
    DType.FLOAT16: 2.0**-9,
    DType.BFLOAT16: 2.0**-6,
}
"""Largest error of a step, relative to the largest element of a channel. Right kernels in float32
reach 6e-6, Winograd's F(6x6) 1.9e-5; of 16 bits it is two roundings."""

ROUNDED = 2.0**-20
"""Elements that are equal but for this share of themselves differ by rounding alone, and do not say
how large the elements are that differ: -1e9 in a mask would excuse everything beside it."""

LEAST_CHANNEL = 16
"""Channels of fewer elements are compared with the largest element of the whole value."""

MOVES = 8
"""Runs beside the reference: in the first all that jumps is moved up, in the second down, then each
element at random."""

POOL = 65_521
"""Random numbers of one comparison: a prime, so that no row of a value has those of the next."""

MOVED_BY = 2.0**-23
"""Standard deviation of the factors around 1 of values that are moved: one rounding of float32."""

SUM_MOVED_BY = 2.5e-6
"""The same of sums of products, as a share of the largest element of their channel: an eighth of
what the sums of a step may be off, which a subtraction behind them may make a large share."""

NEAR_TIE = 2.0**-20
"""How far an operand of a jump is moved, as a share of its largest element: the rounding of a sum
before it."""

AS_FAR = 8.0
"""A float may be so many times further from the reference than the moved ones are."""

MOST_APART = 0.02
"""The most that this may be, as a share of the largest element of the channel: a step of which
rounding explains more is no evidence."""

TIES = 0.1
"""The largest share of a value's integers that ties may excuse; two are always few. A tie in a
table of 256 results takes all elements with it that read the entry."""

TOLD = 3
"""Operators before a wrong value that its error names."""

_SUMS = (OpKind.CONTRACTION, OpKind.ATTENTION, OpKind.REDUCTION, OpKind.ROW)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a comparison by steps found.

    Attributes:
        compared: the values that agree.
        written: the values that kernels and the model's outputs show.
        worst: the largest error of a float, as a share of the largest element of its channel.
        excused: the elements that rounding ties or ill-conditioned steps explain.
    """

    compared: int
    written: int
    worst: float = 0.0
    excused: int = 0


def together(found: Sequence[Certificate]) -> Certificate:
    """Certificates of several sizes as one: the fewest values compared, the most excused."""
    return Certificate(
        min(one.compared for one in found),
        max(one.written for one in found),
        max(one.worst for one in found),
        max(one.excused for one in found),
    )


class WrongProgramError(CompilerError):
    """A program must not be used: it computes something else than its model.

    Attributes:
        value: the first value that is wrong; "" if nobody knows.
        nodes: the operators of the model that make it of values that are right.
    """

    def __init__(self, message: str, value: str = "", nodes: Sequence[Node] = ()) -> None:
        super().__init__(message)
        self.value = value
        self.nodes = tuple(nodes)

    @property
    def within_bodies(self) -> bool:
        """Whether bodies of control flow, which nobody looks into, lie before the value."""
        return any(node.bodies for node in self.nodes)


def jumps(graph: Graph) -> bool:
    """Whether a value that differs by a rounding may take a graph's outputs elsewhere."""
    return any(_jumps(each, node) for each in graph.walk() for node in each.nodes)


def certify(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    seen: Observation,
    ports: Mapping[str, str],
) -> Certificate:
    """Compare all values that the program writes with the graph's.

    Args:
        graph: the imported model, at the sizes of the program.
        inputs: what the program runs on.
        seen: the program on a device.
        ports: the program's outputs, by the graph's.

    Raises:
        WrongProgramError: at the first value that is wrong, or if the program writes other outputs
            once its values are copied.
        DeviceError: if the device cannot run the program.
    """
    if not seen.same_as_plain():
        raise WrongProgramError("the compiled model gives other outputs when its values are copied")
    steps = _Steps(graph, inputs, seen, ports)
    run_graph(graph, inputs, float64=True, chosen=steps)
    written = len(seen.written.keys() | ports.keys())
    return Certificate(steps.compared, written, steps.worst, steps.excused)


class _Steps:
    """Looks at each result of the reference, and gives it the program's own value instead."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, np.ndarray],
        seen: Observation,
        ports: Mapping[str, str],
    ) -> None:
        self._graph = graph
        self._inputs = inputs
        self._seen = seen
        self._ports = ports
        self._own = {
            value: each.type.dtype
            for value, each in seen.written.items()
            if graph.types.get(value) == each.type
        }
        self._own |= {value: graph.types[value].dtype for value in ports}
        self._allowed: dict[str, float] = {}
        self._draw = _Draw()
        self.compared = 0
        self.worst = 0.0
        self.excused = 0

    def __call__(
        self, node: Node, operands: Sequence[np.ndarray], result: np.ndarray
    ) -> np.ndarray:
        name = node.output
        self._allowed[name] = max(
            _rounding(self._graph, node), *(self._allowed.get(v, 0.0) for v in node.inputs), 0.0
        )
        if name not in self._own:
            return result
        own = self._numbers(name)
        if own.shape != result.shape:
            self._wrong(name, f"has the shape {own.shape} instead of {result.shape}")
        self._compare(name, own, result)
        self.compared += 1
        self._allowed[name] = 0.0
        return own

    def _memory(self, name: str) -> np.ndarray:
        """The program's value as it lies in memory."""
        if name in self._ports:
            return self._seen.output(self._ports[name])
        return self._seen.value(name)

    def _numbers(self, name: str) -> np.ndarray:
        """The program's value as the reference computes with it."""
        values = from_memory(self._memory(name), self._own[name])
        return values.astype(np.float64) if self._own[name].is_float else values

    def _compare(self, name: str, own: np.ndarray, right: np.ndarray) -> None:
        """Raises WrongProgramError if an element differs and rounding is not the reason."""
        if self._own[name].is_float:
            scales = _scales(own, right)
            errors, bounds = _errors(own, right), self._allowed[name] * scales
        else:
            scales = np.ones(own.shape)
            errors, bounds = (own != right).astype(np.float64), np.zeros(own.shape)
        wrong = ~(errors <= bounds)
        if not wrong.any():
            self.worst = max(self.worst, float((errors / scales).max(initial=0.0)))
            return
        count = int(wrong.sum())
        if self._own[name].is_float or count <= max(2.0, TIES * wrong.size):
            self.excused += count
            for low, high, moved in self._moved(name, right):
                wrong &= ~((own >= low - bounds) & (own <= high + bounds))
                wrong &= ~((own == moved) | (np.isnan(own) & np.isnan(moved)))
                if not wrong.any():
                    return
        place = np.unravel_index(int(np.argmax(np.where(wrong, errors / scales, -1.0))), own.shape)
        self._wrong(
            name,
            f"is {own[place]:.6g} instead of {right[place]:.6g} at {tuple(map(int, place))}, "
            f"and {count} of its {wrong.size} elements differ",
        )

    def _wrong(self, name: str, what: str) -> None:
        nodes = self._segment(name).nodes
        operators = ", ".join(f"'{node.name}' ({node.op})" for node in nodes[-TOLD:])
        raise WrongProgramError(
            f"value '{name}' of the compiled model {what}; the values before it are right, so that "
            f"this concerns {operators}",
            name,
            nodes,
        )

    def _segment(self, name: str) -> Graph:
        """The operators between a value and those that were compared before it."""
        graph = self._graph
        wanted: set[str] = {name}
        before: set[str] = set()
        nodes: list[Node] = []
        for node in reversed(graph.nodes):
            if node.output not in wanted:
                continue
            if node.output != name and node.output in self._own:
                before.add(node.output)
                continue
            nodes.append(node)
            wanted.update(node.inputs)
        before |= wanted & set(graph.inputs)
        return graph.replace(inputs=sorted(before), nodes=nodes[::-1], outputs=[name])

    def _moved(
        self, name: str, right: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """What a value may be where what it is computed from is moved by roundings: from where,
        up to where, and what it was in one run."""
        segment = self._segment(name)
        given = {}
        for value in segment.inputs:
            dtype = segment.types[value].dtype
            if value in self._inputs:
                given[value] = self._inputs[value]
            else:
                given[value] = to_memory(self._numbers(value), dtype)
        before, end = _before_jump(segment, name)
        maker = segment.producer(before)
        chosen = maker is not None and _jumps(segment, maker)  # positions that lie far apart
        (start,) = run_graph(segment.replace(outputs=[before]), given, float64=True)
        jumped = before != name
        hair = NEAR_TIE * _largest(start) if jumped else 0.0
        numbers = np.abs(_numbers_of(start))
        most = MOST_APART * _by_channel(np.where(np.isfinite(numbers), numbers, 0.0))
        apart = np.zeros(start.shape)
        draw = self._draw
        watched = segment.replace(outputs=[before, name])
        for number in range(MOVES):
            beside = {v: _beside(a, segment.types[v].dtype, draw) for v, a in given.items()}
            mover = _Mover(segment, draw, {0: 1.0, 1: -1.0}.get(number))
            try:
                moved, found = run_graph(watched, beside, float64=True, chosen=mover)
            except CompilerError:
                return  # a loop that ends on these values does not on those beside them
            apart = np.maximum(apart, _errors(_numbers_of(moved), _numbers_of(start)))
            reach = hair + np.minimum((0.0 if chosen else AS_FAR) * apart, most)
            ends = [_numbers_of(start) + sign * reach for sign in (-1.0, 1.0)]
            if jumped:
                dtype = segment.types[before].dtype
                ends = [
                    run_graph(end, {before: to_memory(e, dtype)}, float64=True)[0] for e in ends
                ]
            yield np.minimum(np.minimum(*ends), right), np.maximum(np.maximum(*ends), right), found


def _before_jump(segment: Graph, name: str) -> tuple[str, Graph]:
    """The operand of the first jump among the elementwise operators that end a segment, and the
    operators from there; the value itself if none of them jumps."""
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
    """Integers and truth values as float64."""
    return array.astype(np.float64, copy=False)


def _integral(array: np.ndarray) -> bool:
    """Whether all numbers are integers, which rounding leaves as they are: what was rounded before
    must not be cut off by a hair."""
    return array.dtype.kind != "f" or bool((array == np.rint(array)).all())


def _largest(array: np.ndarray) -> float:
    """The largest finite magnitude."""
    numbers = _numbers_of(array)
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


class _Draw:
    """Standard normal numbers from a pool, each time from another place of it: drawing them anew
    takes longer than the operators between two values."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(MOVES)
        self._pool = self._rng.standard_normal(POOL)

    def __call__(self, shape: tuple[int, ...]) -> np.ndarray:
        start = int(self._rng.integers(POOL))
        return np.resize(np.roll(self._pool, start), shape)


class _Mover:
    """Moves results by a rounding of float32, and operands of jumps by a hair: up, down, or each
    element at random."""

    def __init__(self, graph: Graph, draw: _Draw, sign: float | None) -> None:
        self._graph = graph
        self._draw = draw
        self._sign = sign

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
        by = MOVED_BY * result
        if operator.kind in _SUMS:
            by = SUM_MOVED_BY * _by_channel(np.where(np.isfinite(result), np.abs(result), 0.0))
        moved: np.ndarray = result + by * self._draw(result.shape)
        return moved

    def _shifted(self, array: np.ndarray) -> np.ndarray:
        by = NEAR_TIE * _largest(array)
        if self._sign is not None:
            return array + self._sign * by
        shifted: np.ndarray = array + by * np.sign(self._draw(array.shape))
        return shifted


def _beside(array: np.ndarray, dtype: DType, draw: _Draw) -> np.ndarray:
    """An array in memory with floats beside its own."""
    if dtype is not DType.FLOAT32 or _integral(array):  # 16 bits lose a rounding of float32
        return array
    factors = 1.0 + MOVED_BY * draw(array.shape)
    return (array * factors).astype(np.float32)


def _jumps(graph: Graph, node: Node) -> bool:
    """Whether a node's result jumps where a float that was computed hardly moves."""
    floats = any(
        graph.types[value].dtype.is_float and value not in graph.constants for value in node.inputs
    )
    if not floats or node.bodies:
        return False
    operator = ops.get(node.op)
    return (
        operator.jumps or operator.native is not None or not graph.types[node.output].dtype.is_float
    )


def _rounding(graph: Graph, node: Node) -> float:
    """What a node and its bodies round by, as the largest error that a step may have."""
    inner = (_rounding(body, step) for body in node.bodies for step in body.nodes)
    exact = ops.get(node.op).kind in MOVING
    return max(0.0 if exact else _ALLOWED.get(graph.types[node.output].dtype, 0.0), *inner, 0.0)


def _errors(own: np.ndarray, right: np.ndarray) -> np.ndarray:
    """How far elements are apart: 0 where both are the same infinity or no numbers, infinite where
    one of them is."""
    with np.errstate(all="ignore"):
        errors = np.abs(own - right)
    same = (own == right) | (np.isnan(own) & np.isnan(right))
    found: np.ndarray = np.where(same, 0.0, np.where(np.isnan(errors), np.inf, errors))
    return found


def _scales(own: np.ndarray, right: np.ndarray) -> np.ndarray:
    """By element, the largest finite element of its channel among those that differ by more than a
    rounding; 1 where all are zero."""
    with np.errstate(all="ignore"):
        sizes = np.where(np.isfinite(right), np.abs(right), 0.0)
        sizes = np.where(np.abs(own - right) > ROUNDED * sizes, sizes, 0.0)
    scales = _by_channel(sizes)
    return np.where(scales > 0.0, scales, 1.0)


def _by_channel(sizes: np.ndarray) -> np.ndarray:
    """By element, the largest of its channel, which is the second axis; of the whole value if
    channels have few elements."""
    axes = tuple(axis for axis in range(sizes.ndim) if axis != 1)
    if sizes.ndim < 2 or sizes.size < LEAST_CHANNEL * sizes.shape[1]:
        axes = tuple(range(sizes.ndim))
    return np.broadcast_to(sizes.max(axis=axes, keepdims=True, initial=0.0), sizes.shape)
