"""Decoders whose keys and values lie in one cache, (2, batch, heads, rows, size): com.microsoft's
Attention, and exporters of GPT-2. No step of a session copies one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from benchmarks.onnx_writer import OnnxWriter
from tests.states import only_changed
from tilewright.compiler.api import compile_model
from tilewright.compiler.runtime.guarded import GuardedModel

HEADS, SIZE = 2, 8
WIDTH = HEADS * SIZE


def fused(writer: OnnxWriter, projected: tuple[str, str, str]) -> str:
    """As ONNX Runtime's optimiser writes it."""
    mixed, _ = writer.nodes(
        "Attention",
        (*projected, "", "past"),
        ("", "present"),
        domain="com.microsoft",
        num_heads=HEADS,
        unidirectional=1,
    )
    return mixed


def expanded(writer: OnnxWriter, projected: tuple[str, str, str]) -> str:
    """As exporters write it; every query sees every key."""
    x, weight, bias = projected
    joined = writer.node("Add", writer.node("MatMul", x, weight), bias)
    shape, first = (writer.constant(np.array(v, np.int64)) for v in ([0, 0, HEADS, SIZE], [0]))
    query, key, value = (
        writer.node("Transpose", writer.node("Reshape", part, shape), perm=[0, 2, 1, 3])
        for part in writer.split(joined, [WIDTH] * 3, axis=2)
    )
    key, value = (
        writer.node(
            "Concat",
            writer.node("Gather", "past", writer.constant(np.int64(number)), axis=0),
            new,
            axis=2,
        )
        for number, new in enumerate((key, value))
    )
    both = (writer.node("Unsqueeze", rows, first) for rows in (key, value))
    writer.node("Concat", *both, axis=0, output="present")
    scores = writer.node("MatMul", query, writer.node("Transpose", key, perm=[0, 1, 3, 2]))
    mixed = writer.node("MatMul", writer.node("Softmax", scores, axis=-1), value)
    flat = writer.constant(np.array([0, 0, WIDTH], np.int64))
    return writer.node("Reshape", writer.node("Transpose", mixed, perm=[0, 2, 1, 3]), flat)


def decoder(attend: Any) -> Any:
    writer = OnnxWriter("packed", 0)
    x = writer.input("x", ("batch", "tokens", WIDTH))
    writer.input("past", (2, "batch", HEADS, "past", SIZE))
    weight = writer.constant(writer.normal((WIDTH, 3 * WIDTH), 0.3))
    bias = writer.constant(writer.normal((3 * WIDTH,), 0.1))
    y = writer.node("Relu", attend(writer, (x, weight, bias)), output="y")
    present = (2, "batch", HEADS, "all", SIZE)
    return writer.finish([(y, ("batch", "tokens", WIDTH)), ("present", present)])


@pytest.mark.parametrize("attend", [fused, expanded])
def test_a_packed_cache_grows_in_place(attend: Any) -> None:
    model = decoder(attend)
    executable = compile_model(model, dims={"batch": "1..4", "past": "0..40", "tokens": "1..9"})
    assert isinstance(executable, GuardedModel) and executable.ranged is not None
    assert executable.ranged.rooms == ((1,),)
    (room,) = executable.ranged.program.rooms
    sizes = {"batch": 1, "past": 40, "tokens": 1, room.name: 7}
    program = executable.ranged.program.at(sizes)
    assert program.inputs[1].stored == (2, 1, HEADS, 48, SIZE)
    only_changed(program, 1, 1, 2 * WIDTH * 40 * 4)
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    random = np.random.default_rng(0)
    for batch in (1, 3):
        past = np.zeros((2, batch, HEADS, 0, SIZE), np.float32)
        session = executable.bind({"present": "past"}, {"past": past})
        for tokens in (5, 1, 1, 9, 2, 1):
            x = random.standard_normal((batch, tokens, WIDTH)).astype(np.float32)
            expected, past = reference.run(None, {"x": x, "past": past})
            (found,) = session.run([x])
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(session.state("past"), past, rtol=1e-5, atol=1e-6)
            # without a session, a run gives both as new arrays
            alone, whole = executable.run([x, past[..., : past.shape[3] - tokens, :]])
            np.testing.assert_array_equal(alone, found)
            np.testing.assert_array_equal(whole, session.state("past"))
    assert executable.made == ()
