"""Where Winograd applies, its default choice, and its rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.kernels import WIDTHS, run_workload, width
from tests.unit.schedule.problems import conv
from tilewright.compiler.driver import load_graph, make_plan, optimise
from tilewright.compiler.loops.layout import Factor, Layout, blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.schedule.space import SubSpace
from tilewright.compiler.schedule.templates.winograd import TEMPLATE
from tilewright.compiler.schedule.templates.winograd_analysis import Side, analyse
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

TARGET = resolve_target("x86-64-v4")


def space(workload: Workload, target: Target = TARGET, threads: int = 1) -> SubSpace:
    found = TEMPLATE.space(workload, Mode(target, threads, "loose"))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "workload",
    [
        conv(16, halo=False),
        conv(16, group=2),
        conv(16, dilation=2),
        conv(16, kernel=1),
        conv(16, planar=True),
        conv(16, kernel=3, stride=3),
        conv(16, size=1),
        conv(16, channels=1),
        conv(16, filters=1),
    ],
)
def test_what_it_does_not_apply_to(workload: Workload) -> None:
    """Padding is in a halo, channels lie together, and a phase of the window has two taps."""
    assert TEMPLATE.space(workload, Mode(TARGET)) is None


def test_sums_of_integers_are_not_transformed() -> None:
    """A convolution of bytes whose sums become float32: ConvInteger and Cast."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["bytes", "scale", "zero"]),
        helper.make_node(
            "ConvInteger", ["bytes", "w", "zero"], ["sums"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        ),
        helper.make_node("Cast", ["sums"], ["whole"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["whole", "scale"], ["y"]),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64, 28, 28]) for name in "xy"
    ]
    weights = numpy_helper.from_array(np.ones((64, 64, 3, 3), np.int8), "w")
    graph = helper.make_graph(nodes, "bytes", ports[:1], ports[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    plan = make_plan(optimise(load_graph(model), Mode(TARGET)), Mode(TARGET))
    products = [w for w, _ in plan.tasks() if any(n.op == "conv" for n in w.graph.nodes)]
    assert products
    assert [analyse(workload) for workload in products] == [None] * len(products)


def test_channels_last_serve_as_well_as_blocks() -> None:
    """Blocks that a vector of channels would straddle do not."""
    last = Layout((Factor(0), Factor(2), Factor(3), Factor(1)))
    single = conv(16, channels=24, filters=40)
    workload = replace(
        single,
        inputs=(replace(single.inputs[0], layout=last), *single.inputs[1:]),
        output=replace(single.output, layout=last),
    )
    assert schedule_space(workload, Mode(TARGET)).default().algorithm == "winograd"
    narrow = replace(workload, output=replace(workload.output, layout=blocked(4, 1, 8)))
    assert TEMPLATE.space(narrow, Mode(TARGET)) is None


def test_strict_numerics_leave_it_out() -> None:
    assert TEMPLATE.space(conv(16), Mode(TARGET, numerics="strict")) is None


def test_tiles_that_lose_a_digit_are_there_when_asked_for() -> None:
    found = {
        numerics: TEMPLATE.space(conv(16), Mode(TARGET, numerics=numerics))
        for numerics in ("fast", "loose")
    }
    outputs = {
        numerics: knob.values
        for numerics, space in found.items()
        if space is not None
        for knob in space.knobs
        if knob.name == "outputs"
    }
    assert outputs == {"fast": (2, 3, 4), "loose": (2, 3, 4, 6)}
    assert all(s is not None and s.default.integer("outputs") <= 4 for s in found.values())


@pytest.mark.parametrize(
    ("taps", "stride", "reach", "full"),
    [(3, 1, 3, 1), (3, 2, 2, 1), (4, 2, 2, 2), (5, 2, 3, 1), (7, 2, 4, 1), (5, 3, 2, 2)],
)
def test_phases_of_a_window(taps: int, stride: int, reach: int, full: int) -> None:
    """Taps k, k + stride, k + 2 * stride... are a phase; together they are the window."""
    side = Side(2, taps, stride)
    assert (side.reach, side.full) == (reach, full)
    assert side.full * side.reach + (side.stride - side.full) * (side.reach - 1) == taps


@pytest.mark.parametrize(
    ("workload", "outputs", "products"),
    [
        (conv(16), 4, 36),
        (conv(16, kernel=5), 2, 36),
        (conv(16, kernel=(1, 7)), 2, 8),
        # 3 taps at stride 2 are a phase of 2 and one of 1: 5 and 4 points along each side
        (conv(16, stride=2), 4, 81),
        (conv(16, kernel=7, stride=2, size=56), 3, 121),
    ],
)
def test_products_of_a_tile(workload: Workload, outputs: int, products: int) -> None:
    found = analyse(workload)
    assert found is not None
    assert found.products(outputs) == products


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("workload", "outputs"),
    [
        (conv(16), 4),
        (conv(16, channels=256, filters=256, size=14), {1: 4, 2: 3}),
        (conv(16, channels=512, filters=512, size=7), 2),
        (conv(16, kernel=5), 2),
        (conv(16, kernel=(1, 3)), 6),
        (conv(16, kernel=(7, 1)), 2),
        (conv(16, stride=2, size=56, filters=128), 4),
    ],
)
def test_defaults(workload: Workload, outputs: int | dict[int, int], threads: int) -> None:
    """Tiles that round well, as large as the weights, which they make larger and each thread reads,
    allow."""
    default = schedule_space(workload, Mode(TARGET, threads)).default()
    assert default.algorithm == "winograd"
    expected = outputs if isinstance(outputs, int) else outputs[threads]
    assert default.integer("outputs") == expected


def test_few_outputs_of_many_weights_stay_direct() -> None:
    """Where each weight is used once or twice, more weights cost more than products save."""
    for workload in (
        conv(16, channels=512, filters=512, size=2),
        conv(16, channels=512, filters=512, size=14, stride=2),
    ):
        assert schedule_space(workload, Mode(TARGET)).default().algorithm == "direct"


def test_a_loop_is_written_out_only_where_registers_are_spare() -> None:
    for point in space(conv(16)).points:
        tile, vectors = point.integer("tile"), point.integer("vectors")
        spare = TARGET.vector_registers - (tile * vectors + vectors + 1)
        assert spare >= (0 if point.integer("unroll") == 1 else 2), str(point)


def error(workload: Workload, schedule: Schedule, target: Target, threads: int = 1) -> float:
    """Largest error against float64, relative to the largest output."""
    random = np.random.default_rng(5)
    graph = workload.graph
    arrays = []
    for name in graph.inputs:
        shape = graph.types[name].shape
        array = random.standard_normal(shape)
        if name == "w":
            array /= np.sqrt(np.prod(shape[1:]))
        arrays.append(array.astype(np.float32))
    inputs = dict(zip(graph.inputs, arrays, strict=True))
    (expected,) = run_graph(graph, inputs, float64=True)
    got = run_workload(workload, schedule, target, tuple(arrays), random, threads=threads)
    return float(np.abs(got - expected).max() / np.abs(expected).max())


KERNELS = [(3, 1), (3, 2), (5, 1), (5, 2), (7, 2), ((1, 3), 1), ((5, 1), 1), ((1, 7), 1)]


@pytest.mark.parametrize(("kernel", "stride"), KERNELS)
def test_default_tiles_round_within_1e_5(kernel: int | tuple[int, int], stride: int) -> None:
    """Larger ones, which a search may take, within 3e-5."""
    target = width(WIDTHS[-1])
    workload = conv(
        target.vector_bits // 32, channels=256, filters=32, size=17 * stride, kernel=kernel,
        stride=stride,
    )  # fmt: skip
    found = space(workload, target)
    default = dict(found.default.choices)
    assert error(workload, found.default, target) <= 1e-5
    for outputs in next(k.values for k in found.knobs if k.name == "outputs"):
        if outputs != default["outputs"]:
            small = {"block": 7, "tile": 4, "vectors": 1, "unroll": 1, "outputs": outputs}
            assert error(workload, Schedule.of("winograd", **small), target) <= 3e-5


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bits", WIDTHS)
def test_blocks_of_tiles_reach_over_images(bits: int, threads: int) -> None:
    """Three images of four tiles in blocks of five: the last block is clamped."""
    lanes = bits // 32
    workload = conv(lanes, channels=lanes, filters=lanes, size=7, batch=3)
    schedule = Schedule.of("winograd", outputs=4, block=5, tile=5, vectors=1, unroll=1)
    assert error(workload, schedule, width(bits), threads) <= 1e-5


def test_an_untuned_tile_of_one_vector_is_not_unrolled_where_sums_would_move() -> None:
    """In such steps LLVM kept half of the sums on the stack: twice the time on 16 registers."""
    target = resolve_target("x86-64-v3")
    default = space(conv(8, channels=128, filters=128, size=28), target).default
    assert default.integer("vectors") > 1 or default.integer("unroll") == 1
