"""Graph plans: the partition of a graph into kernels, and the placement of values between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.text import digest, print_graph
from tilewright.compiler.ops.control import branch_slots, loop_form
from tilewright.compiler.ops.labels import labels_of, list_of
from tilewright.compiler.plan.intervals import pieces
from tilewright.compiler.plan.placement import Placement
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.runtime.labels import Labels
from tilewright.compiler.sizes import (
    Dimension,
    SlackDimension,
    at,
    dynamic_size,
    is_dynamic,
    replaced,
    typical_sizes,
)

PLAN_SCHEMA = 2
"""Version of the JSON form of a plan."""


@dataclass(frozen=True, slots=True)
class KernelStep:
    """A step that runs a workload's kernel.

    Attributes:
        workload: the workload.
        inputs: names of the values that the kernel reads, in the order of the workload's inputs.
        output: name of the value that the kernel writes.
        sizes: the graph's names of the workload's dynamic dimensions, in the order of
            `workload.dimensions`.
    """

    workload: Workload
    inputs: tuple[str, ...]
    output: str
    sizes: tuple[str, ...] = ()

    def at(self, values: Mapping[str, int]) -> KernelStep:
        """Return the step at fixed sizes; `values` maps the graph's dimension names to sizes."""
        own = (dimension.name for dimension in self.workload.dimensions)
        known = {name: values[outer] for name, outer in zip(own, self.sizes, strict=True)}
        return KernelStep(self.workload.at(known), self.inputs, self.output)


@dataclass(frozen=True, slots=True)
class ViewStep:
    """A step that runs nothing, because its output shares the memory of its inputs.

    A reshape shares its input's bytes, a slice is a part of its input, and a concatenation consists
    of its inputs, written next to each other. `offsets[i]` is the start of input i, in bytes after
    the output's start: negative if the output is a part of the input.
    """

    inputs: tuple[str, ...]
    output: str
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NativeStep:
    """A step that runs the C runtime's `function` (`runtime/native_functions.py`) instead of a
    kernel.

    `parameters` are integer arguments of the function. The inputs and the output are row-major
    without a halo. The step has no workload to tune.
    """

    function: str
    parameters: tuple[int, ...]
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True)
class LoopStep:
    """A step that runs a body in a loop, for a number of iterations known only at run time.

    `inputs` (`compiler.ops.control.LoopForm`) are the number of iterations, the condition for the
    first one, the initial states, and the values that the body captures. All of them, and the
    body's outputs, are row-major without a halo.

    Attributes:
        body: the plan of the body.
        decides: whether the first output of the body is the condition for another iteration.
        states: number of the body's outputs that are passed to the next iteration; they follow the
            condition.
        rows: positions of the body's outputs whose values of all iterations are collected (scan
            outputs).
        most: maximum number of iterations; None if unbounded.
        expected: an estimate of the number of iterations.
        offsets: the byte offsets of the loop's results in `output`.
        inputs: names of the values that the step reads.
        output: name of the value that holds all results, one after the other.
    """

    body: GraphPlan
    decides: bool
    states: int
    rows: tuple[int, ...]
    most: int | None
    expected: int
    offsets: tuple[int, ...]
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True)
class BranchStep:
    """A step that runs one of two graphs (bodies), depending on a condition.

    `inputs` are the condition and the values that the bodies capture. `output` holds all results of
    the body, one after the other; `offsets` are their byte offsets in it.
    """

    then: GraphPlan
    otherwise: GraphPlan
    offsets: tuple[int, ...]
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True)
class RefusalStep:
    """A step that ends the run with the error `message` (operator `refuse`).

    It occurs in the body that a branch runs for invalid inputs. No value is written to `output`.
    """

    message: str
    output: str
    inputs: tuple[str, ...] = ()


Step = KernelStep | ViewStep | NativeStep | LoopStep | BranchStep | RefusalStep


def bodies_of(step: Step) -> tuple[GraphPlan, ...]:
    """Return the plans of the graphs (bodies) that a loop or branch runs.

    A loop has one body. A branch has two: the one for a true condition, then the other. Any other
    step has none.
    """
    match step:
        case LoopStep():
            return (step.body,)
        case BranchStep():
            return (step.then, step.otherwise)
        case _:
            return ()


def expected_runs(step: Step) -> int:
    """Estimate how many times a loop or branch runs each of its bodies.

    The result is `LoopStep.expected` for a loop, at least 1, and 1 for all other steps.
    """
    return max(step.expected, 1) if isinstance(step, LoopStep) else 1


