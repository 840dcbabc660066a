"""Draws a model that is partitioned into kernels: its steps, and the values between them.

Each step lists the nodes of the ONNX file that it computes. Steps that move no data (views) are
left out. Edges then lead from the step that computes the data to the readers of the view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from tilewright.compiler import ops
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.frontend.model_file import read_model
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan.intervals import pieces
from tilewright.compiler.plan.plan import (
    BranchStep,
    GraphPlan,
    KernelStep,
    LoopStep,
    NativeStep,
    RefusalStep,
    Step,
    ViewStep,
    bodies_of,
)
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.problem import anchor
from tilewright.service.jobs.plan.planning import Planned
from tilewright.service.jobs.report.layered import Point, layered
from tilewright.service.jobs.report.workload_facts import workload_name

MOST_STEPS = 6000
"""Limit of the steps in the drawing of a model. A larger drawing would be unreadable."""

MOST_NODES = 200
"""Limit of the ONNX nodes that are named for one step. Further nodes are only counted."""

MOST_NAMED = 100_000
"""Limit of the ONNX nodes that are named for all steps together. One node may belong to thousands
of steps."""

MOST_EDGES = 100_000

LONGEST_NODE_NAME = 200
"""Limit of the characters of an ONNX node's name. A longer name is shortened in the middle."""

BOX_HEIGHT = 44.0
LAYER_DISTANCE = 78.0
LONGEST_NAME = 30
"""Limit of the characters of a name in a box of the drawing."""


class GraphStepKind(StrEnum):
    INPUT = "input"
    OUTPUT = "output"
    KERNEL = "kernel"
    NATIVE = "native"
    LOOP = "loop"
    BRANCH = "branch"
    REFUSAL = "refusal"


@dataclass(frozen=True, slots=True)
class GraphStep:
    """A step of the plan, shown as a box.

    Attributes:
        kind: the kind of the step.
        name: a readable name.
        value: the name of its output in the graph.
        type: the type of the output, such as `float32 1x64x56x56`.
        layout: the memory layout of the output.
        precision: the types of the operands that it multiplies, or else the type of its output.
        operators: the compiler's operators that it computes.
        kernels: for each workload, its key and the number of its runs in one run of the step. If a
            range is split into pieces, each piece counts as a fraction of a run.
        nodes: the name and operator of the first `MOST_NODES` ONNX nodes that it computes.
        more: the number of further ONNX nodes.
        x: the horizontal position of the centre of the box.
        y: the vertical position of the centre of the box.
        width: the width of the box.
    """

    kind: GraphStepKind
    name: str
    value: str
    type: str
    layout: str
    precision: str
    operators: tuple[str, ...]
    kernels: tuple[tuple[str, float], ...]
    nodes: tuple[tuple[str, str], ...] = ()
    more: int = 0
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """A value that one step computes and another reads, shown as a line.

    Attributes:
        start: the index in `ModelGraph.steps` of the step that computes the value.
        end: the index of the step that reads the value.
        path: the coordinates (x, y) of the ends and bends of the line, from `start` to `end`.
    """

    start: int
    end: int
    path: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """The drawing of a plan.

    Attributes:
        steps: all steps, in topological order.
        edges: the lines between steps.
        width: the width of the drawing.
        height: the height of the drawing.
        staged: whether the drawing shows only the first of several programs, because the sizes of
            the model depend on data.
    """

    steps: tuple[GraphStep, ...]
    edges: tuple[GraphEdge, ...]
    width: float
    height: float
    staged: bool = False


