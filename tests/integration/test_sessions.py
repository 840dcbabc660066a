"""Decoders that generate in sessions: the results of runs, without a copy of a cache, against ONNX
Runtime; and from an artifact, without LLVM."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from benchmarks.decoders import CACHES, DECODERS, first_states, state_names
from tests.plan_reader import read_plan
from tests.states import only_changed
from tilewright.compiler import driver
from tilewright.compiler.api import compile_model
from tilewright.compiler.errors import InvalidInputError, InvalidModelError
from tilewright.compiler.frontend.dimensions import model_ports
from tilewright.compiler.mode import Mode
from tilewright.compiler.program import artifacts
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.runtime.context import RunContext
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.sizes.ranges import parse_range
from tilewright.compiler.targets.host import host_target

LENGTH, WORDS = 32, 100
SMALL: dict[str, dict[str, int]] = {
    "gpt2": {"layers": 2, "hidden": 64, "heads": 4},
    "llama": {"layers": 2, "hidden": 64, "heads": 4, "groups": 2, "intermediate": 96},
}
STEPS = (5, 1, 1, 1, 3, 1)
Arrays = dict[str, np.ndarray]


def decoder(name: str, cache: str = "fixed") -> Any:
    return DECODERS[name](length=LENGTH, vocabulary=WORDS, cache=cache, **SMALL[name])


def feeds(tokens: int, past: int, cache: str = "fixed") -> Arrays:
    ids = np.random.default_rng(past).integers(0, WORDS, (1, tokens))
    if cache == "growing":
        return {"input_ids": ids}
    return {"input_ids": ids, "past_length": np.array([past], np.int32)}


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", DECODERS)
def test_steps_are_those_of_onnx_runtime(name: str, cache: str) -> None:
    model = decoder(name, cache)
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    states, theirs, past = state_names(model), first_states(model), 0
    session = compile_model(model).bind(states, theirs)
    for tokens in STEPS:
        given = feeds(tokens, past, cache)
        (logits,) = session.run(given)
        outputs = [info.name for info in reference.get_outputs()]
        expected = dict(zip(outputs, reference.run(None, {**given, **theirs}), strict=True))
        theirs = {states[output]: expected[output] for output in states}
        past += tokens
        close(logits, expected["logits"])
        for state, array in theirs.items():
            close(session.state(state)[:, :, :past], array[:, :, :past])


@pytest.mark.parametrize("name", DECODERS)
def test_steps_are_those_of_runs(name: str) -> None:
    """Equal to the last bit, and the arrays given to a run stay as they are."""
    model = decoder(name)
    executable = compile_model(model)
    states, caches = state_names(model), first_states(model)
    session, past = executable.bind(states), 0
    for tokens in STEPS:
        given = feeds(tokens, past)
        kept = {key: array.copy() for key, array in caches.items()}
        outputs = executable.run({**given, **caches})
        for key, array in caches.items():
            np.testing.assert_array_equal(array, kept[key])
        made = dict(zip(executable.output_names, outputs, strict=True))
        caches = {states[output]: made[output] for output in states}
        np.testing.assert_array_equal(session.run(given)[0], made["logits"])
        for key, array in caches.items():
            np.testing.assert_array_equal(session.state(key), array)
        past += tokens


@pytest.mark.parametrize("name", DECODERS)
def test_one_program_serves_prompts_and_single_tokens(name: str) -> None:
    executable = compile_model(decoder(name))
    session, past = executable.bind(state_names(decoder(name))), 0
    for tokens in STEPS:
        session.run(feeds(tokens, past))
        past += tokens
    assert isinstance(executable, GuardedModel) and executable.made == ()


@pytest.mark.parametrize("name", DECODERS)
def test_no_step_copies_a_cache(name: str) -> None:
    model = DECODERS[name](length=4096, vocabulary=WORDS, **SMALL[name])
    executable = compile_model(model, dims={"tokens": 1})
    assert isinstance(executable, Executable)
    inputs = [port.name for port in executable.inputs]
    for output, state in state_names(model).items():
        port = executable.program.inputs[inputs.index(state)]
        number = executable.output_names.index(output)
        only_changed(executable.program, inputs.index(state), number, port.bytes)


@pytest.mark.parametrize("name", DECODERS)
def test_no_step_copies_a_cache_that_grows(name: str) -> None:
    """One program for all sizes, which at none of them moves old rows."""
    model = DECODERS[name](length=4096, vocabulary=WORDS, cache="growing", **SMALL[name])
    executable = compile_model(model, dims={"past": "0..4000", "tokens": "1..64"})
    assert isinstance(executable, GuardedModel) and executable.ranged is not None
    whole = executable.ranged.program
    (room,) = whole.rooms
    program = whole.at({"past": 4000, "tokens": 1, room.name: 95})
    inputs = [port.name for port in program.inputs]
    for output, state in state_names(model).items():
        port = program.inputs[inputs.index(state)]
        assert (port.shape[2], port.stored[2]) == (4000, 4096)
        number = executable.output_names.index(output)
        only_changed(program, inputs.index(state), number, port.bytes)


@pytest.mark.parametrize("name", DECODERS)
def test_a_cache_that_grows_stays_where_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read and written in one place, and moves when its room is full: 20 rows in 1, 2, 6, 14,
    30."""
    model = decoder(name, "growing")
    executable = compile_model(model, dims={"past": "0..20", "tokens": "1..3"})
    places: list[tuple[int, int]] = []
    original = Executable.run_into

    def run_into(self: Executable, arrays: Any, given: Any, rooms: tuple[int, ...]) -> Any:
        for number, output in given.items():
            held = arrays[self.in_place[number]]
            assert held.address == output.address == held.array.ctypes.data
        places.append((held.address, rooms[0] + output.shape[2]))
        return original(self, arrays, given, rooms)

    monkeypatch.setattr(Executable, "run_into", run_into)
    made: list[tuple[int, ...]] = []
    resize = RunContext.resize

    def counted(self: RunContext, values: tuple[int, ...]) -> None:
        made.append(values)
        resize(self, values)

    monkeypatch.setattr(RunContext, "resize", counted)
    session = executable.bind(state_names(model), first_states(model))
    for past in range(20):
        session.run(feeds(1, past, "growing"))
    # whether the program takes the inputs is asked without room; then the session knows how much
    # there is, but where the buffers move
    assert len(made) <= 2 * 20 + 4
    assert list(dict.fromkeys(capacity for _, capacity in places)) == [2, 6, 14, 30]
    assert len(set(places)) == 4
    session.reset()
    assert session.state("past_key_0").shape[2] == 0


