"""Benchmark WebAssembly modules in Node or in a browser: `python -m benchmarks.web --models
mobilenetv2 squeezenet`.

Models compiled to WebAssembly race against onnxruntime-web on one thread, in one Node process per
model or, with `--browser chromium`, in one page per model. Engines run in rotating order within
each round. `--packages` is a folder with onnxruntime-web in its node_modules (`npm install
onnxruntime-web`), and `--node` a Node that supports relaxed SIMD (24 does without an option). With
`--tensorflow`, image models also run in TensorFlow.js with its XNNPACK back end (`npm install
@tensorflow/tfjs-core @tensorflow/tfjs-backend-wasm`), by calls that `web_tensorflow.py` generates
from the ONNX model. With `--tuned`, modules compiled with tuning records are raced too; a worker in
Node can make such records (docs/browser.md). Results go to benchmarks/results/ as JSON and
Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.models import build, feeds
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, geometric_mean, markdown_table, rows_json, write_data
from benchmarks.web_browser import race_in_page
from benchmarks.web_tensorflow import NoCallError, write_calls
from tilewright.compiler import driver
from tilewright.compiler.bindings.c_library import write_wasm_module
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.builder import build_program
from tilewright.compiler.runtime import verify
from tilewright.compiler.targets.host import resolve_target

PEER = "onnxruntime-web"
TENSORFLOW = "TensorFlow.js"
TARGETS = ("wasm32", "wasm32-relaxed")
MODELS = ("mobilenetv2", "squeezenet", "efficientnet-b0", "minilm-l6-128", "resnet50")
TUNED = "-tuned"
SCRIPT = Path(__file__).with_name("web_node.mjs")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: race the models, and write the report after each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=TARGETS)
    parser.add_argument("--node", default="node", help="the command of Node")
    parser.add_argument("--browser", help="the command of Chromium: race in a page, not in Node")
    parser.add_argument("--packages", type=Path, default=Path.cwd(), help="where node_modules is")
    parser.add_argument("--tensorflow", action="store_true", help="race TensorFlow.js, too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    parser.add_argument(
        "--tuned", type=Path, help="data folder of a service: race what its records make, too"
    )
    parser.add_argument("--name", default="web", help="of the result files")
    options = parser.parse_args(arguments)
    origin, rows = Origin.of(options), []
    for model in options.models:
        rows += race(model, options)
        write(origin, rows, options.name)
        print(markdown_table(*_table([row for row in rows if row["model"] == model]), text=2))


def race(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Race all engines on one model.

    Returns a row per engine: times in ms, and ratio and error relative to onnxruntime-web.
    """
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        proto = build(model)
        onnx.save(proto, folder / "model.onnx")
        given = feeds(model, proto)
        modules = {name: _module(folder, name) for name in options.targets}
        if options.tuned is not None:
            modules |= {
                f"{name}{TUNED}": _tuned_module(folder, name, options.tuned)
                for name in options.targets
            }
        asked = {
            "modules": modules,
            "inputs": {name: _input(folder, name, array) for name, array in given.items()},
            "tensorflow": options.tensorflow and _write_for_tensorflow(proto, given, folder),
            "rounds": options.rounds,
            "seconds": options.seconds,
        }
        folder.joinpath("asked.json").write_text(json.dumps(asked))
        if options.browser is not None:
            race_in_page(folder, options.packages, options.browser)
        else:
            _race_in_node(model, folder, options)
        found = json.loads(folder.joinpath("found.json").read_text())
        engines: Mapping[str, Any] = found["engines"]
        outputs = {name: _outputs(folder, each) for name, each in engines.items()}
    reference = [median(times) for times in engines[PEER]["rounds"]]
    return [
        {
            "model": model,
            "engine": name,
            "version": found["versions"].get(name, ""),
            "host": found["host"],
            "milliseconds": min(min(times) for times in each["rounds"]),
            "ratio": median(
                theirs / median(times)
                for theirs, times in zip(reference, each["rounds"], strict=True)
            ),
            "error": verify.compare(outputs[name], outputs[PEER]),
            "rounds": [[round(time, 4) for time in times] for times in each["rounds"]],
        }
        for name, each in engines.items()
    ]


def _write_for_tensorflow(
    proto: onnx.ModelProto, given: Mapping[str, NDArray[Any]], folder: Path
) -> bool:
    """Write the calls and weights for TensorFlow.js; false if the model cannot be translated."""
    try:
        write_calls(proto, next(iter(given.values())), folder)
    except NoCallError as error:
        print(f"not in TensorFlow.js: {error}")
        return False
    return True