def model_graph(planned: Planned) -> ModelGraph:
    """Draw a model that is partitioned into kernels.

    Raises:
        InvalidModelError: if the model has too many steps or edges for a drawing.
    """
    plan = planned.served_plan
    found = _Steps.of(plan)
    if len(found.steps) > MOST_STEPS:
        raise InvalidModelError(
            f"model '{plan.graph.name}': {len(found.steps)} steps; "
            f"the graph shows at most {MOST_STEPS}"
        )
    if len(found.edges) > MOST_EDGES:
        raise InvalidModelError(
            f"model '{plan.graph.name}': {len(found.edges)} values go from step to step; "
            f"the graph shows at most {MOST_EDGES}"
        )
    widths = [_width(step.name) for step in found.steps]
    lay = layered(widths, found.edges, BOX_HEIGHT, LAYER_DISTANCE)
    behind = _onnx_nodes(found, read_model(planned.request.model).proto.graph.node)
    left, steps = MOST_NAMED, []
    for n, step in enumerate(found.steps):
        named = [(_short(name), _short(op)) for name, op in behind[n].first[:left]]
        left -= len(named)
        more = behind[n].count - len(named)
        steps.append(_drawn(plan, step, named, more, lay.centres[n], widths[n]))
    edges = tuple(GraphEdge(*edge, path) for edge, path in zip(found.edges, lay.paths, strict=True))
    return ModelGraph(tuple(steps), edges, lay.width, lay.height, planned.stages is not None)


def _short(name: str) -> str:
    """Return a name; a long name is shortened in the middle, such as `decoder...softmax`."""
    half = LONGEST_NODE_NAME // 2
    return name if len(name) <= LONGEST_NODE_NAME else f"{name[:half]}...{name[-half:]}"


def _width(name: str) -> float:
    return 30.0 + 7.8 * max(14, min(len(name), LONGEST_NAME))


@dataclass(frozen=True, slots=True)
class _Found:
    """A box of the drawing before its position is known: a step, an input or an output.

    Attributes:
        kind: the kind of the box.
        name: a readable name.
        value: the name of the output.
        step: the step; None for an input or output.
        inside: all values that the step computes, including its output.
    """

    kind: GraphStepKind
    name: str
    value: str
    step: Step | None = None
    inside: tuple[str, ...] = ()


@dataclass(slots=True)
class _Steps:
    """The boxes of a plan in order, with the edges between them.

    Attributes:
        plan: the plan.
        steps: the boxes.
        edges: the indices of the two boxes of each edge.
        makers: the indices of the boxes that compute a value, by the value's name.
    """

    plan: GraphPlan
    steps: list[_Found] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    makers: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: GraphPlan) -> _Steps:
        made = cls(plan)
        for value in plan.graph.inputs:
            made._add(_Found(GraphStepKind.INPUT, value, value, inside=(value,)), ())
        for step in plan.steps:
            sources = tuple(dict.fromkeys(n for v in step.inputs for n in made.makers.get(v, ())))
            if isinstance(step, ViewStep):
                made.makers[step.output] = sources
                continue
            inside = tuple(_made(plan, step))
            made._add(_Found(_kind(step), _name(step), step.output, step, inside), sources)
        for value in plan.graph.outputs:
            found = _Found(GraphStepKind.OUTPUT, value, value)
            made._add(found, made.makers.get(value, ()), makes=False)
        return made

    def _add(self, found: _Found, sources: Sequence[int], makes: bool = True) -> None:
        number = len(self.steps)
        self.steps.append(found)
        self.edges += [(source, number) for source in sources]
        if makes:
            self.makers[found.value] = (number,)


def _made(plan: GraphPlan, step: Step) -> Iterator[str]:
    """Yield the output of a step and the intermediate values that the step computes for it."""
    seen = set(step.inputs) | {step.output}
    pending = [step.output]
    while pending:
        value = pending.pop()
        yield value
        node = plan.graph.producer(value)
        fresh = [] if node is None else [v for v in dict.fromkeys(node.inputs) if v not in seen]
        seen.update(fresh)
        pending += [v for v in fresh if plan.graph.producer(v) is not None]


def _kind(step: Step) -> GraphStepKind:
    match step:
        case KernelStep():
            return GraphStepKind.KERNEL
        case NativeStep():
            return GraphStepKind.NATIVE
        case LoopStep():
            return GraphStepKind.LOOP
        case BranchStep():
            return GraphStepKind.BRANCH
        case RefusalStep():
            return GraphStepKind.REFUSAL
        case ViewStep():
            raise ValueError("a view is not a step of the drawing")
        case _:
            assert_never(step)


def _name(step: Step) -> str:
    match step:
        case KernelStep():
            return workload_name(step.workload)
        case NativeStep():
            return step.function
        case LoopStep():
            return f"loop, {len(step.body.kernels)} kernels"
        case BranchStep():
            return f"branch, {len(step.then.kernels)} or {len(step.otherwise.kernels)} kernels"
        case RefusalStep():
            return "refusal"
        case ViewStep():
            return "view"
        case _:
            assert_never(step)


