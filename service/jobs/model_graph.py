"""A model as it is cut into kernels, to be drawn: its steps, what lies between them, and which
nodes of the ONNX file are behind each.

Steps that move nothing (views) are left out: what reads them reads what they are views of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, assert_never

from compiler import ops
from compiler.choices import RULE, GraphChoice
from compiler.errors import CompilerError, InvalidModelError
from compiler.frontend.model_file import read_model
from compiler.intervals import pieces
from compiler.ops.registry import OpKind
from compiler.plan import (
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
from compiler.schedule.problem import anchor
from compiler.workload import Workload
from service.jobs.known_plan import planner_of
from service.jobs.layered import Point, layered
from service.jobs.planning import Planned, workload_name

MOST_STEPS = 6000
"""Steps of a model that is drawn; nobody would find anything among more."""

MOST_NODES = 200
"""ONNX nodes that are named for one step; of more, how many there are."""

MOST_NAMED = 100_000
"""ONNX nodes that are named for all steps together: one may be behind thousands."""

MOST_EDGES = 100_000

LONGEST_NODE_NAME = 200
"""Characters of an ONNX node's name; of a longer one, the ends."""

BOX_HEIGHT = 44.0
LAYER_DISTANCE = 78.0
LONGEST_NAME = 30
"""Characters of a name in a box."""


class DrawnKind(StrEnum):
    INPUT = "input"
    OUTPUT = "output"
    KERNEL = "kernel"
    NATIVE = "native"
    LOOP = "loop"
    BRANCH = "branch"
    REFUSAL = "refusal"


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """A box of the drawing, by its centre.

    Attributes:
        name: for people.
        value: what it makes, as the graph calls it.
        type: of that, such as `float32 1x64x56x56`.
        layout: how that lies in memory.
        precision: the types that it multiplies, or else the one that it makes.
        operators: those of the compiler that it computes.
        kernels: workload keys, and how often one run of the step runs each. Of a range that is cut
            into pieces, each has its part of the runs.
        nodes: (name, operator) of the ONNX nodes behind it, the first `MOST_NODES`.
        more: how many others there are.
    """

    kind: DrawnKind
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
class DrawnEdge:
    """`start` and `end` are positions among the steps."""

    start: int
    end: int
    path: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """All steps of a plan, before those that read them. `staged` is whether the data decide what is
    behind: this is the first of several programs then."""

    steps: tuple[DrawnStep, ...]
    edges: tuple[DrawnEdge, ...]
    width: float
    height: float
    staged: bool = False


def chosen_by(planned: Planned, choice: Mapping[str, Any] | None) -> Planned:
    """The model with the plan that a job's choice leads to; as the rules cut it, where there is
    none or another release made it."""
    if choice is None or planned.open is not None or planned.stages is not None:
        return planned
    try:
        made = GraphChoice.from_json(dict(choice))
        plan = planned.plan if made == RULE else planner_of(planned).plan(made)
    except (CompilerError, KeyError, TypeError, ValueError):
        return planned
    return Planned(planned.request, planned.graph, plan, planned.target, planned.sizes)


def model_graph(planned: Planned) -> ModelGraph:
    """The drawing of a model that was cut into kernels.

    Raises:
        InvalidModelError: if it has too many steps to be drawn.
    """
    plan = planned.served_plan
    found = _Steps.of(plan)
    if len(found.steps) > MOST_STEPS:
        raise InvalidModelError(
            f"model '{plan.graph.name}': {len(found.steps)} steps, {MOST_STEPS} are drawn at most"
        )
    if len(found.edges) > MOST_EDGES:
        raise InvalidModelError(
            f"model '{plan.graph.name}': {len(found.edges)} values go from step to step, "
            f"{MOST_EDGES} are drawn at most"
        )
    widths = [_width(step.name) for step in found.steps]
    lay = layered(widths, found.edges, BOX_HEIGHT, LAYER_DISTANCE)
    behind = _onnx_nodes(found, read_model(planned.request.model).proto.graph.node)
    left, steps = MOST_NAMED, []
    for n, step in enumerate(found.steps):
        nodes = behind.get(n, ())
        named = [(_short(name), _short(op)) for name, op in nodes[: min(MOST_NODES, left)]]
        left -= len(named)
        more = len(nodes) - len(named)
        steps.append(_drawn(plan, step, named, more, lay.centres[n], widths[n]))
    edges = tuple(DrawnEdge(*edge, path) for edge, path in zip(found.edges, lay.paths, strict=True))
    return ModelGraph(tuple(steps), edges, lay.width, lay.height, planned.stages is not None)


def _short(name: str) -> str:
    """The ends of a name of a megabyte."""
    half = LONGEST_NODE_NAME // 2
    return name if len(name) <= LONGEST_NODE_NAME else f"{name[:half]}...{name[-half:]}"


def _width(name: str) -> float:
    return 30.0 + 7.8 * max(14, min(len(name), LONGEST_NAME))


@dataclass(frozen=True, slots=True)
class _Found:
    """A step, or an input or an output of the graph, before it is drawn. `inside` are the values
    that it computes, its own among them."""

    kind: DrawnKind
    name: str
    value: str
    step: Step | None = None
    inside: tuple[str, ...] = ()


