"""Large initializers apart from the message: the same graphs, the same errors."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler.api import compile_model
from tilewright.compiler.errors import InvalidModelError, OutOfMemoryError
from tilewright.compiler.frontend import model_file
from tilewright.compiler.frontend.message import LEAST_BYTES, UnusualError, split_message
from tilewright.compiler.frontend.model_file import read_model, with_tensors
from tilewright.compiler.frontend.onnx_import import import_model

FLOAT = TensorProto.FLOAT


def model() -> onnx.ModelProto:
    """Large and small raw data, data in typed fields, 16-bit floats, and a constant in a node."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    large = [draw(48, 64), draw(64, 32), draw(64, 32).astype(np.float16)]
    constants = [numpy_helper.from_array(a, f"w{n}") for n, a in enumerate(large)]
    typed = draw(32, 40)
    constants.append(helper.make_tensor("typed", FLOAT, typed.shape, typed.reshape(-1).tolist()))
    constants.append(numpy_helper.from_array(draw(40), "small"))
    inside = numpy_helper.from_array(draw(48, 40))
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Cast", ["w2"], ["wide"], to=FLOAT),
        helper.make_node("Add", ["w1", "wide"], ["w"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("MatMul", ["b", "typed"], ["c"]),
        helper.make_node("Add", ["c", "small"], ["d"]),
        helper.make_node("Constant", [], ["e"], value=inside),
        helper.make_node("MatMul", ["x", "e"], ["f"]),
        helper.make_node("Add", ["d", "f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "m",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 48])],
        [helper.make_empty_tensor_value_info("y")],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "SPLIT_BYTES", 1)


def test_the_graph_is_that_of_the_whole_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = model().SerializeToString()
    whole = import_model(data, {"n": 3})
    monkeypatch.setattr(model_file, "SPLIT_BYTES", 1)
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    for source in (path, data):
        assert import_model(source, {"n": 3}) == whole
    read = read_model(path)
    assert set(read.tensors) == {"w0", "w1"}, "large ones: 12 and 8 KiB; w2 has 4"
    assert read.proto.ByteSize() < len(data) - 20_000
    shared = with_tensors(read)
    for size in (2, 3):
        again = import_model(shared, {"n": size})
        assert all(np.array_equal(a, whole.constants[n]) for n, a in again.constants.items())


def test_data_that_is_apart_is_aligned_and_cannot_be_changed(split: None) -> None:
    tensors = read_model(model().SerializeToString()).tensors
    for name, tensor in tensors.items():
        assert tensor.array.ctypes.data % 64 == 0, name
        assert not tensor.array.flags.writeable


def test_a_message_that_is_cut_off_is_refused(split: None) -> None:
    data = model().SerializeToString()
    for end in (1, 5, 40, 400, 4000, 12_000, 20_000, len(data) - 1):
        with pytest.raises(InvalidModelError, match=r"was cut off|is not ONNX"):
            import_model(data[:end], {"n": 3})


def test_memory_that_is_not_there_is_said_so(split: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("tilewright.compiler.frontend.message.mmap.mmap", nothing)
    with pytest.raises(OutOfMemoryError, match="to read the model: Cannot allocate memory for"):
        compile_model(model().SerializeToString(), dims={"n": 3})


def test_a_tensor_whose_data_has_another_size_is_named(split: None) -> None:
    broken = model()
    broken.graph.initializer[1].dims[0] += 1
    with pytest.raises(
        InvalidModelError,
        match="initializer 'w1' has 8192 bytes of data, its type and shape need 8320",
    ):
        read_model(broken.SerializeToString())


def test_what_no_tool_writes_is_left_to_protobuf(split: None) -> None:
    """A second `raw_data` of one tensor replaces the first, and a group may follow."""
    whole = model()
    (first, *_) = whole.graph.initializer
    later = np.arange(first.dims[0] * first.dims[1], dtype=np.float32)
    twice = first.SerializeToString() + TensorProto(raw_data=later.tobytes()).SerializeToString()
    tensors = [twice, *(t.SerializeToString() for t in whole.graph.initializer[1:])]
    inner = onnx.GraphProto()
    inner.CopyFrom(whole.graph)
    del inner.initializer[:]
    content = inner.SerializeToString() + b"".join(_field(5, tensor) for tensor in tensors)
    outer = onnx.ModelProto()
    outer.CopyFrom(whole)
    outer.ClearField("graph")
    data = outer.SerializeToString() + _field(7, content)
    with pytest.raises(UnusualError):
        split_message(io.BytesIO(data), len(data))
    found = import_model(data, {"n": 3}).constants["w0"]
    np.testing.assert_array_equal(found.reshape(-1), later)
    group = whole.SerializeToString() + b"\xa3\x06\xa4\x06"  # the 100th field, without content
    with pytest.raises(UnusualError):
        split_message(io.BytesIO(group), len(group))
    assert import_model(group, {"n": 3}) == import_model(whole, {"n": 3})


def test_a_graph_in_two_parts_is_one(split: None) -> None:
    """protobuf joins them; initializers are counted through both."""
    whole = model()
    one, two = onnx.GraphProto(), onnx.GraphProto()
    one.CopyFrom(whole.graph)
    del one.initializer[2:]
    two.initializer.extend(whole.graph.initializer[2:])
    assert len(numpy_helper.to_array(two.initializer[0]).tobytes()) == LEAST_BYTES
    outer = onnx.ModelProto()
    outer.CopyFrom(whole)
    outer.ClearField("graph")
    parts = b"".join(_field(7, part.SerializeToString()) for part in (one, two))
    assert import_model(outer.SerializeToString() + parts, {"n": 3}) == import_model(
        whole, {"n": 3}
    )


def _field(number: int, content: bytes) -> bytes:
    """A field whose value has a length, as protobuf writes it."""
    encoded = bytearray([number * 8 + 2])
    size = len(content)
    while size > 127:
        encoded.append(size & 127 | 128)
        size >>= 7
    return bytes([*encoded, size]) + content