def _drawn(
    plan: GraphPlan,
    found: _Found,
    nodes: Sequence[tuple[str, str]],
    more: int,
    centre: Point,
    width: float,
) -> GraphStep:
    kind = plan.graph.types[found.value]
    step = found.step
    workload = step.workload if isinstance(step, KernelStep) else None
    placement = plan.placements.get(found.value)
    return GraphStep(
        kind=found.kind,
        name=found.name,
        value=found.value,
        type=f"{kind.dtype} {'x'.join(map(str, kind.shape))}".strip(),
        layout="row" if placement is None else str(placement.layout),
        precision=str(kind.dtype) if workload is None else _precision(workload),
        operators=() if workload is None else tuple(n.op for n in workload.graph.nodes),
        kernels=tuple(_kernels(step)),
        nodes=tuple(nodes),
        more=more,
        x=round(centre[0], 1),
        y=round(centre[1], 1),
        width=width,
    )


def _precision(workload: Workload) -> str:
    types = workload.graph.types
    main = anchor(workload)
    if main is None:
        return str(workload.output.type.dtype)
    return " x ".join(dict.fromkeys(str(types[value].dtype) for value in main.inputs[:2]))


def _kernels(step: Step | None) -> Iterator[tuple[str, float]]:
    if step is None:
        return
    if isinstance(step, KernelStep):
        cut = list(pieces(step.workload))
        yield from ((piece.workload.key, 1.0 / len(cut)) for piece in cut)
    times = max(step.expected, 1) if isinstance(step, LoopStep) else 1
    for body in bodies_of(step):
        for inner, count in body.walk():
            if isinstance(inner, KernelStep):
                yield from ((key, each * count * times) for key, each in _kernels(inner))


class _OnnxNode(Protocol):
    """The attributes of `onnx.NodeProto` that this module uses."""

    name: str
    op_type: str

    @property
    def input(self) -> Sequence[str]: ...

    @property
    def output(self) -> Sequence[str]: ...


