"""Large batches in slices: the models concerned, the number of elements, and the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

from tests.kernels import HOST
from tilewright.compiler.driver import load_program, make_plan, optimise
from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.program.slices import slices_of
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.program import Slices
from tilewright.compiler.runtime.program_check import check_program
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json
from tilewright.compiler.sizes import Dimension, dynamic_size
from tilewright.compiler.targets.host import resolve_target

V4 = resolve_target("x86-64-v4")
SMALL = replace(V4.core, cache_bytes=(1 << 10, 1 << 11, 1 << 16), weight_macs=0)
"""Everything outgrows its caches, and weights come for nothing."""

BATCH = Dimension("n", 1, 64)
IMAGES = "float[n,32,{0},{0}] x, float[n,1,1,1] scale".format


def planned(body: str, inputs: str = IMAGES(8), batch: Dimension = BATCH) -> GraphPlan:
    """A model of an output y, and its plan with an open batch."""
    random = np.random.default_rng(0)
    weights = {"w": (32, 32, 3, 3), "table": (5, 32, 8, 8), "rows": (2048, 16)}
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        model ({inputs}) => (y) {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    for name, shape in weights.items():
        if any(name in node.input for node in model.graph.node):
            array = random.standard_normal(shape).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = import_model(model, {"n": batch})
    return make_plan(optimise(graph, Mode(V4)), Mode(V4))


CONVOLUTIONS = """
    a = Conv<pads=[1,1,1,1]>(x, w)
    b = Relu(a)
    c = Mul(b, scale)
    d = MaxPool<kernel_shape=[2,2]>(c)
    e = Concat<axis=1>(d, d)
    y = Softmax<axis=1>(e)
