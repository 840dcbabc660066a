"""Random inputs of a workload, and the expected output that every candidate must compute.

The NumPy implementations of the operators compute the expected output with float64 accumulation,
once per workload. In screening, candidates are checked on one set of random inputs. Finalists are
checked on several sets with different magnitudes, because a wrong kernel may pass on one set by
chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.ops.products import HALVES, INT8_TYPES, INT16_TYPES
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.runtime.verify import tolerance_for
from tilewright.tuner.measure.points import SizePoint
from tilewright.tuner.protocol.batches import Case, Distribution, InputSpec
from tilewright.tuner.protocol.blobs import array_to_bytes, digest_bytes
from tilewright.tuner.protocol.measurement import Sizes

BASE_SEED = 20_240_229
"""Seed of the first set of random inputs. It is the same in every job, so that errors of different
jobs can be compared."""

SEED_STEP = 1000
"""Difference between the seeds of two sets of random inputs. No workload has so many inputs."""

DRAWS = (Distribution.NORMAL, Distribution.NORMAL, Distribution.WIDE)
"""Distribution of floats in each set of random inputs. The first set is for screening and
timing."""

WIDE_SCALE = math.sqrt(4 * math.log(10) / (1e4 - 1e-4))
"""Factor that scales `Distribution.WIDE` to a root mean square of 1. Its magnitudes still differ by
decades, but sums of products keep their size.

If sums were in the thousands, a ReLU6 would return only 0 or 6. The rounding errors of the sums,
relative to 6, would then reject any kernel.
"""

BYTE_PRODUCT = 1.1e4
"""Root mean square of the product of a uniform uint8 value and a uniform int8 value."""

WORD_PRODUCT = 3.6e8
"""Root mean square of the product of two uniform 16-bit integers. Their int32 sums wrap around."""

WRAPPED_SUM = 1.2e9
"""Root mean square of a uniform int32 value, which is the limit for sums that wrap around."""

SCALED_SUM = 8.0
"""Root mean square to which sums of integer products are scaled. Models scale them once more, to
int8."""

NEAR_TIE = 2.0**-18
"""Distance to a rounding tie, as a fraction of the largest operand, within which float32 arithmetic
may round up or down."""

INTEGERS_IN_FLOATS = (-128, 128)
"""Range of the random inputs that are floats with integer values. The upper end is excluded."""

MOVING = (OpKind.MOVEMENT, OpKind.PIECES, OpKind.VIEW, OpKind.GATHER)
"""Kinds of operators whose results are elements of their operands."""


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """The expected output of a workload for one set of random inputs.

    Attributes:
        inputs: the distributions and seeds from which the inputs are generated.
        expected: the output as .npy bytes.
        digest: the SHA-256 of `expected`.
        tolerance: the largest accepted error, relative to the largest expected value.
        sizes: the sizes of dynamic dimensions.
        point: the size point at which candidates are timed with these inputs; None if the inputs
            only serve for checks.
    """

    inputs: tuple[InputSpec, ...]
    expected: bytes
    digest: str
    tolerance: float
    sizes: Sizes = ()
    point: SizePoint | None = None

    @property
    def case(self) -> Case:
        """The inputs and the digest of the expected output, in the form of a request's `Case`."""
        if self.point is None:
            return Case(self.inputs, self.digest, self.sizes)
        point = self.point
        return Case(self.inputs, self.digest, point.sizes, point.weight, point.least_seconds)


def make_reference(workload: Workload, draw: int = 0) -> ExpectedOutput:
    """Generate random inputs for a workload and compute its expected output.

    `draw` selects one of several sets of inputs; DRAWS has their distributions. If the output is
    not finite, for example because of the logarithm of a negative number, inputs from a narrower
    distribution are used instead: with an expected output of NaNs, the check would not detect
    errors.
    """
    seed = BASE_SEED + SEED_STEP * draw
    wide = (Distribution.WIDE,) if DRAWS[draw] is Distribution.WIDE and _is_wide(workload) else ()
    for distribution in (*wide, Distribution.NORMAL, Distribution.POSITIVE):
        scale = WIDE_SCALE if distribution is Distribution.WIDE else 1.0
        specs = tuple(
            replace(spec, distribution=distribution, scale=spec.scale * scale)
            if spec.distribution is Distribution.NORMAL
            else spec
            for spec in input_specs(workload, seed)
        )
        output = _expected(workload, specs)
        if output.dtype.kind != "f" or np.isfinite(output).all():
            break
    data = array_to_bytes(output)
    tolerance = _tolerance(workload, output) + _at_ties(workload, specs, output)
    return ExpectedOutput(specs, data, digest_bytes(data), tolerance)