_MOVING = frozenset(
    {
        "Cast",
        "DequantizeLinear",
        "Expand",
        "Flatten",
        "Identity",
        "QuantizeLinear",
        "Reshape",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)


@dataclass(slots=True)
class _Behind:
    """The ONNX nodes that a step computes.

    Attributes:
        count: the number of nodes.
        first: the name and operator of the first `MOST_NODES` nodes.
    """

    count: int = 0
    first: list[tuple[str, str]] = field(default_factory=list)


def _onnx_nodes(found: _Steps, nodes: Sequence[_OnnxNode]) -> Sequence[_Behind]:
    """Find the ONNX nodes that each step of the drawing computes.

    A node belongs to the step that computes its output. If the compiler folded the output into a
    constant or replaced several nodes by one operator, no step computes the output. Then the node
    belongs to the steps that read the output, or, without a reader, to the steps of its inputs.
    Some steps compute no value of the file, for example three products merged into one. They get
    the nodes with the same operators on the paths from their inputs.

    Sets of steps are represented as bit masks in integers, because all steps may read a long chain
    of folded nodes, and each of these nodes then belongs to all steps.

    Args:
        found: the steps.
        nodes: the nodes of the ONNX file, in topological order.
    """
    owners: dict[str, int] = {}
    for number, step in enumerate(found.steps):
        for value in step.inside if step.step is not None else ():
            owners[value] = owners.get(value, 0) | 1 << number
    of_node = [0] * len(nodes)
    lost = [False] * len(nodes)
    wanted: dict[str, int] = {}
    for n in reversed(range(len(nodes))):
        node = nodes[n]
        own = _union(owners, node.output)
        lost[n] = not own or all(_only_moves(found.plan, value) for value in node.output)
        of_node[n] = own or _union(wanted, node.output)
        for value in node.input:
            wanted[value] = wanted.get(value, 0) | of_node[n]
    made: dict[str, int] = {}
    for n, node in enumerate(nodes):
        of_node[n] = of_node[n] or _union(made, node.input)
        made.update(dict.fromkeys(node.output, of_node[n]))
    _give_back(found, nodes, of_node, lost)
    return _by_step(nodes, of_node, len(found.steps))


def _union(steps: Mapping[str, int], values: Iterable[str]) -> int:
    """Return the union of the sets of steps of some values, as a bit mask.

    Args:
        steps: the set of steps of each value, as a bit mask.
        values: the names of the values.
    """
    return reduce(or_, (steps.get(value, 0) for value in values), 0)


def _give_back(
    found: _Steps, nodes: Sequence[_OnnxNode], of_node: list[int], lost: Sequence[bool]
) -> None:
    """Assign ONNX nodes to the steps of a program that have no node so far.

    Only steps that run a kernel are considered. Such a step has no node if it computes no value of
    the ONNX file. It then gets nodes that have one of its operators and read its inputs, directly
    or through nodes that only move elements.

    Args:
        found: the steps.
        nodes: the ONNX nodes.
        of_node: the steps of each node, as a bit mask; changed in place.
        lost: for each node, True if no step computes its output, or if the step's operator only
            moves elements. Other nodes are not assigned.
    """
    known = reduce(or_, of_node, 0)
    having: dict[str, int] = {}
    reached: dict[str, int] = {}
    for number, step in enumerate(found.steps):
        if not isinstance(step.step, KernelStep) or known >> number & 1:
            continue
        for operator in {_plain(each.op) for each in step.step.workload.graph.nodes}:
            having[operator] = having.get(operator, 0) | 1 << number
        for value in step.step.inputs:
            reached[value] = reached.get(value, 0) | 1 << number
    for n, node in enumerate(nodes):
        from_steps = _union(reached, node.input)
        if not from_steps or not lost[n]:
            continue
        own = from_steps & having.get(_plain(node.op_type), 0)
        of_node[n] = own or of_node[n]
        if own or node.op_type in _MOVING:
            for value in node.output:
                reached[value] = reached.get(value, 0) | (own or from_steps)


def _by_step(nodes: Sequence[_OnnxNode], of_node: Sequence[int], steps: int) -> Sequence[_Behind]:
    """Return, for each step, the ONNX nodes that it computes; constants are left out.

    Args:
        nodes: the ONNX nodes.
        of_node: the steps of each node, as a bit mask.
        steps: the number of steps.
    """
    behind = [_Behind() for _ in range(steps)]
    named = [(n, node) for n, node in enumerate(nodes) if node.op_type != "Constant"]
    counts = np.zeros(steps, np.int64)
    for numbers, times in Counter(of_node[n] for n, _ in named).items():
        counts += times * _bits(numbers, steps)
    unfilled = (1 << steps) - 1
    for n, node in named:
        for number in np.flatnonzero(_bits(of_node[n] & unfilled, steps)):
            first = behind[number].first
            first.append((node.name, node.op_type))
            if len(first) == MOST_NODES:
                unfilled ^= 1 << int(number)
    for each, count in zip(behind, counts, strict=True):
        each.count = int(count)
    return behind


def _bits(numbers: int, count: int) -> NDArray[np.int64]:
    """Convert a bit mask to an array of zeros and ones, least significant bit first.

    Args:
        numbers: the bit mask.
        count: the length of the array.
    """
    whole = np.frombuffer(numbers.to_bytes(-(-count // 8), "little"), np.uint8)
    return np.unpackbits(whole, count=count, bitorder="little").astype(np.int64)


def _only_moves(plan: GraphPlan, value: str) -> bool:
    """Whether the operator that computes a value in the plan only moves elements.

    The operators of the ONNX file are not considered.
    """
    node = plan.graph.producer(value)
    return node is not None and ops.get(node.op).kind in (OpKind.MOVEMENT, OpKind.VIEW)


def _plain(operator: str) -> str:
    """Normalise an operator name, so that ONNX's `LeakyRelu` and the compiler's `leaky_relu` are
    equal.

    Letters become lower case, and underscores are removed. Names of matrix products become
    `matmul`.
    """
    lower = operator.lower().replace("_", "")
    return "matmul" if lower in ("gemm", "matmulinteger", "qlinearmatmul") else lower