@dataclass(slots=True)
class _Steps:
    """The steps of a plan in order, with edges between them. Values are known by their makers."""

    plan: GraphPlan
    steps: list[_Found] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    makers: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: GraphPlan) -> _Steps:
        made = cls(plan)
        for value in plan.graph.inputs:
            made._add(_Found(DrawnKind.INPUT, value, value, inside=(value,)), ())
        for step in plan.steps:
            sources = tuple(dict.fromkeys(n for v in step.inputs for n in made.makers.get(v, ())))
            if isinstance(step, ViewStep):
                made.makers[step.output] = sources
                continue
            inside = tuple(_made(plan, step))
            made._add(_Found(_kind(step), _name(step), step.output, step, inside), sources)
        for value in plan.graph.outputs:
            found = _Found(DrawnKind.OUTPUT, value, value)
            made._add(found, made.makers.get(value, ()), makes=False)
        return made

    def _add(self, found: _Found, sources: Sequence[int], makes: bool = True) -> None:
        number = len(self.steps)
        self.steps.append(found)
        self.edges += [(source, number) for source in sources]
        if makes:
            self.makers[found.value] = (number,)


def _made(plan: GraphPlan, step: Step) -> Iterator[str]:
    """The values of the graph that a step computes between its inputs and its output."""
    seen = set(step.inputs) | {step.output}
    pending = [step.output]
    while pending:
        value = pending.pop()
        yield value
        node = plan.graph.producer(value)
        fresh = [] if node is None else [v for v in dict.fromkeys(node.inputs) if v not in seen]
        seen.update(fresh)
        pending += [v for v in fresh if plan.graph.producer(v) is not None]


def _kind(step: Step) -> DrawnKind:
    match step:
        case KernelStep():
            return DrawnKind.KERNEL
        case NativeStep():
            return DrawnKind.NATIVE
        case LoopStep():
            return DrawnKind.LOOP
        case BranchStep():
            return DrawnKind.BRANCH
        case RefusalStep():
            return DrawnKind.REFUSAL
        case ViewStep():
            raise ValueError("a view is no step of the drawing")
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
) -> DrawnStep:
    kind = plan.graph.types[found.value]
    step = found.step
    workload = step.workload if isinstance(step, KernelStep) else None
    placement = plan.placements.get(found.value)
    return DrawnStep(
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
    """What is used of `onnx.NodeProto`."""

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


def _onnx_nodes(
    found: _Steps, nodes: Sequence[_OnnxNode]
) -> Mapping[int, Sequence[tuple[str, str]]]:
    """The nodes of the file by the step that they are computed in.

    A node belongs to the step that computes its output. One whose output the compiler has no more
    (it was folded, or is a part of an idiom) belongs to those of its readers; if nobody reads it,
    to that of what it reads. A step that makes nothing of the file (three products made one) has
    the nodes with its operators on the ways from what it reads. A model has its nodes in
    topological order.
    """
    owners: dict[str, frozenset[int]] = {}
    for number, step in enumerate(found.steps):
        for value in step.inside if step.step is not None else ():
            owners[value] = owners.get(value, frozenset()) | {number}
    nobody: frozenset[int] = frozenset()
    of_node: list[frozenset[int]] = [nobody] * len(nodes)
    lost = [False] * len(nodes)
    wanted: dict[str, frozenset[int]] = {}
    for n in reversed(range(len(nodes))):
        node = nodes[n]
        own = nobody.union(*(owners.get(value, nobody) for value in node.output))
        lost[n] = not own or all(_only_moves(found.plan, value) for value in node.output)
        of_node[n] = own or nobody.union(*(wanted.get(value, nobody) for value in node.output))
        for value in node.input:
            wanted[value] = wanted.get(value, nobody) | of_node[n]
    made: dict[str, frozenset[int]] = {}
    for n, node in enumerate(nodes):
        of_node[n] = of_node[n] or nobody.union(*(made.get(value, nobody) for value in node.input))
        made.update(dict.fromkeys(node.output, of_node[n]))
    _give_back(found, nodes, of_node, lost)
    by_step: dict[int, list[tuple[str, str]]] = {}
    for node, numbers in zip(nodes, of_node, strict=True):
        if node.op_type != "Constant":
            for number in numbers:
                by_step.setdefault(number, []).append((node.name, node.op_type))
    return by_step


def _give_back(
    found: _Steps,
    nodes: Sequence[_OnnxNode],
    of_node: list[frozenset[int]],
    lost: Sequence[bool],
) -> None:
    """Nodes that were taken for a part of what reads them, though the step before computes them."""
    known = frozenset[int]().union(*of_node)
    bare = {
        number: {_plain(each.op) for each in step.step.workload.graph.nodes}
        for number, step in enumerate(found.steps)
        if isinstance(step.step, KernelStep) and number not in known
    }
    readers: dict[str, list[int]] = {}
    for number in bare:
        step = found.steps[number].step
        for value in step.inputs if step is not None else ():
            readers.setdefault(value, []).append(number)
    reached: dict[str, set[int]] = {value: set(numbers) for value, numbers in readers.items()}
    for n, node in enumerate(nodes):
        from_steps = {number for value in node.input for number in reached.get(value, ())}
        if not from_steps or not lost[n]:
            continue
        own = {number for number in from_steps if _plain(node.op_type) in bare[number]}
        if own:
            of_node[n] = frozenset(own)
        if own or node.op_type in _MOVING:
            for value in node.output:
                reached.setdefault(value, set()).update(own or from_steps)


def _only_moves(plan: GraphPlan, value: str) -> bool:
    """Whether a value is cut out of another now, whatever made it in the file."""
    node = plan.graph.producer(value)
    return node is not None and ops.get(node.op).kind in (OpKind.MOVEMENT, OpKind.VIEW)


def _plain(operator: str) -> str:
    """`LayerNormalization` and `layer_norm` alike, as far as names tell."""
    lower = operator.lower().replace("_", "")
    return "matmul" if lower in ("gemm", "matmulinteger", "qlinearmatmul") else lower
