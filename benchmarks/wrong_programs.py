"""Test whether the verification detects wrong programs: `python -m benchmarks.wrong_programs
MODEL...`.

In the imported graph of a model, one operator is changed at a time, as a wrong pass, layout or
kernel would change it. The program compiled from the changed graph is compared with the original
graph: as a whole, and step by step (`service.jobs.evidence.certificate`). Changes that hardly
affect any output are not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table, rows_json, write_data
from tilewright.compiler import driver, ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.names import fresh
from tilewright.compiler.mode import PRECISIONS, Mode
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.program.builder import build_program
from tilewright.service.jobs.device.loadables import of_compiled
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.evidence.certificate import WrongProgramError, certify
from tilewright.service.jobs.evidence.observation import Observation
from tilewright.service.jobs.evidence.ties import jumps
from tilewright.service.jobs.evidence.verification import MODEL_TOLERANCE
from tilewright.service.jobs.plan.planning import ModelRequest, Planned, plan_model
from tilewright.tuner.measure.model_runs import draw_inputs, largest_error
from tilewright.tuner.protocol.runs import INPUT_SEED

UNCHANGED = {DType.FLOAT32: 2e-6, DType.FLOAT16: 2e-3, DType.BFLOAT16: 1.6e-2}
"""By precision, the largest relative difference of an output that counts as no change, because
rounding causes as much."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A change to a graph, and which checks detected it.

    Attributes:
        moved: the largest difference that the change makes to an output, relative to the largest
            output.
        whole: whether `moved` exceeds the tolerance for a whole model.
        steps: whether the step-by-step verification (certificate) rejects the program.
        named: whether the certificate's error names the changed operator.
        refused: whether the verification rejects the program. The check of the whole model counts
            only for float32 models without discontinuous operators, such as rounding.
    """

    model: str
    kind: str
    node: str
    moved: float
    whole: bool
    steps: bool
    named: bool
    refused: bool


Changed = tuple[str, str, Graph]
"""The kind of a change, the name of the changed operator, and the changed graph."""


def changes(graph: Graph) -> Iterator[Changed]:
    """Yield all changes that are possible for the operators of a graph."""
    for number, node in enumerate(graph.nodes):
        for kind, change in _NODES.items():
            other = change(graph, node)
            if other is not None:
                nodes = [*graph.nodes]
                nodes[number] = other
                yield kind, node.name, graph.replace(nodes=nodes)
        turned = _turned(graph, node)
        if turned is not None:
            inner, turn = turned
            nodes = [*graph.nodes[:number], inner, turn, *graph.nodes[number + 1 :]]
            types = {**graph.types, inner.output: graph.types[node.output]}
            yield "layout turned", node.name, graph.replace(nodes=nodes, types=types)
        for value in node.inputs:
            array = graph.constants.get(value)
            for kind, alter in _CONSTANTS.items() if array is not None else ():
                new = alter(np.asarray(array), node)
                if new is not None:
                    constants = {**graph.constants, value: new.astype(np.asarray(array).dtype)}
                    yield kind, node.name, graph.replace(constants=constants)


def _attribute(node: Node, name: str, value: object) -> Node:
    pairs = {**dict(node.attrs), name: value}
    return replace(node, attrs=tuple(sorted(pairs.items())))  # type: ignore[arg-type]


def _window(graph: Graph, node: Node) -> Node | None:
    """Shift the window of a convolution or pooling by one row, by changing its padding.

    The result is None if impossible.
    """
    pads = node.attr("pads")
    if node.op not in ("conv", "max_pool", "avg_pool") or not isinstance(pads, tuple):
        return None
    half = len(pads) // 2
    if not pads[half]:
        return None
    return _attribute(node, "pads", (pads[0] + 1, *pads[1:half], pads[half] - 1, *pads[half + 1 :]))


def _dropped(graph: Graph, node: Node) -> Node | None:
    """Replace an operator by its first operand.

    Return None if the operand is a constant, or if its type or shape differs from the result's.
    Loops and branches are not replaced either.
    """
    same = node.inputs and graph.types[node.inputs[0]] == graph.types[node.output]
    if not same or node.bodies or node.inputs[0] in graph.constants:
        return None
    return Node(node.name, "identity", node.inputs[:1], node.outputs)


def _swapped(graph: Graph, node: Node) -> Node | None:
    if node.op not in ("sub", "div", "pow", "less"):
        return None
    left, right = node.inputs
    return replace(node, inputs=(right, left)) if left != right else None


def _epsilon(graph: Graph, node: Node) -> Node | None:
    epsilon = node.attr("epsilon")
    return _attribute(node, "epsilon", 100 * epsilon) if isinstance(epsilon, float) else None


def _rounding_mode(op: str) -> Callable[[Graph, Node], Node | None]:
    return lambda graph, node: replace(node, op=op) if node.op == "round" else None


def _layout(graph: Graph, node: Node) -> Node | None:
    """Exchange two adjacent axes of equal extent in a Transpose; None for other operators."""
    axes = node.attr("perm")
    shape = graph.types[node.output].shape
    if node.op != "transpose" or not isinstance(axes, tuple):
        return None
    for first in range(len(shape) - 1):
        if shape[first] == shape[first + 1] > 1:
            order = list(axes)
            order[first], order[first + 1] = order[first + 1], order[first]
            return _attribute(node, "perm", tuple(order))
    return None


def _turned(graph: Graph, node: Node) -> tuple[Node, Node] | None:
    """Transpose two adjacent axes of equal extent in an operator's result.

    This is the effect of reading the result in another layout. Returns the operator with a new
    output, and the Transpose; None if the result has no such axes.
    """
    shape = graph.types[node.output].shape
    if node.bodies or node.op == "transpose" or ops.get(node.op).kind not in _COMPUTING:
        return None
    for first in range(len(shape) - 1):
        if shape[first] == shape[first + 1] > 1:
            order = [*range(len(shape))]
            order[first], order[first + 1] = order[first + 1], order[first]
            inner = fresh(f"{node.output}.turned", graph.types)
            turn = Node(inner, "transpose", (inner,), node.outputs, (("perm", tuple(order)),))
            return replace(node, outputs=(inner,)), turn
    return None


def _scale(array: np.ndarray, node: Node) -> np.ndarray | None:
    if array.dtype != np.float32 or array.ndim >= 2:
        return None
    with np.errstate(over="ignore"):  # a mask's number may become infinite
        scaled: np.ndarray = array * np.float32(1.01)
    return scaled


def _channel(array: np.ndarray, node: Node) -> np.ndarray | None:
    """Multiply the weights of one output column or filter by 1.001.

    `array` is a constant operand of `node`. The filter is changed if `node` is a convolution, and
    otherwise the column. Return None if the array is not float32 or has fewer than two dimensions.
    """
    if array.dtype != np.float32 or array.ndim < 2:
        return None
    changed = array.copy()
    place = (0,) if node.op == "conv" else (..., 0)
    changed[place] *= np.float32(1.001)
    return changed


def _weight(array: np.ndarray, node: Node) -> np.ndarray | None:
    """Increase one weight by a quarter of the largest absolute weight.

    The result is None for constants of less than two dimensions.
    """
    if array.ndim < 2:
        return None
    changed = array.copy()
    step = 0.25 * float(np.abs(array.astype(np.float64)).max())
    changed.reshape(-1)[array.size // 2] += np.asarray(step).astype(array.dtype)
    return changed


def _zero_point(array: np.ndarray, node: Node) -> np.ndarray | None:
    narrow = array.dtype in (np.int8, np.uint8, np.int32) and array.ndim < 2
    return array + 1 if narrow and node.op in ("add", "sub") else None


_COMPUTING = (OpKind.CONTRACTION, OpKind.WINDOW, OpKind.ROW, OpKind.ELEMENTWISE)

_NODES: Mapping[str, Callable[[Graph, Node], Node | None]] = {
    "window off by one": _window,
    "operator dropped": _dropped,
    "operands swapped": _swapped,
    "epsilon times 100": _epsilon,
    "floor for round": _rounding_mode("floor"),
    "ceil for round": _rounding_mode("ceil"),
    "axes in each other's place": _layout,
}

_CONSTANTS: Mapping[str, Callable[[np.ndarray, Node], np.ndarray | None]] = {
    "scale times 1.01": _scale,
    "a channel times 1.001": _channel,
    "one weight": _weight,
    "zero point plus 1": _zero_point,
}


def name_of(model: Path) -> str:
    """The name of a model's file without suffix, or of its folder for a file model.onnx."""
    return model.parent.name if model.stem == "model" else model.stem


