"""Every ONNX rule with an open dimension: it holds for all sizes, or names the size that it
needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.unit.ops.edge_cases import EACH_SIZE
from tests.unit.ops.rule_case import Case
from tests.unit.ops.test_onnx_rules import CASES
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.sizes import Dimension, DynamicSizeError
from tilewright.compiler.sizes.ranges import refinements

UNDECIDED = {
    "broadcasting, where 1 and other extents differ": (
        "Attention BiasSoftmax DecoderMaskedMultiHeadAttention Einsum EmbedLayerNormalization "
        "MatMulInteger Max Mean Min MultiHeadAttention QLinearMatMul QLinearWhere Squeeze Sum Where"
    ),
    "windows, kernels and groups of open extents": (
        "Col2Im Conv ConvInteger ConvTranspose FusedConv GroupNormalization NhwcConv QLinearConv "
        "RotaryEmbedding Split"
    ),
    "what it computes differs with the extent": "DFT Det Inverse STFT",
    "an image's extents go into its places": "DeformConv GridSample RoiAlign",
    "tables of where each maximum or norm comes from": "LpPool MaxPool",
    "positions known at import that are written, or nothing left": (
        "GatherND ScatterElements Slice TopK"
    ),
    "masks made of constants": "Dropout IsInf NGramRepeatBlock",
    "whether a cache has room": "GroupQueryAttention",
    "antialiasing, aspect ratios and crops": "Resize",
}
"""Operators of which some form falls back to a compile for each size, and why."""


def is_served_when_narrower(proto: ModelProto, extent: int, error: DynamicSizeError) -> bool:
    """Whether narrower ranges are enough, or only one extent is valid."""
    ranges = {"n": Dimension("n", min(extent, 1), 2 * extent + 1)}
    while narrower := refinements(ranges, error):
        ranges = narrower[0]
        if ranges["n"].low == ranges["n"].high:
            break
        try:
            import_model(proto, ranges)
            return True
        except DynamicSizeError as again:
            error = again
        except CompilerError:
            return True
    others = {max(extent - 1, 1), extent + 1, 2 * extent, 2 * extent + 1} - {extent}
    return not any(is_model(proto, n) for n in others)


def is_model(proto: ModelProto, n: int) -> bool:
    try:
        import_model(proto, {"n": n})
    except CompilerError:
        return False
    return True


def opened(proto: ModelProto, extent: int) -> ModelProto:
    """The model with every dimension of its inputs that has this extent called n."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for info in copy.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value == extent:
                dim.dim_param = "n"
    for info in copy.graph.output:
        info.type.tensor_type.ClearField("shape")
    return copy


def open_forms(case: Case) -> Iterator[tuple[ModelProto, dict[str, np.ndarray], int]]:
    """The case with each of its extents open, its inputs, and the extent."""
    proto, feeds = case.model()
    for extent in sorted({extent for array in feeds.values() for extent in array.shape}):
        yield opened(proto, extent), feeds, extent


def outcome(proto: ModelProto, n: int, feeds: dict[str, np.ndarray]) -> Any:
    """The results of the import at a fixed size; None if the model is invalid there."""
    try:
        return run_graph(import_model(proto, {"n": n}), feeds)
    except CompilerError:
        return None


def extents_of(constant: TensorProto) -> dict[str, int]:
    """The elements of a constant as extents, by name; empty if some of them are not extents."""
    array = numpy_helper.to_array(constant)
    if array.dtype.kind != "i" or array.size > 6 or not all(0 <= item < 40 for item in array.flat):
        return {}
    return {f"k{place}": int(item) for place, item in enumerate(array.flat)}


def with_sizes(proto: ModelProto, number: int, names: Collection[str]) -> ModelProto:
    """The model with a constant that is the shape of an input; the extents called `names` are
    open."""
    constant = proto.graph.initializer[number]
    copy = ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.initializer[number], copy.graph.node[:]
    dims = [name if name in names else extent for name, extent in extents_of(constant).items()]
    copy.graph.input.append(helper.make_tensor_value_info("probe", TensorProto.FLOAT, dims))
    shape = numpy_helper.from_array(np.array(constant.dims, np.int64), "probe.shape")
    copy.graph.initializer.append(shape)
    copy.graph.node.extend(
        [
            helper.make_node("Shape", ["probe"], ["probe.extents"]),
            helper.make_node("Reshape", ["probe.extents", "probe.shape"], ["probe.shaped"]),
            helper.make_node("Cast", ["probe.shaped"], [constant.name], to=constant.data_type),
            *proto.graph.node,
        ]
    )
    if all(opset.domain for opset in proto.opset_import):
        copy.opset_import.append(helper.make_opsetid("", 17))
    return copy


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operands_that_become_sizes_mean_the_same(case: Case) -> None:
    proto, feeds = case.model()
    for number, constant in enumerate(proto.graph.initializer):
        extents = extents_of(constant)
        inputs = {**feeds, "probe": np.zeros([*extents.values()], np.float32)}
        if not extents:
            continue
        for names in (extents, *([name] for name in extents if len(extents) > 1)):
            model = with_sizes(proto, number, names)
            sizes = {name: extents[name] for name in names}
            ranges = {name: Dimension(name, max(n - 1, 0), n + 20) for name, n in sizes.items()}
            try:
                graph = import_model(model, ranges)
            except CompilerError:
                continue
            expected = run_graph(import_model(model, sizes), inputs)
            for ours, theirs in zip(run_graph(graph.at(sizes), inputs), expected, strict=True):
                assert ours.shape == theirs.shape, sizes
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


OPENED = [case for case in CASES if all(case is not each for each in EACH_SIZE)]


@pytest.mark.parametrize("case", OPENED, ids=lambda case: case.name)
def test_a_rule_holds_for_all_sizes_or_refuses(case: Case) -> None:
    for proto, feeds, extent in open_forms(case):
        try:
            graph = import_model(proto, {"n": Dimension("n", min(extent, 1), 2 * extent + 1)})
        except DynamicSizeError as error:
            assert case.op_type in str(error) or "'" in str(error)
            if case.op_type not in " ".join(UNDECIDED.values()).split():
                assert is_served_when_narrower(proto, extent, error), error
            continue
        except CompilerError:
            assert outcome(proto, 2 * extent + 1, feeds) is None  # no model for other sizes
            continue
        for n in (extent, 1, extent + 1):
            if n != extent and any(array.dtype != np.float32 for array in feeds.values()):
                continue
            random = np.random.default_rng(n)
            inputs = {
                name: array
                if n == extent
                else random.uniform(
                    0.1, 2, [n if size == extent else size for size in array.shape]
                ).astype(np.float32)
                for name, array in feeds.items()
            }
            expected = outcome(proto, n, inputs)
            if expected is None:
                continue
            for ours, theirs in zip(run_graph(graph.at({"n": n}), inputs), expected, strict=True):
                assert ours.shape == theirs.shape
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
