"""Verifies a program step by step: compares each value that the program writes with a reference.

The reference computes the imported graph (the ONNX model before any compiler pass) in float64.
After each comparison, the reference continues with the program's value instead of its own value. So
errors do not propagate. Each comparison tests only the operators since the previously compared
values, and the passes that changed these operators. If all comparisons succeed, the whole program
computes the imported graph. This holds even if rounding flips a comparison or selection in the
model, and thereby changes all later values.

An element whose error exceeds the rounding bound is excused if rounding can explain the error. To
test this, the operators since the previously compared values run again on slightly perturbed
operands. The results of each operator, and the operands of discontinuous operators such as a
comparison, are perturbed too. An integer is excused if a perturbed run also produced it. A float is
excused if its distance from the reference is small enough. The limit is a few times the largest
distance between a perturbed and an unperturbed result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.ops.interpret import run_graph
from tilewright.service.jobs.evidence.correspondence import Shown, correspondence, narrow_products
from tilewright.service.jobs.evidence.observation import Observation
from tilewright.service.jobs.evidence.ties import (
    PRODUCTS,
    NormalPool,
    by_channel,
    errors_of,
    has_bodies,
    rounding_intervals,
)
from tilewright.tuner.measure.oracle import MOVING

_ALLOWED = {
    DType.FLOAT64: 1e-10,
    DType.FLOAT32: 2e-5,
    DType.FLOAT16: 2.0**-10,
    DType.BFLOAT16: 2.0**-7,
}
"""Largest error of a step that is allowed, relative to the largest element of its channel, by type.

Correct float32 kernels reach 6e-6, and 1.9e-5 with Winograd's F(6x6). For 16-bit types, the limit
is two roundings.
"""

_ROUNDED = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}
"""Relative error that rounding to the stored type may add, for 16-bit types. Other types may add
`ROUNDED`."""

ROUNDED = 2.0**-20
"""Relative difference up to which an element counts as equal to the reference.

Errors are relative to the largest element of their channel. Elements that are equal, or become
equal by rounding to their type, are ignored in this maximum. Otherwise a -1e9 in a mask would
excuse all errors in its channel.
"""

_LEAST = {DType.FLOAT16: 2.0**-24, DType.FLOAT32: 2.0**-126, DType.BFLOAT16: 2.0**-126}
"""Absolute error that an underflow may add, by type. Processors may flush smaller numbers to
zero."""

TIES = 0.1
"""Largest fraction of an integer tensor's elements that may deviate because of ties in rounding.
Two elements are always permitted.