def _at_ties(workload: Workload, specs: tuple[InputSpec, ...], output: np.ndarray) -> float:
    """Return by how much the output can change because of roundings inside the workload.

    Near a rounding tie, float32 arithmetic may round a value to either neighbour, which affects all
    later operations. So the output is computed twice more: with all values increased before they
    are rounded, and with all values decreased, by the error that float32 arithmetic may have. The
    result is the largest difference from `output`, divided by the largest magnitude in `output`.
    """
    graph = workload.graph
    rounded = [node.inputs[0] for node in graph.nodes if _jumps(graph, node)]
    exact = workload.output.type.dtype in (DType.BOOL, *HALVES)
    if exact or not output.size or len(rounded) <= (not workload.output.type.dtype.is_float):
        return 0.0  # `_tolerance` covers the rounding to the output
    before = _run(graph.replace(outputs=tuple(dict.fromkeys(rounded))), specs)
    reach = {
        value: NEAR_TIE * float(np.abs(array).max(initial=0.0))
        for value, array in zip(dict.fromkeys(rounded), before, strict=True)
    }
    known = output.astype(np.float64)
    largest = float(np.abs(known).max(initial=0.0))
    apart = 0.0
    for sign in (1.0, -1.0):
        moved = _run(_moved(graph, {value: sign * by for value, by in reach.items()}), specs)[0]
        apart = max(apart, float(np.abs(moved.astype(np.float64) - known).max()))
    return apart / largest if largest else 0.0


def _jumps(graph: Graph, node: Node) -> bool:
    """Whether a node computes a discontinuous function with a float result, such as rounding."""
    return ops.get(node.op).jumps and graph.types[node.output].dtype.is_float


def _moved(graph: Graph, by: Mapping[str, float]) -> Graph:
    """Return a copy of the graph that adds an offset to each value before it is rounded.

    `by` has the offsets of the values, by name.
    """
    nodes: list[Node] = []
    types, constants = dict(graph.types), dict(graph.constants)
    for node in graph.nodes:
        if _jumps(graph, node):
            value = node.inputs[0]
            shift, name = f"{value} by", f"{node.output} of"
            dtype = types[value].dtype
            types |= {shift: TensorType(dtype, ()), name: types[value]}
            constants[shift] = to_memory(np.asarray(by[value]), dtype)
            nodes.append(Node(name, "add", (value, shift), (name,)))
            node = replace(node, inputs=(name, *node.inputs[1:]))
        nodes.append(node)
    return graph.replace(nodes=tuple(nodes), types=types, constants=constants)


def _tolerance(workload: Workload, output: np.ndarray) -> float:
    """Return the accepted error of an output, relative to its largest element.

    If the workload rounds floats to integers, an error of 1 is accepted, because a float near a tie
    may be rounded to either neighbour. Other integers must be equal. If the output is stored in 16
    bits but computed in float32, one unit in the last place of the largest element is accepted
    (for bfloat16, whose fraction has 7 bits, 2**-7 of the element), plus the error of the float32
    sums.
    """
    kind = workload.output.type.dtype
    if kind in HALVES and not _computes_in(workload.graph, kind):
        step = 2.0**-7 if kind is DType.BFLOAT16 else 2.0**-10
        return step + tolerance_for(DType.FLOAT32)
    rounded = any(each.dtype.is_float for each in workload.graph.types.values())
    if kind.is_float or kind is DType.BOOL or not rounded or not output.size:
        return tolerance_for(kind)
    return 1.0 / max(1.0, float(np.abs(output.astype(np.float64)).max()))


def _computes_in(graph: Graph, dtype: DType) -> bool:
    """Whether any node of the graph has a result of this type.

    Conversions and operators that only move elements do not count.
    """
    return any(
        graph.types[node.output].dtype is dtype
        and node.op != "cast"
        and ops.get(node.op).kind not in MOVING
        for node in graph.nodes
    )


def _is_wide(workload: Workload) -> bool:
    """Whether inputs of `Distribution.WIDE` are suitable for a workload.

    Their magnitudes differ by several powers of ten. They are suitable if the workload has no
    floats with a small range, such as float16.
    """
    dtypes = {kind.dtype for kind in workload.graph.types.values() if kind.dtype.is_float}
    return dtypes <= {DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16}


def input_specs(workload: Workload, seed: int = BASE_SEED) -> tuple[InputSpec, ...]:
    """Return the distribution and the seed of each random input of a workload.

    Indices are within bounds. Weights are scaled by their fan-in, so that sums have about the size
    of the inputs. 8-bit and 16-bit integer factors cover the whole range of their type, so that
    sign errors and saturating sums are detected.
    """
    bounds = _index_bounds(workload)
    multiplied = any(_sums_bytes(node) for node in workload.graph.nodes)
    scales = _scales(workload)
    integral = _integral(workload.graph)
    specs = []
    for number, (name, boundary) in enumerate(
        zip(workload.graph.inputs, workload.inputs, strict=True)
    ):
        dtype = boundary.type.dtype
        spec = InputSpec(boundary.type.shape, dtype.value, seed + number)
        if name in integral:
            low, high = INTEGERS_IN_FLOATS
            spec = replace(spec, distribution=Distribution.INTEGERS, low=low, high=high)
        elif dtype.is_float:
            spec = replace(spec, scale=scales.get(name, 1.0))
        elif multiplied and dtype in (*INT8_TYPES, *INT16_TYPES):
            limits = np.iinfo(dtype.numpy)
            low, high = int(limits.min), int(limits.max) + 1
            spec = replace(spec, distribution=Distribution.INTEGERS, low=low, high=high)
        elif dtype.value == "bool":
            spec = replace(spec, distribution=Distribution.INTEGERS, low=0, high=2)
        else:
            # At least 1, because integers may be divisors.
            low, high = (0, bounds[name]) if name in bounds else (1, 9)
            spec = replace(spec, distribution=Distribution.INTEGERS, low=low, high=high)
        specs.append(spec)
    return tuple(specs)


