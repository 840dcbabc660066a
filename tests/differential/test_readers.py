"""Graphs in which operators of every kind read one value that may lie in many layouts:
`compile_model` raises nothing but `CompilerError`, in any type of floats and with open dimensions.

All graphs are planned, and a few are compiled and run. `make fuzz` runs twenty times as many.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper, numpy_helper

import tilewright
from tests.differential.graph_nodes import generators
from tests.differential.graphs import FLOAT, Draw, Grower, Rejected, Value
from tests.differential.moving_nodes import MOVES
from tests.differential.reading_nodes import JUMPS, READERS
from tests.differential.test_graphs import check, describe
from tests.examples import examples
from tests.opened import dims_of, dynamic_dimensions
from tilewright.compiler.driver import make_plan, optimise
from tilewright.compiler.errors import ModelWarning
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target

PLANNED, RUN = 120, 10
CODED = 8
"""Of how many plans one becomes code."""

CHANNELS = (1, 3, 4, 8, 12, 16, 24, 32, 33)
"""Whole blocks of a vector or of half of one, partly filled blocks, and no blocks."""

EXTENTS = (1, 2, 5, 8)
LARGEST = 1 << 14
MAKERS = (
    *("Conv", "Conv", "Conv", "MaxPool", "AveragePool", "ConvTranspose", "BatchNormalization"),
    *("Relu", "Mul", "Concat", "Resize", "InstanceNormalization", "Slice", "Pad", "Transpose"),
)
ATTEMPTS, MOST_MAKERS, MOST_KINDS, MOST_READERS, MOST_BEHIND = 6, 2, 3, 4, 2
TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def read_value(draw: Draw, kinds: Collection[str]) -> Grower:
    """A graph in which a few nodes read the results that a few others compute from an image, and
    others follow."""
    g = Grower(draw, LARGEST)
    spatial = [g.pick(EXTENTS)] * g.pick([2, 2, 1, 3]) if g.flag() else [g.pick(EXTENTS)] * 2
    if g.flag():
        spatial[0] = g.pick(EXTENTS)
    made = g.input([g.pick([1, 1, 2]), g.pick(CHANNELS), *spatial])
    for _ in range(g.integer(1, MOST_MAKERS)):
        made = _grown(g, [made], MAKERS) or made
    # few kinds, so that often all readers take the same layouts
    pool = [_kind(g, kinds) for _ in range(g.integer(1, MOST_KINDS))]
    behind = [
        value for _ in range(g.integer(1, MOST_READERS)) if (value := _grown(g, [made], pool))
    ]
    for _ in range(g.integer(0, MOST_BEHIND)):
        _grown(g, [made, *behind], sorted(kinds))
    return g


KINDS = {**generators(), **READERS}


def _kind(g: Grower, kinds: Collection[str]) -> str:
    """As often a kind that moves elements, which affects layouts the most."""
    return g.pick(sorted(MOVES)) if g.flag() else g.pick(sorted(kinds))


def _grown(g: Grower, offered: list[Value], kinds: Sequence[str]) -> Value | None:
    """A node of one of these kinds that reads an offered value; its first result, if that is a
    tensor of floats."""
    kept = g.values
    for _ in range(ATTEMPTS):
        before = len(g.nodes), dict(g.inputs), dict(g.constants)
        g.values = list(offered)
        try:
            KINDS[g.pick(kinds)](g)
        except Rejected:
            del g.nodes[before[0] :]
            g.inputs, g.constants = before[1:]
            g.values = kept
            continue
        found = g.values[len(offered) :]
        g.values = kept + found
        made = [v for v in found if v.array.dtype == FLOAT and v.name not in g.inputs]
        return made[0] if made else None
    return None


class Planned(Exception):
    """A plan was made: no code is generated."""


def plan(graph: Graph, sizes: Mapping[str, int] | None) -> NoReturn:
    target = resolve_target("host")
    make_plan(optimise(graph, Mode(target)), Mode(target))
    raise Planned


def in_type(g: Grower, kind: int) -> tuple[ModelProto, dict[str, Any]]:
    """The model and its inputs with floats of another type."""
    model = g.model()
    dtype = helper.tensor_dtype_to_np_dtype(kind)

    def convert(graph: GraphProto) -> None:
        for port in (*graph.input, *graph.output):
            if port.type.tensor_type.elem_type == TensorProto.FLOAT:
                port.type.tensor_type.elem_type = kind
        for tensor in graph.initializer:
            if tensor.data_type == TensorProto.FLOAT:
                array = numpy_helper.to_array(tensor).astype(dtype)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    convert(attribute.g)
                elif attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                    attribute.i = kind

    convert(model.graph)
    arrays = {n: a.astype(dtype) if a.dtype == FLOAT else a for n, a in g.inputs.items()}
    return model, arrays


@settings(
    max_examples=examples(PLANNED),
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)
@given(st.data(), st.sampled_from(TYPES), st.booleans(), st.integers(0, 1 << 30))
def test_every_partition_has_a_plan(
    data: st.DataObject, kind: int, opened: bool, seed: int
) -> None:
    g = read_value(data.draw, KINDS)
    model, inputs = in_type(g, kind)
    coded = data.draw(st.integers(1, CODED)) == CODED
    assume(g.expected)
    if opened:
        dynamic_dimensions(model, random.Random(seed))
    whole = kind == TensorProto.FLOAT and not opened
    told = f"{TensorProto.DataType.Name(kind)} {[dims_of(p) for p in model.graph.input]}"
    told = f"{told}\n{describe(g)}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        try:
            made = tilewright.compile_model(model, planner=None if coded else plan, keep=False)
            assert "fault of the compiler" not in getattr(made, "reason", ""), told
            made.run(inputs)
        except Planned:
            pass
        except tilewright.CompilerError as error:
            assert not whole, f"{error}\n{told}"
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\n{told}") from error


@settings(
    max_examples=examples(RUN),
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)
@given(st.data())
def test_every_reader_gets_the_value(data: st.DataObject) -> None:
    g = read_value(data.draw, KINDS.keys() - JUMPS)
    assume(g.nodes)
    try:
        check(g)
    except (AssertionError, tilewright.CompilerError) as error:
        raise AssertionError(f"{error}\n{describe(g)}") from error
