"""Ranged programs between guard pages: no access is out of bounds at any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.decoders import gpt2_decoder, llama_decoder
from benchmarks.dynamic_models import dynamic_bert
from tests.guarded_programs import GuardedExecutable
from tests.integration.test_dynamic_bodies import CASES as BODIES
from tests.integration.test_dynamic_bodies import opened as opened_body
from tests.kernels import in_child
from tilewright.compiler.api import compile_model
from tilewright.compiler.runtime import executable
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel

SMALL = {"layers": 1, "hidden": 32, "heads": 4, "vocabulary": 50}


@dataclass(frozen=True)
class GuardedCase:
    """A model, ranges of its dimensions, sizes to run with, and how much room caches have."""

    build: Callable[[], Any]
    dims: Mapping[str, str]
    sizes: tuple[tuple[int, ...], ...]
    rooms: tuple[int | None, ...] = (None,)


def convolutions() -> Any:
    """Windows with zeros around them, strides of two, separate channels, and pooling."""
    info, float32 = helper.make_tensor_value_info, TensorProto.FLOAT
    weights = {"a": (16, 3, 3, 3), "b": (16, 1, 3, 3), "c": (8, 16, 1, 1)}
    random = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "b"], ["r"], pads=[1] * 4, group=16),
        helper.make_node("Conv", ["r", "c"], ["s"]),
        helper.make_node("MaxPool", ["s"], ["t"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Softmax", ["t"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [info("x", float32, [1, 3, "height", "width"])],
        [info("y", float32, None)],
        [
            numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


CASES = {
    "bert": GuardedCase(
        partial(dynamic_bert, intermediate=64, **SMALL),
        {"batch": "1..4", "sequence": "1..64"},
        ((1, 1), (4, 64), (3, 7), (1, 17), (2, 33)),
    ),
    "gpt2": GuardedCase(
        partial(gpt2_decoder, length=64, cache="growing", **SMALL),
        {"past": "0..63", "tokens": "1..64"},  # their sum is at most 64
        ((0, 1), (32, 32), (63, 1), (0, 64), (17, 5)),
        (None, 0, 1, 13),
    ),
    "llama": GuardedCase(
        partial(llama_decoder, length=64, cache="growing", groups=2, intermediate=48, **SMALL),
        {"past": "0..31", "tokens": "1..32"},
        ((0, 3), (31, 32), (2, 1), (16, 16)),
        (None, 7),
    ),
    "convolutions": GuardedCase(
        convolutions,
        {"height": "4..64:4", "width": "4..64:4"},
        ((4, 4), (64, 4), (4, 64), (20, 36)),
    ),
    "scan": GuardedCase(
        lambda: opened_body(BODIES["scan"]), {"time": "1..64"}, ((1,), (2,), (17,), (64,))
    ),
    "branches": GuardedCase(
        lambda: opened_body(BODIES["branches"]), {"rows": "1..64"}, ((1,), (7,), (48,), (64,))
    ),
}


def drawn(session: Any, sizes: Mapping[str, int], random: np.random.Generator) -> list[np.ndarray]:
    """Inputs of these sizes, in order."""
    arrays = []
    for given in session.get_inputs():
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in given.shape]
        match given.type:
            case "tensor(int64)":
                arrays.append(np.ones(shape, np.int64))
            case "tensor(bool)":
                arrays.append(np.asarray(random.random(shape) < 0.5))
            case _:
                arrays.append(random.standard_normal(shape).astype(np.float32))
    return arrays


def ranged_of(model: object) -> Executable:
    assert isinstance(model, GuardedModel) and model.ranged is not None, model
    return model.ranged


@pytest.mark.parametrize("name", CASES)
def test_programs_keep_to_their_memory_at_every_size(name: str) -> None:
    case = CASES[name]
    proto = case.build()
    ranged = ranged_of(compile_model(proto, dims=dict(case.dims)))
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    random = np.random.default_rng(3)
    runs = []
    for sizes in case.sizes:
        named = dict(zip(case.dims, sizes, strict=True))
        arrays = drawn(session, named, random)
        feeds = {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)}
        runs.append((named, arrays, session.run(None, feeds)))

    def work(late: bool) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            guarded = GuardedExecutable(ranged, monkeypatch, late=late)
            for room, (sizes, arrays, expected) in product(case.rooms, runs):
                found = guarded.run(arrays, sizes, room)
                for mine, theirs in zip(found, expected, strict=True):
                    np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)

    for late in (False, True):
        in_child(partial(work, late))


def test_a_program_that_does_not_is_found() -> None:
    """With a slot that is too small, which the program's own check would refuse."""
    case = CASES["branches"]
    whole = ranged_of(compile_model(case.build(), dims=dict(case.dims)))
    less = [replace(slot, bytes=slot.bytes - 64) for slot in whole.program.slots]
    x, chosen = np.ones((64, 32), np.float32), np.array(True)

    def work() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(executable, "check_program", lambda program: None)
            small = whole.with_program(replace(whole.program, slots=tuple(less)))
            GuardedExecutable(small, monkeypatch, late=True).run([x, chosen], {"rows": 64})

    with pytest.raises(AssertionError, match="it died of SIGSEGV"):
        in_child(work)
