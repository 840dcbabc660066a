"""Modules of WebAssembly: their results in Node, against an executable of the same model."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.unit.c_library.conftest import MODELS, drawing, for_wasm
from tests.unit.codegen.test_dot import all_pairs
from tilewright.compiler import driver
from tilewright.compiler.api import compile_model
from tilewright.compiler.bindings.c_library import ToolchainError, write_wasm_module
from tilewright.compiler.bindings.c_library.header import Interface
from tilewright.compiler.bindings.c_library.wasm import declarations
from tilewright.compiler.dtypes import DType
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.plan import KernelStep
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.program.builder import CompiledProgram
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target

VIT = MODELS / "vit.onnx"
NODE = shutil.which("node")
node = pytest.mark.skipif(
    NODE is None or importlib.util.find_spec("ziglang") is None,
    reason="modules are linked by zig and run in Node",
)

RUN = """\
import {readFileSync, writeFileSync} from "node:fs";
import {load, inputs} from "./made/vit.mjs";
const calls = JSON.parse(readFileSync("calls.json", "utf-8"));
const model = await load(process.argv[2] === "bytes" ? readFileSync("made/vit.wasm") : undefined);
for (const [number, {given, sizes}] of calls.entries()) {
  try {
    const entries = Object.entries(given).map(([name, list]) => [name, new Float32Array(list)]);
    const arrays = Object.fromEntries(entries);
    const results = Object.values(model.run(arrays, sizes)).map((each) => Array.from(each, Number));
    console.log(JSON.stringify({results}));
  } catch (error) {
    console.log(JSON.stringify({error: error.message}));
  }
}
"""


Call = tuple[dict[str, np.ndarray], dict[str, int]]


@pytest.fixture
def answers(tmp_path: Path) -> Callable[..., list[dict[str, object]]]:
    def answers(
        made: CompiledProgram, calls: list[Call], source: str = ""
    ) -> list[dict[str, object]]:
        write_wasm_module(made, tmp_path / "made", "vit", "a model")
        listed = [
            {"given": {k: v.reshape(-1).tolist() for k, v in given.items()}, "sizes": sizes}
            for given, sizes in calls
        ]
        tmp_path.joinpath("calls.json").write_text(json.dumps(listed))
        tmp_path.joinpath("run.mjs").write_text(RUN)
        done = subprocess.run(
            [str(NODE), "run.mjs", source],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return answers


def pixels(batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    return {"pixels": rng.normal(size=(batch, 3, 32, 32)).astype(np.float32)}


@node
@pytest.mark.parametrize("source", ["file", "bytes"])
def test_all_sizes_of_a_range(source: str, answers: Callable[..., list[dict[str, object]]]) -> None:
    batches = (2, 1, 4, 4, 3)
    found = answers(
        for_wasm(VIT, batch="1..4"), [(pixels(b), {"batch": b}) for b in batches], source
    )
    for batch, answer in zip(batches, found, strict=True):
        (wanted,) = compile_model(VIT, dims={"batch": batch}).run(pixels(batch))
        # sums of at most 96 products in another order: 96 x 2^-24 of magnitudes below 10
        np.testing.assert_allclose(answer["results"][0], wanted.reshape(-1), atol=6e-5)


@node
def test_what_does_not_fit_is_refused(answers: Callable[..., list[dict[str, object]]]) -> None:
    found = answers(
        for_wasm(VIT, batch="1..4"),
        [
            (pixels(2), {"batch": 3}),
            (pixels(2), {"batch": 5}),
            (pixels(2), {}),
            ({}, {"batch": 2}),
            (pixels(2), {"batch": 2}),
        ],
    )
    assert [each.get("error") for each in found] == [
        "input 'pixels' takes a Float32Array of 9216 (3, 3, 32, 32), got Float32Array of 6144",
        "dimension 'batch' is 5, expected 1 to 4",
        "dimension 'batch' is undefined, expected 1 to 4",
        "input 'pixels' takes a Float32Array of 6144 (2, 3, 32, 32), got undefined",
        None,
    ]


@node
def test_counted_outputs(answers: Callable[..., list[dict[str, object]]]) -> None:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["found"]), helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 5))],
        [
            helper.make_tensor_value_info("found", TensorProto.INT64, (2, "n")),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 5)),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    x = np.array([[0, 1, 0, 2, 0], [3, 0, 0, 0, 4]], np.float32)
    (answer,) = answers(for_wasm(model), [({"x": x}, {})])
    assert answer["results"] == [
        np.array(np.nonzero(x)).reshape(-1).tolist(),
        (-x).reshape(-1).tolist(),
    ]


@node
def test_random_numbers_differ_from_run_to_run_and_from_page_to_page(
    answers: Callable[..., list[dict[str, object]]],
) -> None:
    made = for_wasm(drawing())
    x = np.zeros((1, 9), np.float32)
    found = [answers(made, [({"x": x}, {})] * 2) for _ in range(2)]
    drawn = np.array([each["results"][0] for page in found for each in page])
    assert drawn.shape == (4, 9) and len(np.unique(drawn)) == 36
    assert drawn.min() >= 0 and drawn.max() < 1


@node
def test_what_is_read_backwards_begins_behind_address_0(
    answers: Callable[..., list[dict[str, object]]],
) -> None:
    """Of a large array, its address less the bytes to the last element is negative."""
    size = 400_000
    bounds = [numpy_helper.from_array(np.array([v]), n) for n, v in (("a", -1), ("b", -size - 1))]
    bounds += [numpy_helper.from_array(np.array([v]), n) for n, v in (("axis", 0), ("step", -1))]
    graph = helper.make_graph(
        [
            helper.make_node("Slice", ["x", "a", "b", "axis", "step"], ["turned"]),
            helper.make_node("Neg", ["turned"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (size,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (size,))],
        bounds,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    x = np.arange(size, dtype=np.float32) % 7
    (answer,) = answers(for_wasm(model), [({"x": x}, {})])
    assert answer["results"] == [(-x[::-1]).tolist()]


def test_offsets_are_part_of_loads_and_stores() -> None:
    """In a register tile, no address is computed by an addition of its own but for the counters."""
    weights = numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (30, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (30, 64))],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    target = resolve_target("wasm32")
    plan = driver.make_plan(driver.optimise(driver.load_graph(model), Mode(target)), Mode(target))
    (step,) = (step for step in plan.steps if isinstance(step, KernelStep))
    schedule = Schedule.of("gemm", order="lanes-outer", prefetch=0, tile=5, unroll=1, vectors=2)
    assembly = lower_workload(step.workload, schedule, Mode(target)).assembly(target)
    loads = re.findall(r"v128\.load(?:32_splat)?\s+(\d+)", assembly)
    assert sorted(map(int, loads)) == [0, 0, 16, *(256 * row for row in range(1, 5))]


def test_types_name_what_a_model_takes_and_gives() -> None:
    text = declarations(Interface.of(for_wasm(VIT, batch="1..4").program, "vit"))
    assert '  "pixels": Float32Array;' in text
    assert '  "batch": number;' in text
    assert "run(inputs: Inputs, sizes: Sizes): Outputs" in text


def test_without_zig_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = for_wasm(VIT, batch=1)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="install the package 'ziglang'"):
        write_wasm_module(made, tmp_path / "made", "vit", "vit")
    assert not list(tmp_path.iterdir())


PAIRS = """\
import {readFileSync} from "node:fs";
import {load} from "./made/pairs.mjs";
const bytes = readFileSync("x.bin");
const unsigned = new Uint8Array(bytes), signed = new Int8Array(unsigned.buffer);
const results = (await load()).run({unsigned, signed});
console.log(JSON.stringify(Object.values(results).map((each) => Array.from(each))));
"""


def relaxed() -> list[str]:
    """The option that turns relaxed SIMD on, where Node has it off."""
    option = "--experimental-wasm-relaxed-simd"
    listed = subprocess.run([str(NODE), "--v8-options"], capture_output=True, text=True, check=True)
    return [option] if option in listed.stdout else []


@node
@pytest.mark.parametrize(("name", "instruction"), [("wasm32", 0xBA), ("wasm32-relaxed", 0x113)])
def test_every_pair_of_bytes(name: str, instruction: int, tmp_path: Path) -> None:
    """By i32x4.dot_i16x8_s, and by i32x4.relaxed_dot_i8x16_i7x16_add_s, at every place."""
    x, w = all_pairs((DType.UINT8, DType.INT8))
    kinds = {"unsigned": TensorProto.UINT8, "signed": TensorProto.INT8}
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", [kind, "w"], [f"{kind}_y"]) for kind in kinds],
        "pairs",
        [helper.make_tensor_value_info(kind, number, x.shape) for kind, number in kinds.items()],
        [helper.make_tensor_value_info(f"{kind}_y", TensorProto.INT32, None) for kind in kinds],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    write_wasm_module(for_wasm(model, target=name), tmp_path / "made", "pairs", "a model")
    code = (tmp_path / "made" / "pairs.wasm").read_bytes()
    assert bytes([0xFD, instruction & 0x7F | 0x80, instruction >> 7]) in code
    (tmp_path / "x.bin").write_bytes(x.tobytes())
    (tmp_path / "run.mjs").write_text(PAIRS)
    done = subprocess.run(
        [str(NODE), *relaxed(), "run.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    for found, each in zip(json.loads(done.stdout), (x, x.view(np.int8)), strict=True):
        np.testing.assert_array_equal(found, (each.astype(np.int64) @ w.astype(np.int64)).ravel())