def judge(
    model: Path, dims: Mapping[str, int], count: int, seed: int, precision: str = DType.FLOAT32
) -> Iterator[Wrong]:
    """Change a model about `count` times, and yield what the checks detected.

    The changes are spread evenly over their kinds.

    Args:
        model: the path of the ONNX file.
        dims: sizes of its dynamic dimensions, by name.
        count: the approximate number of changes.
        seed: the seed of their random choice.
        precision: the precision in which the model is compiled.
    """
    request = ModelRequest(model, Mode(precision=precision, in_place=False), dims=dims or None)
    planned = plan_model(request)
    kinds: dict[str, list[Changed]] = {}
    for each in changes(planned.graph):
        kinds.setdefault(each[0], []).append(each)
    rng = np.random.default_rng(seed)
    picked = [
        some[int(k)]
        for some in kinds.values()
        for k in rng.permutation(len(some))[: -(-count // len(kinds))]
    ]
    name = name_of(model)
    firm = precision == DType.FLOAT32 and not jumps(planned.graph)
    right = Observed.of(planned, planned.graph)
    assert right.certified() is None, "the program itself is right"
    for kind, node, graph in picked:
        try:
            wrong = Observed.of(planned, graph)
            moved = wrong.apart(right)
        except CompilerError:
            continue  # no program: nothing to catch
        if moved <= UNCHANGED[DType(precision)]:
            continue
        caught = wrong.certified()
        named = caught is not None and node in {each.name for each in caught.nodes}
        whole, steps = moved > MODEL_TOLERANCE, caught is not None
        refused = steps or (whole and firm)
        yield Wrong(name, kind, node, moved, whole, steps, named, refused)


@dataclass(frozen=True, slots=True)
class Observed:
    """A compiled program with the observed values of its run.

    The program may be compiled from a graph that was deliberately changed. `planned` has the
    original graph, with which the program is compared.
    """

    planned: Planned
    seen: Observation
    ports: Mapping[str, str]
    inputs: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, planned: Planned, graph: Graph) -> Observed:
        optimised = driver.optimise(graph, planned.mode)
        plan = driver.make_plan(optimised, Mode(planned.target, in_place=False))
        loadable = of_compiled(build_program(plan, None, Mode(planned.target)))
        names = [port.name for port in loadable.program.outputs]
        return cls(
            planned,
            Observation(plan, loadable, LocalDevice(), 1, INPUT_SEED),
            dict(zip(planned.graph.outputs, names, strict=True)),
            draw_inputs(loadable.program.inputs),
        )

    def certified(self) -> WrongProgramError | None:
        """The error by which the step-by-step verification (certificate) rejects the program.

        The result is None if the verification accepts the program.
        """
        try:
            certify(self.planned.graph, self.inputs, self.seen, self.ports)
        except WrongProgramError as error:
            return error
        return None

    def apart(self, right: Observed) -> float:
        """The largest relative difference of the outputs from those of another program.

        `right` is the program compiled from the original graph. Outputs of type bfloat16 are
        ignored.
        """
        types = self.planned.graph.types
        pairs = [
            (name, self.seen.output(port), right.seen.output(right.ports[name]))
            for name, port in self.ports.items()
            if types[name].dtype is not DType.BFLOAT16
        ]
        return max((largest_error(mine, other) for _, mine, other in pairs), default=0.0)


def report(rows: Sequence[Wrong], origin: Origin, precision: DType) -> str:
    """The benchmark's report in Markdown: how many wrong programs the verification detects.

    A wrong program has one deliberately changed operator. Tables count the detected programs by
    model and by kind of change. A list has the changes that were not detected.
    """

    def lines(key: Callable[[Wrong], str]) -> list[list[str]]:
        groups: dict[str, list[Wrong]] = {}
        for row in rows:
            groups.setdefault(key(row), []).append(row)
        return [[name, *_counts(some)] for name, some in sorted(groups.items())]

    head = ["", "changes", "as a whole", "by steps", "by steps, at the operator", "refused"]
    table = partial(markdown_table, head, text=1)
    missed = "".join(
        f"- {row.model}: {row.kind} at '{row.node}' moves an output by {row.moved:.1e}\n"
        for row in rows
        if not row.refused
    )
    return (
        f"# Wrong programs that the verification catches\n\n{origin.sentence()}\n\n"
        "One operator is changed at a time. A change that moves no output by more than "
        f"{UNCHANGED[precision]:g} of its largest element is left out. The verification refuses "
        "what differs by steps, or as a whole where a model of float32 neither rounds nor "
        "chooses.\n\n"
        + table([*lines(lambda row: row.model), ["all", *_counts(rows)]])
        + "\n\n"
        + table(lines(lambda row: row.kind))
        + (f"\n\nMissed:\n\n{missed}" if missed else "\n\nNone was missed.\n")
    )


def _counts(rows: Sequence[Wrong]) -> list[str]:
    found = (
        sum(row.whole for row in rows),
        sum(row.steps for row in rows),
        sum(row.named for row in rows),
        sum(row.refused for row in rows),
    )
    return [str(len(rows)), *map(str, found)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count wrong programs that are caught.")
    parser.add_argument("models", nargs="+", type=Path, help="ONNX files")
    parser.add_argument("--dim", nargs="*", default=[], help="NAME=SIZE, for all models")
    parser.add_argument("--count", type=int, default=24, help="changes of each model, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=PRECISIONS, default=DType.FLOAT32.value)
    parser.add_argument("--name", default="wrong-programs", help="of the two files")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER, help="folder for them")
    options = parser.parse_args(arguments)
    origin = Origin.of(options)
    dims = {name: int(size) for name, size in (each.split("=") for each in options.dim)}
    rows: list[Wrong] = []
    for model in options.models:
        inputs = onnx.load(model, load_external_data=False).graph.input
        names = {dim.dim_param for each in inputs for dim in each.type.tensor_type.shape.dim}
        known = {name: size for name, size in dims.items() if name in names}
        found = list(judge(model, known, options.count, options.seed, options.precision))
        caught = sum(row.refused for row in found)
        print(f"{name_of(model)}: {caught} of {len(found)} caught", flush=True)
        rows += found
    options.results.mkdir(parents=True, exist_ok=True)
    file = options.results / options.name
    file.with_suffix(".md").write_text(
        report(rows, origin, DType(options.precision)), encoding="utf-8"
    )
    write_data(
        file.with_suffix(".json.gz"), rows_json(asdict(origin), [asdict(row) for row in rows])
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
