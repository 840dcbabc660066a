"""Random numbers without a seed: they differ from run to run, have their distributions, and equal
the references' while the keys are pinned.

Distributions are tested with pinned keys, so that each test always passes or always fails.
"""

from __future__ import annotations

from collections import Counter
from math import erf, sqrt
from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright
from tilewright.compiler.driver import load_graph
from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.ops.random_bits import RandomTensor
from tilewright.compiler.ops.random_numbers import _largest_below
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.native import pinned_random_keys

COUNT = 40_000
SIGMAS = 4.0
"""Of a statistic's deviation."""


def model(body: str, inputs: str, outputs: str) -> Any:
    text = f'<ir_version: 8, opset_import: ["" : 17]> drawn ({inputs}) => ({outputs}) {{ {body} }}'
    return onnx.parser.parse_model(text)


def pinned(proto: Any, feeds: dict[str, Any] | None = None) -> list[np.ndarray]:
    """The numbers of a program, after comparing them with the reference's."""
    with pinned_random_keys():
        found = tilewright.compile_model(proto).run(feeds or {})
    for mine, theirs in zip(found, run_graph(load_graph(proto), feeds or {}), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-6, atol=2e-6)
    return [np.asarray(array) for array in found]


def assert_distributed(values: np.ndarray, cumulated: np.ndarray) -> None:
    """Kolmogorov and Smirnov: the distance of shares from the expected ones, at each value."""
    shares = (np.arange(values.size) + 0.5) / values.size
    assert np.abs(cumulated - shares).max() < SIGMAS / 2 / np.sqrt(values.size)


@pytest.mark.parametrize(("number", "kind"), [(1, np.float32), (11, np.float64)])
def test_numbers_have_their_distribution(number: int, kind: Any) -> None:
    body = f"""
        n = RandomNormal <shape = [{COUNT}], mean = 3.0, scale = 2.0, dtype = {number}> ()
        u = RandomUniform <shape = [{COUNT}], low = -1.0, high = 3.0, dtype = {number}> ()
    """
    name = {1: "float", 11: "double"}[number]
    normal, uniform = pinned(model(body, "", f"{name}[{COUNT}] n, {name}[{COUNT}] u"))
    assert normal.dtype == uniform.dtype == kind
    ordered = np.sort((normal - 3.0) / 2.0)
    below = np.array([0.5 + 0.5 * erf(value / sqrt(2)) for value in ordered])
    assert_distributed(ordered, below)
    assert_distributed(np.sort(uniform), (np.sort(uniform) + 1.0) / 4.0)
    assert uniform.min() >= -1 and uniform.max() < 3
    for values in (normal, uniform):  # neighbours, and both tensors, have nothing in common
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < SIGMAS / np.sqrt(COUNT)
    assert abs(np.corrcoef(normal, uniform)[0, 1]) < SIGMAS / np.sqrt(COUNT)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_halves_are_rounded_float32(kind: str) -> None:
    wide = "y = RandomNormalLike (x) z = Cast <to = 1> (y)"
    (found,) = pinned(model(wide, f"{kind}[400] x", "float[400] z"), {"x": zeros(kind, 400)})
    assert 0.8 < found.std() < 1.2 and len(np.unique(found)) > 200


def zeros(kind: str, *shape: int) -> Any:
    return np.zeros(shape, np.float16 if kind == "float16" else np.uint16)


def test_chances_and_choices() -> None:
    body = f"""
        b = Bernoulli <dtype = 7> (p)
        s = Multinomial <sample_size = {COUNT}, dtype = 7> (q)
    """
    proto = model(
        body, f"float[{COUNT}] p, float[2, 3] q", f"int64[{COUNT}] b, int64[2, {COUNT}] s"
    )
    shares = np.array([[0.5, 0.3, 0.2], [0.0, 0.9, 0.1]])
    with np.errstate(divide="ignore"):
        logits = np.log(shares).astype(np.float32) + 1
    ones, chosen = pinned(proto, {"p": np.full(COUNT, 0.3, np.float32), "q": logits})
    assert set(ones) == {0, 1} and ones.mean() == pytest.approx(0.3, abs=SIGMAS / np.sqrt(COUNT))
    for row, wanted in zip(chosen, shares, strict=True):
        counts = Counter(row.tolist())
        found = [counts[choice] / COUNT for choice in range(3)]
        np.testing.assert_allclose(found, wanted, atol=SIGMAS / 2 / np.sqrt(COUNT))
        assert sum(counts[choice] for choice in range(3)) == COUNT


