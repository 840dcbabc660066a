"""Which other plans of a model are worth measuring: each reverses one decision of the rule.

The rule decides by estimates. A decision is in doubt if its opposite is estimated to cost about the
same. Equal decisions (in the twelve layers of an encoder) are reversed together, so that an
alternative has few kernels that the rule's plan lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.compiler import driver, ops
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.registry import Effort, OpKind
from tilewright.compiler.plan.choices import RULE, GraphChoice, LayoutNames
from tilewright.compiler.plan.fusion import Group
from tilewright.compiler.plan.layouts.assignment import Assignment
from tilewright.compiler.plan.layouts.options import LayoutChoice
from tilewright.compiler.plan.plan import GraphPlan, KernelStep, ViewStep
from tilewright.compiler.plan.workload import make_workload
from tilewright.tuner.graph.planner import Difference, Planner, difference, operations

DOUBT = 0.1
"""How far an estimate may be off, as a share of the cost of its kernels."""

LEAST = 0.001
"""Alternatives that promise to save less than this share of the model are not measured."""

OPTIONAL_PASSES = ("attention", "merge_matmuls", "pool_first")
"""Passes without which a graph may be faster."""

UNSUITED_PASSES = ("quantised_products", "quantised_pairs")
"""Passes that may pay where the target has no instruction for what they are for: bytes are a
quarter of the traffic, and pairs of them are multiplied about as fast as floats."""

LAYOUTS = 16
"""At most so many alternatives differ in layouts."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A choice that differs from the rule, with its plan.

    `potential` is what it may save, in operations: the doubt about the kernels that it replaces,
    minus what it is estimated to cost more.
    """

    name: str
    choice: GraphChoice
    plan: GraphPlan
    changes: Difference
    potential: float


def alternatives(planner: Planner) -> list[Alternative]:
    """The alternatives to the rule's plan that may save enough, the most promising first."""
    rule = planner.plan(RULE)
    least = LEAST * sum(count * operations(w) for w, count in rule.tasks())
    found: dict[frozenset[tuple[str, int]], Alternative] = {}
    for name, choice in _proposals(planner, rule):
        try:
            plan = planner.plan(choice)
        except CompilerError:
            continue  # it asks for a layout that only the rule's groups can have
        made = _judged(name, choice, plan, rule)
        same = frozenset((w.key, count) for w, count in plan.tasks())
        if made is not None and made.potential > least and same not in found:
            found[same] = made
    for made in _layouts(planner, rule, least):
        same = frozenset((w.key, count) for w, count in made.plan.tasks())
        found.setdefault(same, made)
    return sorted(found.values(), key=lambda each: -each.potential)


def _judged(
    name: str, choice: GraphChoice, plan: GraphPlan, rule: GraphPlan, cost: float | None = None
) -> Alternative | None:
    """An alternative with its potential; None if it has the rule's kernels.

    `cost` is how much more it costs than the rule, if there is a better estimate of this than the
    operations of the kernels.
    """
    changes = difference(rule, plan)
    if not changes.old and not changes.new:
        return None
    old = sum(count * operations(w) for w, count in changes.old.items())
    new = sum(count * operations(w) for w, count in changes.new.items())
    return Alternative(
        name, choice, plan, changes, DOUBT * old - (new - old if cost is None else cost)
    )


def _proposals(planner: Planner, rule: GraphPlan) -> Iterator[tuple[str, GraphChoice]]:
    for name in OPTIONAL_PASSES:
        yield f"without {name}", GraphChoice(without=frozenset({name}))
    for name in UNSUITED_PASSES:
        if name in driver.unsuited_passes(planner.mode.target):
            yield f"with {name}", GraphChoice(including=frozenset({name}))
    graph, groups = planner.groups()
    yield from _seams(graph, groups)
    for output in _torn_concats(rule):
        yield f"{output} copied together", GraphChoice(copied=frozenset({output}))


def _seams(graph: Graph, groups: Sequence[Group]) -> Iterator[tuple[str, GraphChoice]]:
    """Places where a group could end, because the next operator may be better off elsewhere."""
    makers = {group.output: group for group in groups}
    classes: dict[tuple[str, int], list[frozenset[str]]] = {}
    names: dict[tuple[str, int], str] = {}
    for group in groups:
        if len(group.nodes) == 1:
            continue
        text = make_workload(graph, [node.name for node in group.nodes]).text()
        for place, node in enumerate(group.nodes[:-1]):
            (after,) = graph.consumers(node.output)[:1]
            if not _is_seam(graph, group, node, after):
                continue
            key = text, 2 * place
            classes.setdefault(key, []).append(frozenset({node.output}))
            title = f"{_title(group)} {graph.types[group.output]}"
            names[key] = f"{title}: {after.op} not with {node.op}"
            others = _rivals(after, node, makers)
            if others:
                key = text, 2 * place + 1
                classes.setdefault(key, []).append(frozenset({node.output, *others}))
                names[key] = f"{title}: {after.op} apart"
    for key, places in classes.items():
        count = f" ({len(places)} places)" if len(places) > 1 else ""
        yield names[key] + count, GraphChoice(kept=frozenset().union(*places))