def control_step(node: Node, plans: Sequence[GraphPlan]) -> LoopStep | BranchStep:
    """Return the step of a loop or branch node.

    `plans` are the plans of the graphs (bodies) that the node runs. A loop has one. A branch has
    two, the first for a false condition.
    """
    if node.op == "loop":
        form = loop_form(node.attrs)
        (body,) = plans
        offsets = tuple(slot.offset for slot in form.slots)
        return LoopStep(
            body,
            form.decides,
            form.states,
            form.rows,
            form.most,
            form.expected_steps,
            offsets,
            node.inputs,
            node.output,
        )
    offsets = tuple(slot.offset for slot in branch_slots(node.attrs))
    otherwise, then = plans
    return BranchStep(then, otherwise, offsets, node.inputs, node.output)


@dataclass(frozen=True, slots=True)
class Growth:
    """A growing cache: an input of a graph, and the output that appends rows to it along `axis`.

    The buffers of the input and of the output have unused rows at the end (slack capacity).

    Attributes:
        input: name of the graph's input.
        output: name of the graph's output.
        before: number of rows of the caller's input array.
        after: number of rows of the caller's output array.
        room: the dimension whose size is the number of unused rows: each buffer has this many rows
            more than the caller's array.
    """

    input: str
    output: str
    axis: int
    before: int
    after: int
    room: SlackDimension


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """An optimised graph, the steps that compute it in order, and the placements of its values.

    A copy of a value into another layout is a node of the graph with the operator `identity`.
    `placements` has the layout and halo of every graph input and every step's output. Inputs and
    outputs of the graph are row-major without a halo. Constants have no placement: each kernel
    packs its own.
    """

    graph: Graph
    steps: tuple[Step, ...]
    placements: Mapping[str, Placement]
    growing: tuple[Growth, ...] = ()
    """Growing caches: inputs whose rows are followed by new rows in an output. In `graph`, their
    types include the slack capacity."""

    @property
    def natives(self) -> tuple[NativeStep, ...]:
        """The steps that run a native function, in order, also inside loops and branches."""
        return tuple(step for step, _ in self.walk() if isinstance(step, NativeStep))

    @property
    def kernels(self) -> tuple[KernelStep, ...]:
        """The steps that run a kernel, in order, also inside loops and branches."""
        return tuple(step for step, _ in self.walk() if isinstance(step, KernelStep))

    def walk(self) -> Iterator[tuple[Step, int]]:
        """Yield each step, with its expected number of runs.

        A loop or branch precedes the steps inside it.
        """
        for step in self.steps:
            yield step, 1
            for body in bodies_of(step):
                times = expected_runs(step)
                yield from ((inner, times * count) for inner, count in body.walk())

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dynamic dimensions, by name, including the slack capacities.

        A slack capacity is the number of unused rows at the end of a buffer.
        """
        return self.graph.dimensions

    @property
    def rooms(self) -> tuple[SlackDimension, ...]:
        """The slack capacities: dimensions that are numbers of unused rows in buffers.

        The buffers belong to growing caches (inputs to which a run appends rows). The shapes of the
        caller's arrays do not contain these dimensions.
        """
        return tuple(dict.fromkeys(growth.room for growth in self.growing))

    def with_rooms(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return sizes of dimensions by name, with a size for every slack capacity.

        A slack capacity is the number of unused rows in the buffer of a growing cache (an input to
        which a run appends rows). A slack capacity without a size in `values` gets 0: outside a
        session, buffers have no unused rows.
        """
        return {**dict.fromkeys((room.name for room in self.rooms), 0), **values}

    def caller_shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of the caller's array for an input or output.

        The shape excludes unused rows at the end of the array's buffer (slack capacity).
        """
        shape = self.graph.types[value].shape
        for growth in self.growing:
            for name, rows in ((growth.input, growth.before), (growth.output, growth.after)):
                if name == value:
                    return (*shape[: growth.axis], rows, *shape[growth.axis + 1 :])
        return shape

    def typical(self) -> GraphPlan:
        """Return a copy of the plan in which every dimension has its typical size.

        The typical size lies near the middle of a dimension's range (`sizes.typical`). Slack
        capacities are dimensions, and get a typical size, too.
        """
        return self.at(typical_sizes(*map(dynamic_size, self.dimensions)))

    def at(self, values: Mapping[str, int]) -> GraphPlan:
        """Return the plan at fixed sizes; `values` has the size of each dimension by name."""
        if not self.dimensions:
            return self
        values = self.with_rooms(values)

        def number(size: int) -> int:
            return at(size, values)

        def step_at(step: Step) -> Step:
            match step:
                case KernelStep():
                    return step.at(values)
                case LoopStep():
                    bare = replaced(replace(step, body=_EMPTY), number)
                    return replace(bare, body=step.body.at(values))
                case BranchStep():
                    split = replaced(replace(step, then=_EMPTY, otherwise=_EMPTY), number)
                    then, otherwise = step.then.at(values), step.otherwise.at(values)
                    return replace(split, then=then, otherwise=otherwise)
                case _:
                    return replaced(step, number)

        return GraphPlan(
            self.graph.at(values),
            tuple(map(step_at, self.steps)),
            self.placements,
            replaced(self.growing, number),
        )

    def counted(self, output: str) -> int | None:
        """Return the axis of a graph output whose extent is known only after a run, or None.

        The output's type states the largest extent.
        """
        node = self.graph.producer(output)
        axis = node.attr("axis") if node is not None and node.op == "trim" else None
        return int(axis) if isinstance(axis, int) else None

    def labels(self, port: str) -> Labels | None:
        """Return the table by which an input or output represents strings or dictionaries.

        `port` is the name of the input or output. The strings may be names of classes, for example.
        The result is None if the elements are plain numbers.
        """
        if port in self.graph.inputs:
            readers = map(labels_of, self.graph.consumers(port))
            return next((labels for labels in readers if labels is not None), None)
        return labels_of(self._declaring_node(port))

    def part_of(self, output: str) -> str | None:
        """Return the name of the list to which a graph output belongs.

        Some models return lists of arrays. Each array of a list is a separate output of the graph.
        The result is None for an output that is not in a list.
        """
        return list_of(self._declaring_node(output))

    def _declaring_node(self, output: str) -> Node | None:
        """Return the node with the attributes that describe a graph output's labels or list.

        This is the producer of the output. If the producer only trims the output (limits it to the
        extent that is known after a run), it is the producer of the untrimmed value.
        """
        node = self.graph.producer(output)
        return self.graph.producer(node.inputs[0]) if node and node.op == "trim" else node

    def tasks(self) -> list[tuple[Workload, int]]:
        """Return the distinct workloads to tune, in order of first use, each with a count.

        The count is how many times one run of the model executes the workload's kernel. A kernel in
        a loop runs once per expected iteration. If the dynamic sizes of a workload are divided into
        intervals, the result has a separate workload for each interval (`compiler.plan.intervals`).
        """
        counts: dict[Workload, int] = {}
        for step, times in self.walk():
            if isinstance(step, KernelStep):
                counts[step.workload] = counts.get(step.workload, 0) + times
        parts: dict[Workload, int] = {}
        for workload, count in counts.items():
            for piece in pieces(workload):
                parts[piece.workload] = parts.get(piece.workload, 0) + count
        return list(parts.items())

    def constants(self) -> Mapping[str, np.ndarray]:
        """Return the constants of the graph, its loops and its branches, by their digests."""
        return {digest(a): a for graph in self.graph.walk() for a in graph.constants.values()}

    def to_json(self, *, digests: bool = True) -> dict[str, Any]:
        """Return the plan as plain data for `json.dumps`; large constants are named by digest.

        Without `digests`, large constants are not read, and the result does not distinguish them.
        The tests read the data back (`tests/plan_reader.py`).
        """
        workloads = {
            step.workload.key: step.workload.text()
            for step in self.steps
            if isinstance(step, KernelStep)
        }
        steps: list[dict[str, Any]] = []
        for step in self.steps:
            match step:
                case KernelStep():
                    kernel = {
                        "kernel": step.workload.key,
                        "inputs": list(step.inputs),
                        "output": step.output,
                    }
                    steps.append(kernel | ({"sizes": list(step.sizes)} if step.sizes else {}))
                case ViewStep():
                    steps.append(
                        {
                            "view": list(step.inputs),
                            "output": step.output,
                            "offsets": list(map(_size_to_json, step.offsets)),
                        }
                    )
                case NativeStep():
                    steps.append(
                        {
                            "native": step.function,
                            "parameters": list(map(_size_to_json, step.parameters)),
                            "inputs": list(step.inputs),
                            "output": step.output,
                        }
                    )
                case RefusalStep():
                    steps.append({"refusal": step.message, "output": step.output})
                case LoopStep() | BranchStep():
                    steps.append(
                        {
                            "bodies": [body.to_json(digests=digests) for body in bodies_of(step)],
                            "output": step.output,
                        }
                    )
        return {
            "schema": PLAN_SCHEMA,
            "graph": print_graph(self.graph, digests=digests),
            "workloads": workloads,
            "steps": steps,
            "placements": {
                value: {"layout": str(place.layout), "halo": [list(pair) for pair in place.halo]}
                for value, place in self.placements.items()
            },
            **(
                {"growing": [_growth_to_json(each) for each in self.growing]}
                if self.growing
                else {}
            ),
        }


_EMPTY = GraphPlan(Graph("", (), (), (), {}), (), {})


def _size_to_json(size: int) -> int | str:
    return str(size) if is_dynamic(size) else size


def _growth_to_json(growth: Growth) -> dict[str, Any]:
    return {
        "input": growth.input,
        "output": growth.output,
        "axis": growth.axis,
        "before": _size_to_json(growth.before),
        "after": _size_to_json(growth.after),
        "room": growth.room.name,
    }