@pytest.mark.parametrize("seed", ["", ", seed = 3.0"])
@pytest.mark.parametrize(("number", "name"), [(10, "float16"), (16, "bfloat16"), (1, "float")])
def test_numbers_stay_below_the_end_of_their_interval(seed: str, number: int, name: str) -> None:
    """40,000 numbers, of which 10 to 300 are nearer to the end than to a smaller number of 16 bits.
    From 16777215 to 16777216 one of two numbers in float32 is the end."""
    low, high = (1.0, 2.0) if name != "float" else (2.0**24 - 1, 2.0**24)
    interval = f"low = {low}, high = {high}"
    body = f"u = RandomUniform <shape = [{COUNT}], {interval}, dtype = {number}{seed}> ()"
    (found,) = pinned(model(f"{body} y = Cast <to = 11> (u)", "", f"double[{COUNT}] y"))
    assert low <= found.min() and found.max() < high


def test_the_largest_number_below_another() -> None:
    for dtype, kind in ((DType.FLOAT16, np.float16), (DType.FLOAT64, np.float64)):
        for end in (1.0, -1.0, 0.0, -0.0, 70000.0, 0.1):
            found = float(_largest_below(end, dtype))
            with np.errstate(over="ignore"):
                assert found < end <= float(np.nextafter(kind(found), kind(np.inf))), (dtype, end)
    assert _largest_below(2.0, DType.BFLOAT16) == 0x3FFF


def test_no_impossible_class_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum of 3000 equal shares in float32 ends below the largest possible random number."""

    def largest(drawn: RandomTensor, dtype: DType) -> str:
        node = drawn._node
        return node.emit("expand", [node.scalar(1 - 2.0**-24, dtype)], shape=(1, 1, 1))

    monkeypatch.setattr(RandomTensor, "uniform", largest)
    logits = np.zeros((1, 3001), np.float32)
    logits[0, -1] = -np.inf
    proto = model("c = Multinomial (x)", "float[1, 3001] x", "int32[1, 1] c")
    assert run_graph(load_graph(proto), {"x": logits})[0].item() == 2999


def test_those_of_a_seed_are_the_same_in_each_run() -> None:
    body = """
        b = Bernoulli <seed = 3.0> (p)
        s = Multinomial <sample_size = 50, seed = 3.0> (p)
    """
    executable = tilewright.compile_model(
        model(body, "float[2, 9] p", "float[2, 9] b, int32[2, 50] s")
    )
    feeds = {"p": np.full((2, 9), 0.5, np.float32)}
    for first, second in zip(executable.run(feeds), executable.run(feeds), strict=True):
        np.testing.assert_array_equal(first, second)
        assert len(np.unique(first)) > 1


def test_each_run_and_each_node_draws_others() -> None:
    body = "a = RandomNormalLike (x) b = RandomNormalLike (x)"
    executable = tilewright.compile_model(model(body, "float[64] x", "float[64] a, float[64] b"))
    feeds = {"x": np.zeros(64, np.float32)}
    drawn = np.concatenate([np.concatenate(executable.run(feeds)) for _ in range(3)])
    assert len(np.unique(drawn)) > 380, "equal ones are chance"


def test_threads_draw_what_one_thread_draws() -> None:
    proto = model("y = RandomNormalLike (x)", "float[90, 1000] x", "float[90, 1000] y")
    feeds = {"x": np.zeros((90, 1000), np.float32)}
    with pinned_random_keys():
        (one,), (two,) = (tilewright.compile_model(proto, threads=n).run(feeds) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_keys_stay_pinned_until_the_last_of_overlapping_uses_ends() -> None:
    proto = model("y = RandomNormalLike (x)", "float[64] x", "float[64] y")
    executable, feeds = tilewright.compile_model(proto), {"x": np.zeros(64, np.float32)}
    first, second = pinned_random_keys(), pinned_random_keys()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    one, two = executable.run(feeds)[0], executable.run(feeds)[0]
    second.__exit__(None, None, None)
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(executable.run(feeds)[0], executable.run(feeds)[0])


def test_one_program_draws_for_any_size() -> None:
    proto = model("y = RandomUniformLike (x)", "float[n, 5] x", "float[n, 5] y")
    executable = tilewright.compile_model(proto)
    assert isinstance(executable, GuardedModel) and executable.ranged is not None
    with pinned_random_keys():
        few, many = (executable.run({"x": np.zeros((n, 5), np.float32)})[0] for n in (3, 70))
    np.testing.assert_array_equal(few, many[:3])
    assert executable.made == () and len(np.unique(many)) > 340


def test_steps_of_a_loop_draw_others() -> None:
    body = """
        rows = Loop (trips, go) <body = step (int64 i, bool c) => (bool on, float[8] row)
            { on = Identity (c) row = RandomUniformLike (x) }>
    """
    proto = model(body, "float[8] x, int64 trips, bool go", "float[m, 8] rows")
    feeds = {"x": np.zeros(8, np.float32), "trips": np.array(9), "go": np.array(True)}
    trips = onnx.numpy_helper.from_array(np.array(9), "trips")
    proto.graph.initializer.append(trips)
    del proto.graph.input[1]
    del feeds["trips"]
    executable = tilewright.compile_model(proto)
    assert isinstance(executable, Executable)
    (rows,) = executable.run(feeds)
    assert rows.shape == (9, 8) and len(np.unique(rows)) > 68