def test_a_text_is_as_long_as_the_table_of_positions() -> None:
    """No range is given: `past + tokens` may be 32, and a longer text changes nothing."""
    model = DECODERS["gpt2"](length=LENGTH, vocabulary=WORDS, cache="growing", **SMALL["gpt2"])
    executable = compile_model(model)
    assert isinstance(executable, GuardedModel) and executable.ranged is not None
    ranges = {d.name: d.range_text for d in executable.ranged.dimensions}
    assert ranges == {"past": "0..31", "tokens": "1..32"}
    session = executable.bind(state_names(model), first_states(model))
    whole = executable.bind(state_names(model), first_states(model))
    ids = np.random.default_rng(0).integers(0, WORDS, (1, LENGTH))
    (expected,) = whole.run({"input_ids": ids})
    session.run({"input_ids": ids[:, :20]})
    with pytest.raises(InvalidInputError, match=r"past\+tokens is more than 32 elements"):
        session.run({"input_ids": ids[:, :13]})
    (found,) = session.run({"input_ids": ids[:, 20:]})
    close(found, expected)
    with pytest.raises(InvalidModelError, match="at past=32, tokens=1: Gather"):
        session.run({"input_ids": ids[:, :1]})
    for name in session.states:
        close(session.state(name), whole.state(name))
    assert executable.made == () and len(executable.ranged.rooms) == 1


def test_caches_of_which_one_is_no_state_are_copied() -> None:
    """All caches that share one room grow together, or none does."""
    model = decoder("gpt2", "growing")
    executable = compile_model(model, dims={"past": "0..20", "tokens": "1..5"})
    states, theirs = state_names(model), first_states(model)
    (output, free), *rest = states.items()
    kept = {name: array for name, array in theirs.items() if name != free}
    session = executable.bind(dict(rest), kept)
    alone, past = theirs[free], 0
    whole = executable.bind(states, theirs)
    for tokens in STEPS:
        given = feeds(tokens, past, "growing")
        (expected,) = whole.run(given)
        alone, logits = session.run({**given, free: alone})
        past += tokens
        np.testing.assert_array_equal(logits, expected)
        np.testing.assert_array_equal(alone, whole.state(free))
        for name in kept:
            np.testing.assert_array_equal(session.state(name), whole.state(name))
    assert output in executable.output_names


