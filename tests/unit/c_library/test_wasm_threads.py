"""Threads of modules of WebAssembly, in Node."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tilewright.compiler.bindings.c_library.library import INCLUDE
from tilewright.compiler.bindings.c_library.toolchain import wasm_toolchain
from tilewright.compiler.targets.host import resolve_target

HERE = Path(__file__).parent
THREAD = HERE.parents[2] / "compiler" / "bindings" / "c_library" / "module_thread.mjs"
NODE = shutil.which("node")
LIMIT_SECONDS = 240.0
"""A thread that sleeps through its work would be waited for without end."""

pytestmark = pytest.mark.skipif(
    NODE is None or importlib.util.find_spec("ziglang") is None,
    reason="modules are linked by zig and run in Node",
)

POOL = """\
import {readFileSync} from "node:fs";
import {Worker} from "node:worker_threads";
const memory = new WebAssembly.Memory({initial: 64, maximum: 64, shared: true});
const bytes = readFileSync("pool.wasm");
const {module, instance} = await WebAssembly.instantiate(bytes, {env: {memory}});
const {rounds, asleep, fallen} = instance.exports;
const worker = new Worker("./thread.mjs");
const names = {work: "tw_work", lost: "tw_lost"};
worker.postMessage({module, memory, ...names, stack: 48 * 65536, thread: 1});
worker.on("error", (error) => { throw error; });
worker.unref();
const wrong = [rounds(1, 2000)];
for (let round = 3000; round < 3005; round++) {
  while (!asleep()) await new Promise((resolve) => setTimeout(resolve));
  wrong.push(rounds(round, round + 1)); // it is woken
}
worker.removeAllListeners("error").on("error", () => {});
try { fallen(); } catch (error) { wrong.push(error.name); }
console.log(JSON.stringify(wrong));
"""

REFUSED = """\
import {Worker} from "node:worker_threads";
const worker = new Worker("./thread.mjs");
worker.on("message", (said) => console.log(JSON.stringify(Object.keys(said))));
worker.on("error", () => console.log("null")); // of which a page is not told
worker.postMessage({module: null});
"""
"""A promise that fails in a page's worker is not an error of the worker."""

MODEL = """\
import {writeFileSync} from "node:fs";
import {syncBuiltinESMExports} from "node:module";
import os from "node:os";
const FAILS = `
  import {parentPort} from "node:worker_threads";
  parentPort.once("message", () => parentPort.postMessage({error: "there is no memory"}));
`;
const {load} = await import("./made/vit.mjs");
const pixels = Float32Array.from({length: 4 * 3 * 32 * 32}, (_, i) => Math.sin(i));
const found = [];
async function run(options) {
  const model = await load(undefined, options);
  const results = [1, 2, 3].map(() => Object.values(model.run({pixels}, {batch: 4}))[0].join());
  found.push([model.threads, new Set(results).size, results[0]]);
  model.close();
  return model;
}
await run({threads: 1});
const closed = await run({threads: 2});
await run({threads: 5});
globalThis.crossOriginIsolated = false; // as in a page that is not isolated
await run({threads: 2});
delete globalThis.crossOriginIsolated;
Object.defineProperty(globalThis, "navigator", {value: undefined}); // as in Node 20
os.availableParallelism = () => 1;
syncBuiltinESMExports();
await run({});
const errors = [];
writeFileSync("made/vit-thread.mjs", FAILS);
for (const wrong of [
  () => closed.run({pixels}, {batch: 4}),
  () => load(undefined, {threads: 0}),
  () => load(undefined, {threads: 2}),
]) {
  try { await wrong(); } catch (error) { errors.push(error.message); }
}
const results = new Set(found.map((each) => each.pop()));
console.log(JSON.stringify([found, results.size, errors]));
"""


def said(folder: Path, script: str) -> object:
    """The JSON that a Node script prints."""
    folder.joinpath("run.mjs").write_text(script)
    command = [str(NODE), "run.mjs"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    found: object = json.loads(done.stdout)
    return found


def test_both_threads_take_part_and_every_tile_runs_once(tmp_path: Path) -> None:
    """A tile waits for the other thread, so that one thread alone would never finish."""
    tools = wasm_toolchain(resolve_target("wasm32"), threads=True)
    tools.compile(tmp_path, HERE / "threads.c", "pool.o", INCLUDE)
    shown = ["rounds", "asleep", "fallen", "tw_work", "tw_lost", "__stack_pointer"]
    tools.link_module(tmp_path, ["pool.o"], shown, "pool.wasm", shared_bytes=64 << 16)
    shutil.copy(THREAD, tmp_path / "thread.mjs")
    assert said(tmp_path, POOL) == [*[0] * 6, "RuntimeError"], "a lost thread ends the run"


def test_a_thread_that_cannot_begin_says_why(tmp_path: Path) -> None:
    shutil.copy(THREAD, tmp_path / "thread.mjs")
    assert said(tmp_path, REFUSED) == ["error"]


def test_a_model_says_the_same_on_one_thread_and_on_several(
    threaded_vit: Path, tmp_path: Path
) -> None:
    shutil.copytree(threaded_vit, tmp_path / "made")
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        "manifest.json",
        "vit-thread.mjs",
        "vit.d.mts",
        "vit.mjs",
        "vit.wasm",
    }
    assert said(tmp_path, MODEL) == [
        [[1, 1], [2, 1], [2, 1], [1, 1], [1, 1]],
        1,
        [
            "the model is closed",
            "threads is 0, expected 1 to 2",
            "a thread does not start: there is no memory",
        ],
    ]
