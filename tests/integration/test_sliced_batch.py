"""Large batches of a fixed size: a loop over slices, with the results of one piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import tilewright
from tests.unit.c_library.conftest import Loaded
from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.program import slices
from tilewright.compiler.program.builder import build_program
from tilewright.compiler.program.sliced_batch import slice_of
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.program import Loop, Slices
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model

CONVOLUTION = """
    a = Conv<pads=[1,1,1,1]>(x, w)
    b = Mul(a, scale)
    c = Relu(b)
    y = Softmax<axis=1>(c)
"""


def model(body: str = CONVOLUTION, more: str = "", outputs: str = "y") -> bytes:
    """Images (n, 3, 8, 8) and a factor without a batch."""
    text = f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        model (float[n,3,8,8] x, float[1,5,1,1] scale{more}) => ({outputs}) {{ {body} }}"""
    proto = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((5, 3, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return bytes(proto.SerializeToString())


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images fit: each is read with 3 channels and zeros around it, and written with 5."""
    for module in (driver, slices):
        monkeypatch.setattr(module, "cache_budget", lambda core: 2 * 8 * 10 * 10 * 4)


def compiled(proto: bytes, batch: int = 12) -> Executable:
    made = tilewright.compile_model(proto, dims={"n": batch}, keep=False)
    assert isinstance(made, Executable)
    return made


def feeds(batch: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(batch)
    shapes = {"x": (batch, 3, 8, 8), "scale": (1, 5, 1, 1)}
    return {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def steps_of(made: Executable) -> list[int]:
    """The most steps of each loop."""
    return [each.most for each in made.program.walk() if isinstance(each, Loop)]


def test_slices_give_what_one_piece_gives(request: pytest.FixtureRequest) -> None:
    whole = compiled(model())
    assert not steps_of(whole)
    request.getfixturevalue("small_caches")
    sliced = compiled(model())
    assert steps_of(sliced) == [6]
    assert sliced.program.arena_bytes < whole.program.arena_bytes
    assert [p.shape for p in sliced.inputs] == [(12, 3, 8, 8), (1, 5, 1, 1)]
    (expected,) = whole.run(feeds(12))
    for _ in range(2):
        (found,) = sliced.run(feeds(12))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("small_caches")
def test_batches_that_stay_in_one_piece() -> None:
    assert not steps_of(compiled(model(), 2)), "it fits"
    assert not steps_of(compiled(model(f"{CONVOLUTION} z = Softmax<axis=0>(x)", "", "y, z")))
    text = f"""{CONVOLUTION} z = ai.onnx.ml.LabelEncoder
        <keys_floats=[0.0, 1.0], values_strings=["a", "b"]> (x)"""
    assert not steps_of(compiled(model(text, "", "y, string[n,3,8,8] z"))), "rows are no texts"
    with pytest.raises(tilewright.InvalidInputError):
        compiled(model()).run(feeds(6))


@pytest.mark.usefixtures("small_caches")
@pytest.mark.parametrize("taken", ["slices", "begin", "step", "x.slices.reshape"])
def test_outputs_may_have_the_names_of_what_slices_add(taken: str) -> None:
    made = compiled(model(f'"{taken}" = Conv<pads=[1,1,1,1]>(x, w)', "", f'"{taken}"'))
    assert steps_of(made) and [port.name for port in made.outputs] == [taken]
    reference = onnx.reference.ReferenceEvaluator(onnx.load_from_string(model()))
    np.testing.assert_allclose(
        made.run(feeds(12))[0], reference.run(["a"], feeds(12))[0], rtol=1e-4, atol=1e-5
    )


@pytest.mark.usefixtures("small_caches")
def test_a_job_has_the_loop_and_so_has_a_library(tmp_path: Path) -> None:
    planned = plan_model(ModelRequest(model(), dims={"n": 12}))
    assert [count for _, count in planned.workloads][:2] != [1, 1]
    made = build_program(planned.plan, None, Mode(planned.target))
    library = Loaded(made, tmp_path)
    (expected,) = compiled(model()).run(feeds(12))
    _, memory = library.init(library.memory())
    (found,) = outputs = library.outputs()
    status, _ = library.run(memory, feeds(12), outputs)
    assert status == 0 and any(isinstance(each, Loop) for each in made.program.walk())
    np.testing.assert_array_equal(found, expected)


def test_slices_are_equal_and_near_to_what_fits() -> None:
    def each(batch: int, least: int, fitting: int) -> int | None:
        return slice_of(batch, Slices("n", 1, fitting, least))

    assert [each(16, 1, 2), each(15, 1, 2), each(32, 2, 5), each(9, 2, 4)] == [2, 1, 4, 3]
    assert each(21, 2, 2) == 3, "a little larger"
    assert each(13, 2, 4) is each(8, 1, 8) is None