def test_sessions_of_one_model_generate_at_once() -> None:
    model = decoder("llama")
    executable = compile_model(model)
    states = state_names(model)

    def generated(first: int) -> list[int]:
        session, tokens, past = executable.bind(states), [first, first + 1, first + 2], 0
        ids = tokens
        while len(tokens) < 20:
            length = np.array([past], np.int32)
            (logits,) = session.run({"input_ids": np.array([ids]), "past_length": length})
            past += len(ids)
            ids = [int(logits[0].argmax())]
            tokens = [*tokens, *ids]
        return tokens

    expected = [generated(first) for first in range(4)]
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: generated(n)})) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(4)] == expected


ALONE = """
import sys
for name in ("onnx", "llvmlite", "tilewright.compiler.graph", "tilewright.compiler.ops"):
    sys.modules[name] = None
import numpy as np
import tilewright

artifact, steps, found = sys.argv[1:]
executable = tilewright.load_artifact(artifact)
states = {name: name.replace("present", "past") for name in executable.output_names[:-1]}
session = executable.bind(states)
with np.load(steps) as archive:
    count = len(archive.files) // 2
    logits = [
        session.run([archive[f"ids{n}"], archive[f"past{n}"]])[0] for n in range(count)
    ]
for sizes in executable.made:
    assert len(executable.executable(dict(sizes)).in_place) == len(states), sizes
np.savez(found, *logits)
"""