def _expected(workload: Workload, specs: tuple[InputSpec, ...]) -> np.ndarray:
    """Compute the expected output of a workload on inputs with the given distributions.

    Float outputs are returned as float64 if the workload's output is float64, otherwise as float32.
    If a float64 output were rounded to float32, the rounding error would be 600 times the accepted
    error.
    """
    (array,) = _run(workload.graph, specs)
    if array.dtype.kind != "f" or workload.output.type.dtype is DType.FLOAT64:
        return array
    return array.astype(np.float32)


def _run(graph: Graph, specs: tuple[InputSpec, ...]) -> list[np.ndarray]:
    """Evaluate a graph on random inputs with the given distributions; float outputs are float64."""
    inputs = {name: spec.draw() for name, spec in zip(graph.inputs, specs, strict=True)}
    with np.errstate(all="ignore"):
        return [np.asarray(output) for output in run_graph(graph, inputs, float64=True)]


def _integral(graph: Graph) -> set[str]:
    """Return the float inputs whose values in the model are always whole numbers.

    These are the inputs that the workload casts to integers without rounding them first: an earlier
    kernel of the model has rounded them. The cast would truncate random fractions, which never
    happens in the model.
    """
    found: set[str] = set()
    for node in graph.nodes:
        if node.op == "cast" and not graph.types[node.output].dtype.is_float:
            value = _before_offsets(graph, node.inputs[0])
            if graph.types[value].dtype.is_float:
                found.add(value)
    return found & set(graph.inputs)


def _before_offsets(graph: Graph, value: str) -> str:
    """Return the value from which `value` results by adding or subtracting integer constants.

    Such constants are, for example, zero points. Without them, return `value` itself.
    """
    maker = graph.producer(value)
    if maker is None or maker.op not in ("add", "sub"):
        return value
    others = [each for each in maker.inputs if each not in graph.constants]
    added = [graph.constants[each] for each in maker.inputs if each in graph.constants]
    if len(others) != 1 or any((number != np.rint(number)).any() for number in added):
        return value
    return _before_offsets(graph, others[0])


def _index_bounds(workload: Workload) -> dict[str, int]:
    """Return, for each input that has the indices of a gather, their exclusive upper bound."""
    bounds: dict[str, int] = {}
    for node in workload.graph.nodes:
        if node.op == "gather":
            axis = node.attr("axis", 0)
            assert isinstance(axis, int)
            shape = workload.graph.types[node.inputs[0]].shape
            bounds[node.inputs[1]] = max(1, shape[axis])
    return bounds


def _scales(workload: Workload) -> dict[str, float]:
    """Return scale factors for some random inputs, by name, so that results do not saturate.

    The weights of a contraction are scaled so that its sums have about the size of its inputs.
    Otherwise a following sigmoid or tanh would saturate and hide errors. Factors that requantise
    the sums of integer products are scaled for the same reason.
    """
    scales: dict[str, float] = {}
    for node in workload.graph.nodes:
        terms = ops.get(node.op).terms
        if terms is not None:
            fan_in = terms([workload.graph.types[value] for value in node.inputs], node.attrs)
            scales[node.inputs[1]] = max(1, fan_in) ** -0.5
            if _sums_bytes(node):
                for user in _after_casts(workload.graph, node.output):
                    size = SCALED_SUM / _sum_size(workload, node, max(1, fan_in))
                    scales |= dict.fromkeys(user.inputs, size) if user.op == "mul" else {}
    return scales


def _sums_bytes(node: Node) -> bool:
    return node.attr("accumulator") == DType.INT32


def _sum_size(workload: Workload, node: Node, terms: int) -> float:
    """Return the root mean square of the sums that a node computes from random integers.

    Each sum has `terms` products of two integers.
    """
    root = math.sqrt(terms)
    if workload.graph.types[node.inputs[0]].dtype in INT8_TYPES:
        return BYTE_PRODUCT * root
    return min(WORD_PRODUCT * root, WRAPPED_SUM)


def _after_casts(graph: Graph, value: str) -> tuple[Node, ...]:
    """Return the nodes that read a value, directly or after `cast` nodes."""
    users = graph.consumers(value)
    return tuple(
        found
        for user in users
        for found in (_after_casts(graph, user.output) if user.op == "cast" else (user,))
    )
