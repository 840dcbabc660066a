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

MOVED_BY = 2.0**-23
"""Standard deviation of the factors around 1 of values that are moved: one rounding of float32."""

NEAR_TIE = 2.0**-20
"""How far an operand of a jump is moved, as a share of its largest element: the rounding of a sum
before it."""

AS_FAR = 8.0
"""A float may be so many times further from the reference than the moved ones are."""

TIES = 0.01
"""The largest share of a value's integers that ties may excuse; two are always few."""

JUMPS = frozenset({"round", "floor", "ceil", "sign", "mod", "fmod"})
"""Operators from floats to floats whose results jump."""

_EXACT = (OpKind.MOVEMENT, OpKind.PIECES, OpKind.VIEW, OpKind.GATHER)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a comparison by steps found.

    Attributes:
        compared: the values that agree.
        written: the values that kernels write.
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


class WrongValueError(CompilerError):
    """A program writes a value that the operators before it do not explain.

    Attributes:
        value: its name.
        workload: the key of the kernel's workload; "" if no kernel wrote it.
        within_bodies: whether bodies of control flow, which nobody looks into, lie before it.
    """

    def __init__(self, message: str, value: str, workload: str, *, within_bodies: bool) -> None:
        super().__init__(message)
        self.value = value
        self.workload = workload
        self.within_bodies = within_bodies


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
        WrongValueError: at the first value that is wrong.
        CompilerError: if the program writes other outputs once it is looked at.
        DeviceError: if the device cannot run the program.
    """
    if not seen.same_as_plain():
        raise CompilerError("the compiled model gives other outputs when its values are copied")
    steps = _Steps(graph, inputs, seen, ports)
    run_graph(graph, inputs, float64=True, chosen=steps)
    return Certificate(steps.compared, len(seen.written), steps.worst, steps.excused)


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
        """Raises WrongValueError if an element differs and rounding is not the reason."""
        if not self._own[name].is_float:
            self._compare_integers(name, own, right)
            return
        scales = _scales(own, right)
        errors = _errors(own, right)
        bounds = self._allowed[name] * scales
        wrong = ~(errors <= bounds)
        if not wrong.any():
            self.worst = max(self.worst, float((errors / scales).max(initial=0.0)))
            return
        self.excused += int(wrong.sum())
        apart = np.zeros_like(right)
        for moved in self._moved(name):
            apart = np.maximum(apart, _errors(moved, right))
            same = _errors(own, moved) == 0.0  # also where both are infinite
            reach = np.where(np.isfinite(apart), AS_FAR * apart, 0.0)
            wrong &= ~((errors <= bounds + reach) | same)
            if not wrong.any():
                return
        place = np.unravel_index(int(np.argmax(np.where(wrong, errors / scales, -1.0))), own.shape)
        self._wrong(
            name,
            f"is {own[place]:.6g} instead of {right[place]:.6g} at {tuple(map(int, place))}, "
            f"and so are {int(wrong.sum())} of its {wrong.size} elements wrong",
        )

    def _compare_integers(self, name: str, own: np.ndarray, right: np.ndarray) -> None:
        wrong = own != right
        ties = int(wrong.sum())
        if not ties:
            return
        if ties <= max(2.0, TIES * wrong.size):
            self.excused += ties
            for moved in self._moved(name):
                wrong &= own != moved
                if not wrong.any():
                    return
        place = np.unravel_index(int(np.argmax(wrong)), own.shape)
        self._wrong(
            name,
            f"is {own[place]} instead of {right[place]} at {tuple(map(int, place))}, "
            f"and {ties} of its {wrong.size} elements differ",
        )

    def _wrong(self, name: str, what: str) -> None:
        segment = self._segment(name)
        bodies = any(node.bodies for node in segment.nodes)
        raise WrongValueError(
            f"value '{name}' of the compiled model {what}; the values before it are right",
            name,
            self._seen.workloads.get(name, ""),
            within_bodies=bodies,
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

    def _moved(self, name: str) -> Iterator[np.ndarray]:
        """The value where what it is computed from is moved by roundings."""
        segment = self._segment(name)
        given = {}
        for value in segment.inputs:
            dtype = segment.types[value].dtype
            if value in self._inputs:
                given[value] = self._inputs[value]
            else:
                given[value] = to_memory(self._numbers(value), dtype)
        rng = np.random.default_rng(MOVES)
        for number in range(MOVES):
            beside = {v: _beside(a, segment.types[v].dtype, rng) for v, a in given.items()}
            mover = _Mover(segment, rng, {0: 1.0, 1: -1.0}.get(number))
            try:
                (found,) = run_graph(segment, beside, float64=True, chosen=mover)
            except CompilerError:
                return  # a loop that ends on these values does not on those beside them
            yield found


class _Mover:
    """Moves results by a rounding of float32, and operands of jumps by a hair: up, down, or each
    element at random."""

    def __init__(self, graph: Graph, rng: np.random.Generator, sign: float | None) -> None:
        self._graph = graph
        self._rng = rng
        self._sign = sign

    def __call__(
        self, node: Node, operands: Sequence[np.ndarray], result: np.ndarray
    ) -> np.ndarray:
        operator = ops.get(node.op)
        if _jumps(self._graph, node):
            shifted = [
                self._shifted(each) if self._graph.types[value].dtype.is_float else each
                for value, each in zip(node.inputs, operands, strict=True)
            ]
            with np.errstate(all="ignore"):
                return np.asarray(operator.reference(shifted, node.attrs))
        if operator.kind in _EXACT or result.dtype.kind != "f":
            return result
        moved: np.ndarray = result * (1.0 + MOVED_BY * self._rng.standard_normal(result.shape))
        return moved

    def _shifted(self, array: np.ndarray) -> np.ndarray:
        by = NEAR_TIE * float(np.abs(array[np.isfinite(array)]).max(initial=0.0))
        if self._sign is not None:
            return array + self._sign * by
        shifted: np.ndarray = array + by * self._rng.choice((-1.0, 1.0), array.shape)
        return shifted


def _beside(array: np.ndarray, dtype: DType, rng: np.random.Generator) -> np.ndarray:
    """An array in memory with floats beside its own."""
    if dtype is not DType.FLOAT32:  # a rounding of float32 is lost in 16 bits
        return array
    factors = 1.0 + MOVED_BY * rng.standard_normal(array.shape)
    return (array * factors).astype(np.float32)


def _jumps(graph: Graph, node: Node) -> bool:
    """Whether a node's result jumps where a float that was computed hardly moves."""
    floats = any(
        graph.types[value].dtype.is_float and value not in graph.constants for value in node.inputs
    )
    if not floats or node.bodies:
        return False
    native = ops.get(node.op).native is not None
    return native or node.op in JUMPS or not graph.types[node.output].dtype.is_float


def _rounding(graph: Graph, node: Node) -> float:
    """What a node and its bodies round by, as the largest error that a step may have."""
    inner = (_rounding(body, step) for body in node.bodies for step in body.nodes)
    exact = ops.get(node.op).kind in _EXACT
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
    rounding; the channel is the second axis. 1 where all are zero."""
    with np.errstate(all="ignore"):
        sizes = np.where(np.isfinite(right), np.abs(right), 0.0)
        sizes = np.where(np.abs(own - right) > ROUNDED * sizes, sizes, 0.0)
    axes = tuple(axis for axis in range(right.ndim) if axis != 1)
    if right.ndim < 2 or right.size < LEAST_CHANNEL * right.shape[1]:
        axes = tuple(range(right.ndim))
    scales = sizes.max(axis=axes, keepdims=True, initial=0.0)
    scales = np.where(scales > 0.0, scales, 1.0)
    return np.broadcast_to(scales, right.shape)