def test_caches_grow_in_place_along_any_dimension() -> None:
    """Keys lie transposed, so that their new rows are columns, and the batch is open, too."""
    nodes = [
        helper.make_node("Concat", ["past_k", "k"], ["all_k"], axis=3),
        helper.make_node("Concat", ["past_v", "v"], ["all_v"], axis=2),
        helper.make_node("MatMul", ["q", "all_k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "all_v"], ["y"]),
    ]
    info, float32 = helper.make_tensor_value_info, TensorProto.FLOAT
    rows, columns = ["batch", 4, "new", 8], ["batch", 4, 8, "new"]
    inputs = {"q": rows, "k": columns, "v": rows}
    inputs |= {"past_k": ["batch", 4, 8, "past"], "past_v": ["batch", 4, "past", 8]}
    outputs = {"all_k": ["batch", 4, 8, "all"], "all_v": ["batch", 4, "all", 8], "y": rows}
    graph = helper.make_graph(
        nodes,
        "step",
        [info(name, float32, shape) for name, shape in inputs.items()],
        [info(name, float32, shape) for name, shape in outputs.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    executable = compile_model(model, dims={"past": "0..100", "new": "1..20", "batch": "1..4"})
    assert isinstance(executable, GuardedModel) and executable.ranged is not None
    assert executable.ranged.rooms == ((0, 1),)
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    random = np.random.default_rng(0)
    for batch in (1, 3):
        states = {
            "past_k": np.zeros((batch, 4, 8, 0), np.float32),
            "past_v": np.zeros((batch, 4, 0, 8), np.float32),
        }
        session = executable.bind({"all_k": "past_k", "all_v": "past_v"}, states)
        for new in (3, 1, 1, 7, 1, 20, 1):
            q, v = random.standard_normal((2, batch, 4, new, 8)).astype(np.float32)
            given = {"q": q, "v": v, "k": random.standard_normal((batch, 4, 8, new))}
            given["k"] = given["k"].astype(np.float32)
            keys, values, expected = reference.run(None, {**given, **states})
            states = {"past_k": keys, "past_v": values}
            (found,) = session.run(given)
            close(found, expected)
            for name, array in states.items():
                np.testing.assert_array_equal(session.state(name), array)


def test_steps_may_add_no_rows() -> None:
    """Also before there are any."""
    rows = {name: ["batch", name, 4] for name in ("past", "new", "all")}
    info = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, rows[n]) for n in rows}
    concat = helper.make_node("Concat", ["past", "new"], ["all"], axis=1)
    graph = helper.make_graph([concat], "step", [info["past"], info["new"]], [info["all"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    executable = compile_model(model, dims={"past": "0..20", "new": "0..5", "batch": "1..3"})
    assert isinstance(executable, GuardedModel) and executable.ranged is not None
    assert executable.ranged.rooms == ((0,),)
    expected = np.zeros((2, 0, 4), np.float32)
    session = executable.bind({"all": "past"}, {"past": expected})
    for step, new in enumerate((0, 0, 2, 0, 1, 0)):
        given = np.full((2, new, 4), step, np.float32)
        assert session.run([given]) == []
        expected = np.concatenate([expected, given], axis=1)
        np.testing.assert_array_equal(session.state("past"), expected)


GROWING = """
import sys
for name in ("onnx", "llvmlite", "tilewright.compiler.graph", "tilewright.compiler.ops"):
    sys.modules[name] = None
import numpy as np
import tilewright

artifact, steps, found = sys.argv[1:]
executable = tilewright.load_artifact(artifact)
states = {name: name.replace("present", "past") for name in executable.output_names[:-1]}
empty = np.zeros((1, 4, 0, 16), np.float32)
session = executable.bind(states, dict.fromkeys(states.values(), empty))
with np.load(steps) as archive:
    np.savez(found, *(session.run([ids])[0] for ids in archive.values()))
assert executable.ranged.rooms == (tuple(range(len(states))),)
"""


def test_an_artifact_of_ranges_keeps_growing_caches_in_place(tmp_path: Path) -> None:
    model, target = decoder("gpt2", "growing"), host_target()
    dims = {"past": parse_range("past", "0..20"), "tokens": parse_range("tokens", "1..8")}
    plan = driver.make_plan(
        driver.optimise(driver.load_graph(model, dims), Mode(target)), Mode(target)
    )
    assert read_plan(plan.to_json(), plan.constants()).growing == plan.growing
    builder, ports = ProgramBuilder(None, Mode(target)), model_ports(model.graph)
    artifacts.save_artifact({(): plan}, builder, tmp_path / "artifact", ports)
    given = [feeds(5, 0, "growing"), *(feeds(1, past, "growing") for past in range(5, 14))]
    np.savez(tmp_path / "steps.npz", *(each["input_ids"] for each in given))
    files = [str(tmp_path / name) for name in ("artifact", "steps.npz", "found.npz")]
    subprocess.run([sys.executable, "-c", GROWING, *files], check=True)
    session = compile_model(model, dims=dims).bind(state_names(model), first_states(model))
    with np.load(tmp_path / "found.npz") as found:
        for each, logits in zip(given, found.values(), strict=True):
            np.testing.assert_array_equal(logits, session.run(each)[0])


def test_an_artifact_generates_without_the_compiler(tmp_path: Path) -> None:
    model, target = decoder("gpt2"), host_target()
    plans = {
        (("tokens", tokens),): driver.make_plan(
            driver.optimise(driver.load_graph(model, {"tokens": tokens}), Mode(target)),
            Mode(target),
        )
        for tokens in (5, 1)
    }
    builder, ports = ProgramBuilder(None, Mode(target)), model_ports(model.graph)
    artifacts.save_artifact(plans, builder, tmp_path / "artifact", ports)
    given = [feeds(5, 0), *(feeds(1, past) for past in range(5, 12))]
    arrays = {f"ids{n}": each["input_ids"] for n, each in enumerate(given)}
    arrays |= {f"past{n}": each["past_length"] for n, each in enumerate(given)}
    np.savez(tmp_path / "steps.npz", **arrays)
    files = [str(tmp_path / name) for name in ("artifact", "steps.npz", "found.npz")]
    subprocess.run([sys.executable, "-c", ALONE, *files], check=True)
    session = compile_model(model).bind(state_names(model))
    with np.load(tmp_path / "found.npz") as found:
        for each, logits in zip(given, found.values(), strict=True):
            close(logits, session.run(each)[0])


@pytest.mark.parametrize("operator", ["TensorScatter", "ScatterElements", "ScatterND"])
def test_caches_of_onnxs_own_operators_are_changed_in_place(operator: str) -> None:
    """As exporters write a cache with room: new rows to a position known at run time."""
    float32, int64 = TensorProto.FLOAT, TensorProto.INT64
    caches = {"TensorScatter": (1, 2, 8, 4), "ScatterElements": (1, 2, 8, 4), "ScatterND": (8, 4)}
    places = {"TensorScatter": (1,), "ScatterElements": (1, 2, 1, 4), "ScatterND": (1, 1)}
    cache, place = caches[operator], places[operator]
    new = (*cache[:-2], 1, 4)
    given = ["past", "new", "at"] if operator == "TensorScatter" else ["past", "at", "new"]
    axis = {} if operator == "ScatterND" else {"axis": 2}
    nodes = [
        helper.make_node(operator, given, ["present"], **axis),
        helper.make_node("ReduceSum", ["present"], ["total"], keepdims=0),
    ]
    inputs = (("past", float32, cache), ("new", float32, new), ("at", int64, place))
    outputs = (("present", float32, cache), ("total", float32, ()))
    graph = helper.make_graph(
        nodes,
        "cache",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    executable = compile_model(model)
    assert isinstance(executable, Executable) and executable.in_place == {0: 0}
    session = executable.bind({"present": "past"})
    expected = np.zeros(cache, np.float32)
    for row in (0, 1, 5, 1):
        value = np.full(new, row + 1, np.float32)
        (total,) = session.run({"new": value, "at": np.full(place, row)})
        expected[..., row, :] = row + 1
        np.testing.assert_array_equal(session.state("past"), expected)
        assert total == expected.sum()


def attended(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    scores = query @ keys.swapaxes(2, 3) / np.sqrt(query.shape[3])
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (powers @ values) / powers.sum(axis=-1, keepdims=True)


def test_attention_over_caches_that_tensor_scatter_fills() -> None:
    """Opset 24: the number of cache rows that are keys is an input of the run."""
    heads, length, size = 2, 16, 8
    nodes = [
        helper.make_node("TensorScatter", ["past_k", "k", "at"], ["present_k"], axis=2),
        helper.make_node("TensorScatter", ["past_v", "v", "at"], ["present_v"], axis=2),
        helper.make_node("Add", ["at", "one"], ["keys"]),
        helper.make_node("Attention", ["q", "present_k", "present_v", "", "", "", "keys"], ["y"]),
    ]
    rows, cache = (1, heads, 1, size), (1, heads, length, size)
    shapes = {"q": rows, "k": rows, "v": rows, "past_k": cache, "past_v": cache}
    info, float32, int64 = helper.make_tensor_value_info, TensorProto.FLOAT, TensorProto.INT64
    graph = helper.make_graph(
        nodes,
        "step",
        [*(info(name, float32, shape) for name, shape in shapes.items()), info("at", int64, (1,))],
        [
            *(info(name, float32, cache) for name in ("present_k", "present_v")),
            info("y", float32, rows),
        ],
        [helper.make_tensor("one", int64, (1,), [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    executable = compile_model(model)
    assert isinstance(executable, Executable) and executable.in_place == {0: 3, 1: 4}
    session = executable.bind({"present_k": "past_k", "present_v": "past_v"})
    random = np.random.default_rng(1)
    made = random.standard_normal((3, 1, heads, length, size)).astype(np.float32)
    for step in range(length):
        query, key, value = (array[:, :, step : step + 1] for array in made)
        given = {"q": query, "k": key, "v": value, "at": np.array([step])}
        (found,) = session.run(given)
        close(found, attended(query, *(array[:, :, : step + 1] for array in made[1:])))


def test_a_recurrent_state_has_two_buffers() -> None:
    """h' = tanh(h W + x), which reads all of h for each element."""
    weight = helper.make_node("MatMul", ["h", "w"], ["product"])
    nodes = [
        weight,
        helper.make_node("Add", ["product", "x"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["next"]),
    ]
    shape = (1, 8)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "cell",
        [info("h", TensorProto.FLOAT, shape), info("x", TensorProto.FLOAT, shape)],
        [info("next", TensorProto.FLOAT, shape)],
        [helper.make_tensor("w", TensorProto.FLOAT, (8, 8), np.eye(8)[::-1].ravel() * 0.5)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    session = compile_model(model).bind({"next": "h"}, {"h": np.ones(shape, np.float32)})
    assert session.output_names == ()
    expected, x = np.ones(shape, np.float32), np.arange(8, dtype=np.float32).reshape(shape) / 8
    for _ in range(5):
        assert session.run({"x": x}) == []
        expected = np.tanh(expected[:, ::-1] * 0.5 + x)
        close(session.state("h"), expected)