def _is_seam(graph: Graph, group: Group, node: Node, after: Node) -> bool:
    """Whether to cut between a node and the next one.

    The cut may be before an expensive operator, before one that reads another tensor, and after
    each node that comes before the anchor.
    """
    if group.anchor is not None and _position(group, node) < _position(group, group.anchor):
        return True
    if ops.get(after.op).kind is not OpKind.ELEMENTWISE:
        return True
    shape = graph.types[after.output].shape
    reads = [v for v in after.inputs if v != node.output and v not in graph.constants]
    costly = ops.get(after.op).effort is Effort.COSTLY
    return costly or any(graph.types[v].shape == shape for v in reads)


def _position(group: Group, node: Node) -> int:
    return group.nodes.index(node)


def _rivals(after: Node, node: Node, makers: dict[str, Group]) -> list[str]:
    """The operator's other operands that a group with an anchor makes: it could join that group."""
    return [
        value
        for value in after.inputs
        if value != node.output and (maker := makers.get(value)) is not None and maker.anchor
    ]


def _title(group: Group) -> str:
    return group.anchor.op if group.anchor is not None else group.nodes[0].op


def _torn_concats(rule: GraphPlan) -> list[str]:
    """Concatenations in place of which a reader copies the whole or a piece."""
    copied = {
        step.inputs[0]
        for step in rule.kernels
        if isinstance(step, KernelStep) and step.workload.operators == ("identity",)
    }
    return [
        step.output
        for step in rule.steps
        if isinstance(step, ViewStep)
        and len(step.inputs) > 1
        and copied.intersection({step.output, *step.inputs})
    ]


def _layouts(planner: Planner, rule: GraphPlan, worth: float) -> Iterator[Alternative]:
    """The alternatives that give alike groups another layout, with the best layouts around them."""
    graph, groups = planner.groups()
    made = Assignment(graph, groups, planner.lanes, weight_macs=planner.weight_macs)
    best = made.solve()
    least = made.total(best)
    classes: dict[tuple[str, LayoutNames], list[int]] = {}
    for number, group in enumerate(groups):
        if len(made.options[number]) > 1 and not group.is_view:
            names = made.options[number][best[number]].choice.names(group)
            classes.setdefault((_likeness(graph, group), names), []).append(number)
    found: list[tuple[float, float, int, list[int]]] = []
    for (_, names), members in classes.items():
        for option, fixed in _shared_options(made, groups, members).items():
            if option != names:
                doubt = DOUBT * sum(made.options[n][best[n]].cost for n in fixed)
                numbers = made.solve(fixed)
                more = made.total(numbers) - least
                found.append((doubt - more, more, next(iter(fixed)), numbers))
    found.sort(key=lambda each: -each[0])
    for potential, more, first, numbers in found[:LAYOUTS]:
        if potential <= worth:
            return
        choices = made.choices(numbers)
        choice = layout_choice(groups, choices)
        group = groups[first]
        shown = " <- ".join(choices[first].names(group)[:2])
        name = f"{_title(group)} {graph.types[group.output]} as {shown}"
        alternative = _judged(name, choice, planner.plan(choice), rule, more)
        if alternative is not None:
            yield alternative


def _shared_options(
    made: Assignment, groups: Sequence[Group], members: Sequence[int]
) -> dict[LayoutNames, dict[int, int]]:
    """The options of some groups by what they read and write: of each group that has an option, the
    number that it has there.

    Groups that are alike may have other options in another order: what reads an image has fewer.
    """
    found: dict[LayoutNames, dict[int, int]] = {}
    for member in members:
        for number, option in enumerate(made.options[member]):
            found.setdefault(option.choice.names(groups[member]), {}).setdefault(member, number)
    return found


def _likeness(graph: Graph, group: Group) -> str:
    """A text that is equal for groups that differ only in the size of their inputs.

    The layers of a dense block are such groups.
    """
    kernel: tuple[int, ...] = ()
    if group.anchor is not None and group.anchor.op == "conv":
        kernel = graph.types[group.anchor.inputs[1]].shape[2:]
    return f"{_title(group)} {kernel} {graph.types[group.output]}"


def layout_choice(groups: Sequence[Group], choices: Sequence[LayoutChoice]) -> GraphChoice:
    """The choice that gives these groups these layouts."""
    names = {group.output: c.names(group) for group, c in zip(groups, choices, strict=True)}
    return GraphChoice(layouts=tuple(sorted(names.items())))