"""


@pytest.mark.parametrize(
    "body",
    [
        CONVOLUTIONS,
        "a = Conv<pads=[1,1,1,1]>(x, w)  b = Flatten(a)  y = MatMul(b, rows)",
        "a = Transpose<perm=[0,2,3,1]>(x)  b = ReduceMean<axes=[2], keepdims=0>(a)  y = Relu(b)",
        "a = Constant<value_ints=[0,0,1,1]>()  z = Constant<value_ints=[0,0,0,0,0,0,1,1]>()"
        "  b = Pad(x, z)  y = Relu(b)",
    ],
)
def test_batches_whose_elements_stay_apart(body: str) -> None:
    assert slices_of(planned(body), SMALL) is not None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Softmax<axis=0>(x)", "each needs all"),
        ("m = ReduceMean<axes=[0]>(x)  y = Sub(x, m)", "their mean"),
        ("y = ReduceSum<keepdims=1>(x)", "one number of all"),
        ("y = Concat<axis=0>(x, x)", "twice as many"),
        ("y = Transpose<perm=[1,0,2,3]>(x)", "the batch moves"),
        ("i = Constant<value_int=0>() f = Gather<axis=0>(x, i) y = Add(x, f)", "the first one"),
        (
            "b = Constant<value_ints=[0]>() e = Constant<value_ints=[1]>()"
            " f = Slice(x, b, e, b) y = Add(x, f)",
            "the first one, as a view",
        ),
        (
            "b = Constant<value_ints=[-1]>() e = Constant<value_ints=[-9000]>()"
            " z = Constant<value_ints=[0]>() f = Slice(x, b, e, z, b) y = Add(x, f)",
            "the last comes first",
        ),
        ("s = Shape<start=0,end=1>(x) f = Cast<to=1>(s) y = Div(x, f)", "how many there are"),
        ("m = CumSum(x, axis)  y = Relu(m)", "those before it"),
        ("z = NonZero(x)  y = Cast<to=1>(z)", "counted"),
    ],
)
def test_batches_whose_elements_meet(body: str, reason: str) -> None:
    if "CumSum" in body:
        body = f"axis = Constant<value_int=0>() {body}"
    assert slices_of(planned(body), SMALL) is None, reason


def test_a_slice_fills_half_of_the_last_cache() -> None:
    """32 channels of 64x64 pixels are read and written: 1 MiB, and zeros around one of them."""
    plan = planned("a = Conv<pads=[1,1,1,1]>(x, w)  y = Relu(a)", IMAGES(64))
    slices = slices_of(plan, V4.core)
    assert slices is not None
    assert (slices.dimension, slices.least) == ("n", 1)
    assert slices.budget == V4.core.cache_bytes[2] // 2
    assert slices.most({}) == slices.budget // (1 << 20) - 1


def test_weights_are_read_once_for_so_many_elements_that_nobody_waits() -> None:
    """A product of one row waits for each weight as long as `weight_macs` rows take."""
    plan = planned("a = Flatten(x)  y = MatMul(a, rows)", "float[n,32,8,8] x")
    slices = slices_of(plan, V4.core)
    assert slices is not None
    assert slices.least >= V4.core.weight_macs / 1.2 > slices.least / 2
    few = planned("a = Flatten(x)  y = MatMul(a, rows)", "float[n,32,8,8] x", Dimension("n", 1, 8))
    assert slices_of(few, V4.core) is None


def test_other_sizes_say_how_many_elements_a_slice_has() -> None:
    slices = Slices("n", 4 * dynamic_size(Dimension("h", 1, 99)), 1000, 2)
    assert [slices.most({"h": h}) for h in (1, 25, 99)] == [250, 10, 2]


@pytest.fixture(scope="module")
def executable() -> Executable:
    """Of slices of up to three images."""
    plan = make_plan(optimise(planned(CONVOLUTIONS).graph, Mode(HOST)), Mode(HOST))
    compiled = ProgramBuilder(None, Mode(HOST)).build(plan)
    sliced = replace(compiled.program, slices=Slices("n", 1, 3, 1))
    return load_program(replace(compiled, program=sliced))


def feeds(count: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(count)
    return {
        "x": random.standard_normal((count, 32, 8, 8)).astype(np.float32),
        "scale": random.standard_normal((count, 1, 1, 1)).astype(np.float32),
    }


@pytest.mark.parametrize("count", [1, 3, 4, 8, 64])
def test_slices_give_what_the_whole_gives(executable: Executable, count: int) -> None:
    given = feeds(count)
    (whole,) = executable.run_into([given["x"], given["scale"]], {})
    (got,) = executable.run(given)
    np.testing.assert_allclose(got, whole, rtol=1e-4, atol=1e-6)
    (strided,) = executable.run({name: array[::-1] for name, array in given.items()})
    np.testing.assert_allclose(strided, whole[::-1], rtol=1e-4, atol=1e-6)


def test_each_run_takes_one_slice(executable: Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    run_into = executable.run_into

    def noted(
        arrays: Sequence[np.ndarray], given: Mapping[int, Any], **more: Any
    ) -> list[np.ndarray]:
        taken.append(len(arrays[0]))
        return run_into(arrays, given, **more)

    monkeypatch.setattr(executable, "run_into", noted)
    executable.run(feeds(8))
    executable.run(feeds(3))
    assert taken == [3, 3, 2, 3]


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [("scale", 7, "dimension 0"), ("scale", 9, "dimension 0"), ("x", 65, "expected 1..64")],
)
def test_inputs_are_checked_before_the_first_slice(
    executable: Executable, name: str, count: int, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        executable.run({**feeds(8), name: feeds(count)[name]})


def test_an_artifact_keeps_them(executable: Executable) -> None:
    program = executable.program
    data = program_to_json(program)
    assert program_from_json(data).slices == program.slices
    assert "slices" not in program_to_json(replace(program, slices=None))
    assert program.at({"n": 8}).slices is None


@pytest.mark.parametrize(
    "change",
    [
        {"slices": Slices("m", 1, 3, 1)},
        {"slices": Slices("n", 1, 3, 0)},
        {"slices": Slices("n", dynamic_size(BATCH), 3, 1)},
        {"slices": Slices("n", dynamic_size(Dimension("k", 1, 9)), 3, 1)},
    ],
)
def test_absurd_slices_are_refused(executable: Executable, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="slices"):
        check_program(replace(executable.program, **change))


def test_ports_that_do_not_begin_with_the_batch_are_refused(executable: Executable) -> None:
    program = executable.program
    (output,) = program.outputs
    turned = replace(output, shape=output.shape[::-1])
    with pytest.raises(ValueError, match="slices"):
        check_program(replace(program, outputs=(turned,)))