For example, a tie in one entry of a lookup table with 256 entries changes all elements that read
the entry.
"""

TOLD = 3
"""Number of operators before a wrong value that the error message names."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The result of comparing a program's values with a reference, step by step.

    The values are the outputs of kernels and of the model.

    Attributes:
        compared: the number of values that were compared and agree.
        written: the number of all values that the program writes, compared or not.
        worst: the largest error of a float, relative to the largest element of its channel.
        excused: the number of elements whose error exceeds the rounding bound, but is explained by
            rounding, for example a rounding tie or a step that amplifies errors.
        unverified: the names of values that are computed from a loop or branch and differ from the
            reference, perhaps because of rounding.
    """

    compared: int
    written: int
    worst: float = 0.0
    excused: int = 0
    unverified: tuple[str, ...] = ()


def together(found: Sequence[Certificate]) -> Certificate:
    """Combine the certificates of several programs and sizes.

    The counts are added, the largest error is kept, and the lists of names are merged.
    """
    return Certificate(
        sum(one.compared for one in found),
        sum(one.written for one in found),
        max(one.worst for one in found),
        sum(one.excused for one in found),
        tuple(dict.fromkeys(name for one in found for name in one.unverified)),
    )


class WrongProgramError(CompilerError):
    """A program computes a wrong value, so it must not be used.

    Attributes:
        value: the name of the first wrong value in the model; "" if it is unknown.
        nodes: the operators of the model that compute `value` from correct values.
        written: the values that the program writes and from which `value` is read, by name. This is
            `value` itself if the program writes it.
    """

    def __init__(
        self,
        message: str,
        value: str = "",
        nodes: Sequence[Node] = (),
        written: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.value = value
        self.nodes = tuple(nodes)
        self.written = tuple(written) or (value,)


def certify(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    seen: Observation,
    ports: Mapping[str, str],
) -> Certificate:
    """Compare the values that a program writes with a reference computation, step by step.

    Args:
        graph: the imported model, at the sizes of the program.
        inputs: the inputs of the program's run.
        seen: the program's values, observed on a device.
        ports: maps each output of the graph to the output of the program.

    Raises:
        WrongProgramError: at the first wrong value, or if the program's outputs change when it also
            copies its intermediate values for observation.
        DeviceError: if the device cannot run the program.
    """
    if not seen.same_as_plain():
        raise WrongProgramError("the compiled model gives other outputs when its values are copied")
    steps = _Steps(graph, inputs, seen, ports)
    run_graph(graph, inputs, float64=True, chosen=steps)
    return steps.certificate()


class _Steps:
    """Compares each result of the reference computation with the program's value.

    The reference computation calls an instance with each result. The call compares the result with
    the program's value and returns the program's value, with which the reference continues.
    """

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
        self._shown = correspondence(graph, seen.graph, seen.written)
        self._narrow = narrow_products(seen.graph)
        self._allowed: dict[str, float] = {}
        self._draw = NormalPool()
        self._compared: set[str] = set()
        self._worst = 0.0
        self._excused = 0
        self._unverified: list[str] = []

    def certificate(self) -> Certificate:
        """Return the certificate of all values compared so far."""
        return Certificate(
            len(self._compared),
            len(self._seen.written.keys() | self._ports.keys()),
            self._worst,
            self._excused,
            tuple(self._unverified),
        )

    def __call__(
        self, node: Node, operands: Sequence[np.ndarray], result: np.ndarray
    ) -> np.ndarray:
        name = node.output
        self._allowed[name] = self._step(node)
        found = [*self._own(name)]
        for dtype, own in found:
            if own.shape != result.shape:
                self._wrong(name, f"has the shape {own.shape} instead of {result.shape}")
            self._compare(name, dtype, own, result)
        if not found:
            return result
        self._compared.update(self._writers(name))
        # a kernel continues with the value before it is rounded for the output
        rounded = 0.0 if self._direct(name) else _ROUNDED.get(found[0][0], 0.0)
        self._allowed[name] = rounded / 2
        return found[0][1]

    def _step(self, node: Node) -> float:
        """Return the largest relative error allowed for the result of `node`.

        It is the largest of the rounding error of `node` and the errors allowed for the operands of
        `node`.
        """
        own = _rounding(self._graph, node)
        if self._narrow is not None and (ops.get(node.op).kind in PRODUCTS or node.bodies):
            own = max(own, _ALLOWED[self._narrow])
        for value in node.inputs:
            maker = self._graph.producer(value)
            if maker is not None and maker.bodies and value not in self._allowed:
                self._allowed[value] = self._step(maker)  # only its fields are read
        return max(own, *(self._allowed.get(value, 0.0) for value in node.inputs), 0.0)

    def _is_shown(self, name: str) -> bool:
        return name in self._ports or name in self._shown

    def _writers(self, name: str) -> tuple[str, ...]:
        """Return the names of the program's values from which the model's value `name` is read.

        For an output of the model, `name` itself is among them.
        """
        shown = self._direct(name)
        own = (origin for each in shown for origin in each.origins)
        return tuple(dict.fromkeys([*([name] if name in self._ports else []), *own]))

    def _direct(self, name: str) -> tuple[Shown, ...]:
        """Return the ways to compute a value of the model that are compared with the reference.

        Each way computes the value from values that the program writes. If written values hold the
        whole value, one way per written value is returned. So the value is compared wherever a
        kernel writes it.

        Otherwise, one way is returned that selects or combines elements of written values. For an
        output of the model, no such way is returned, because the output itself is compared.
        """
        shown = self._shown.get(name, ())
        direct = tuple(each for each in shown if each.whole)
        return direct or (() if name in self._ports else shown[:1])

    def _own(self, name: str) -> Iterator[tuple[DType, np.ndarray]]:
        """Yield the program's arrays for a value of the graph, each with its type in the plan.

        There are several arrays if kernels write the value several times, or if it is also an
        output.
        """
        for each in self._direct(name):
            written = {origin: self._seen.value(origin) for origin in each.origins}
            yield each.type.dtype, _computed(each.numbers(written), each.type.dtype)
        if name in self._ports:
            dtype = self._graph.types[name].dtype
            yield dtype, _computed(from_memory(self._seen.output(self._ports[name]), dtype), dtype)

    def _compare(self, name: str, dtype: DType, own: np.ndarray, right: np.ndarray) -> None:
        """Raise WrongProgramError if an element differs from the reference more than rounding
        explains.

        Args:
            name: the value.
            dtype: the type of the value in the plan.
            own: the program's array.
            right: the reference's array, of the same shape.
        """
        if dtype.is_float:
            right = _in_range(right, dtype)
            errors, scales = errors_of(own, right), _scales(own, right, dtype)
            sizes = np.where(np.isfinite(right), np.abs(right), 0.0)
            stored = _ROUNDED.get(dtype, ROUNDED) * sizes + _LEAST.get(dtype, 0.0)
            bounds = self._allowed[name] * scales + stored
        else:
            scales = np.ones(own.shape)
            errors, bounds = (own != right).astype(np.float64), np.zeros(own.shape)
        wrong = ~(errors <= bounds)
        if not wrong.any():
            if dtype.is_float:
                shares = np.maximum(errors - stored, 0.0) / scales
                self._worst = max(self._worst, float(shares.max(initial=0.0)))
            return
        count = int(wrong.sum())
        segment, given = self._before(name)
        hidden, last = has_bodies(segment), None
        if dtype.is_float or hidden or count <= max(2.0, TIES * wrong.size):
            mixed = not self._seen.mixed.isdisjoint(self._writers(name))
            for last in rounding_intervals(segment, given, right, self._draw, self._narrow, mixed):
                wrong &= ~((own >= last.low - bounds) & (own <= last.high + bounds))
                wrong &= ~(errors_of(own, last.found) <= bounds)
                if not wrong.any():
                    self._excused += count
                    return
        if hidden and (last is None or not (errors > last.deviation)[wrong].any()):
            self._unverified.append(name)
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
            self._writers(name),
        )

    def _segment(self, name: str) -> Graph:
        """Return the operators that compute a value from the nearest compared values before it.

        The operators form a graph: its inputs are the compared values, its output is the value
        `name`.
        """
        graph = self._graph
        wanted: set[str] = {name}
        before: set[str] = set()
        nodes: list[Node] = []
        for node in reversed(graph.nodes):
            if node.output not in wanted:
                continue
            if node.output != name and self._is_shown(node.output):
                before.add(node.output)
                continue
            nodes.append(node)
            wanted.update(node.inputs)
        before |= wanted & set(graph.inputs)
        return graph.replace(inputs=sorted(before), nodes=nodes[::-1], outputs=[name])

    def _before(self, name: str) -> tuple[Graph, dict[str, np.ndarray]]:
        """Return the operators that compute a value from the nearest compared values before it.

        Also return the program's arrays for the inputs of these operators, by name.
        """
        segment = self._segment(name)
        given, types = {}, dict(segment.types)
        for value in segment.inputs:
            if value in self._inputs:
                given[value] = self._inputs[value]
                continue
            dtype, numbers = next(self._own(value))
            types[value] = replace(types[value], dtype=dtype)
            given[value] = to_memory(numbers, dtype)
        return segment.replace(types=types), given


def _computed(values: np.ndarray, dtype: DType) -> np.ndarray:
    return values.astype(np.float64) if dtype.is_float else values


def _rounding(graph: Graph, node: Node) -> float:
    """Return the largest relative rounding error of a node's result.

    The result is 0 for a node that only moves elements. For a loop or branch, the rounding errors
    of the nodes in its bodies count, too.
    """
    inner = (_rounding(body, step) for body in node.bodies for step in body.nodes)
    exact = ops.get(node.op).kind in MOVING
    return max(0.0 if exact else _ALLOWED.get(graph.types[node.output].dtype, 0.0), *inner, 0.0)


def _in_range(right: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the reference's array, with infinities in place of elements too large for float32.

    For 16-bit types the array is returned unchanged, so that an infinity in the program's array
    counts as an error where the reference is finite.
    """
    large = max(right.max(initial=0.0), -right.min(initial=0.0))
    if dtype is not DType.FLOAT32 or not large > np.finfo(np.float32).max:
        return right
    with np.errstate(all="ignore"):
        stored = from_memory(to_memory(right, dtype), dtype)
    found: np.ndarray = np.where(np.isinf(stored), stored, right)
    return found


def _scales(own: np.ndarray, right: np.ndarray, dtype: DType) -> np.ndarray:
    """Return, for each element, the number by which its error is divided to get a relative error.

    It is the largest magnitude of a reference element in the same channel. Infinities are left out
    of this maximum, and so are elements where `own` is the reference's element rounded once. If no
    element other than 0 remains, the number is 1.

    Args:
        own: the program's array.
        right: the reference's array, of the same shape.
        dtype: the type of the value in the plan.
    """
    with np.errstate(all="ignore"):
        sizes = np.where(np.isfinite(right), np.abs(right), 0.0)
        differ = np.abs(own - right) > ROUNDED * sizes
        if dtype in _ROUNDED:
            differ &= own != from_memory(to_memory(right, dtype), dtype)
    scales = by_channel(np.where(differ, sizes, 0.0))
    return np.where(scales > 0.0, scales, 1.0)