def _race_in_node(model: str, folder: Path, options: argparse.Namespace) -> None:
    done = subprocess.run(
        [options.node, str(SCRIPT), str(folder)],
        cwd=options.packages,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{model}: {done.stderr.strip()}")


def _module(folder: Path, target_name: str) -> str:
    """Compile the untuned module for a target; returns its path relative to `folder`."""
    target = resolve_target(target_name)
    graph = driver.optimise(driver.load_graph(folder / "model.onnx"), Mode(target))
    compiled = build_program(driver.make_plan(graph, Mode(target)), None, Mode(target))
    write_wasm_module(compiled, folder / target_name, "raced", "model.onnx")
    return f"{target_name}/raced.mjs"


def _tuned_module(folder: Path, target_name: str, records: Path) -> str:
    """Compile `model.onnx` in `folder` to a WebAssembly module with stored tuning records.

    The command `tilewright compile` compiles the model, as for users. Returns the path of the
    module, relative to `folder`.

    Args:
        folder: the folder of the model and the module.
        target_name: the WebAssembly target.
        records: the data folder of the service that stores the tuning records.
    """
    made = folder / f"{target_name}{TUNED}"
    command = [
        sys.executable,
        "-m",
        "tilewright.service.cli",
        "compile",
        str(folder / "model.onnx"),
    ]
    command += ["--target", target_name, "--name", "raced", "-o", str(made)]
    subprocess.run(
        command,
        env={**os.environ, "TILEWRIGHT_DATA_FOLDER": str(records)},
        check=True,
        capture_output=True,
    )
    return f"{made.name}/raced.mjs"


def _input(folder: Path, name: str, array: NDArray[Any]) -> dict[str, Any]:
    path = folder / f"input-{len(list(folder.glob('input-*')))}.bin"
    array.tofile(path)
    return {"type": array.dtype.name, "dims": list(array.shape), "file": path.name}


def _outputs(folder: Path, engine: Mapping[str, Any]) -> NDArray[np.float32]:
    """The first output of an engine as a flat array."""
    return np.fromfile(folder / next(iter(engine["outputs"].values())), np.float32)


def write(origin: Origin, rows: list[dict[str, Any]], name: str) -> None:
    """Write the rows to `name`.json.gz and `name`.md in the results folder."""
    write_data(RESULTS_FOLDER / f"{name}.json.gz", rows_json(asdict(origin), rows))
    others = sorted({row["engine"] for row in rows} - {PEER})
    means = {
        engine: geometric_mean([row["ratio"] for row in rows if row["engine"] == engine])
        for engine in others
    }
    host = rows[0]["host"]
    peers = {row["engine"]: row["version"] for row in rows if row["version"]}
    versions = ", ".join([*(f"{name} {version}" for name, version in peers.items()), host])
    lines = [
        f"# Race in {host.split()[0]}, one thread, batch 1",
        "",
        f"{origin.sentence()} {versions}.",
        "",
        f"Untuned, but for what ends in '{TUNED}'. Wall time; engines in rotating order within "
        "each round, one process a model. "
        f"Ratios are to {PEER}: the median over the rounds of the ratio of the round's medians. "
        "The largest error is against it, over the largest output.",
        "",
        f"Geometric means: {', '.join(f'{name} {mean:.2f}' for name, mean in means.items())}."
        + _beside_tensorflow(rows),
        "",
        markdown_table(*_table(rows), text=2),
        "",
    ]
    RESULTS_FOLDER.joinpath(f"{name}.md").write_text("\n".join(lines))


def _beside_tensorflow(rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence with each engine's geometric-mean speed-up over TensorFlow.js.

    The text is empty if TensorFlow.js was not raced.
    """
    theirs = {row["model"]: row["ratio"] for row in rows if row["engine"] == TENSORFLOW}
    if not theirs:
        return ""
    said = []
    for engine in sorted({row["engine"] for row in rows} - {PEER, TENSORFLOW}):
        own = [row for row in rows if row["engine"] == engine and row["model"] in theirs]
        mean = geometric_mean([row["ratio"] / theirs[row["model"]] for row in own])
        said.append(f"{engine} {mean:.2f}")
    return f" Beside {TENSORFLOW}, over {len(theirs)} models: {', '.join(said)}."


def _table(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    header = ["model", "engine", "fastest ms", "times as fast", "largest error"]
    return header, [
        [
            row["model"],
            row["engine"],
            f"{row['milliseconds']:.2f}",
            f"{row['ratio']:.2f}",
            "" if row["engine"] == PEER else f"{row['error']:.1e}",
        ]
        for row in rows
    ]


if __name__ == "__main__":
    main()
