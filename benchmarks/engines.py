"""The inference engines of a race, one per process: `python -m benchmarks.engines NAME`.

The child reads one JSON object per line from standard input, and answers each with one line:

    {"do": "load", "model": NAME, "threads": N, "outputs": PATH, "schedules": FOLDER}
                                                -> {"version", "load_seconds"}
    {"do": "turn", "seconds": S, "least": K}    -> {"cpu": [...], "wall": [...]}

`load` writes the outputs to the file PATH. A `turn` makes one warm-up run, then as many timed runs
as fit into S seconds, but at least K. The answer after an error is {"error": TEXT}; the child then
continues.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import models, peers
from benchmarks.answering import serve_parent
from benchmarks.llama_peer import load_llama_cpp
from benchmarks.peers import Arrays, Run
from tilewright.compiler.mode import Mode


@dataclass(frozen=True, slots=True)
class Engine:
    """An inference engine.

    `load(model, feeds, threads, schedules)` returns a function that runs the model once. `package`
    is the distribution whose version is reported, and `modules` must be importable. `largest_error`
    is the accepted error of an engine that computes in a narrower type; an engine that sets it
    races only if it is named explicitly.
    """

    name: str
    load: Callable[[Any, Arrays, int, str], Run]
    package: str
    modules: tuple[str, ...]
    largest_error: float = 0.0

    def is_installed(self) -> bool:
        """Whether all modules that the engine needs are importable."""
        return all(find_spec(module) is not None for module in self.modules)


def load_onnxruntime(model: Any, feeds: Arrays, threads: int, schedules: str) -> Run:
    """Load a model in ONNX Runtime's CPU provider.

    Inputs and outputs are bound once, so that no copy is timed.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    outputs = [output.name for output in session.get_outputs()]
    # the first run says how large the outputs are; after it they are written in place
    values = [np.ascontiguousarray(value) for value in session.run(outputs, dict(feeds))]
    for name, value in zip(outputs, values, strict=True):
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))

    def run() -> list[NDArray[Any]]:
        session.run_with_iobinding(binding)
        return values

    return run


def load_openvino(
    model: Any,
    feeds: Arrays,
    threads: int,
    schedules: str,
    precision: str = "f32",
    instructions: str = "",
) -> Run:
    """Load a model in OpenVINO with a fixed precision, float32 by default.

    On CPUs that support bfloat16, OpenVINO would use that by default, with errors of several per
    cent. `instructions` limits the instruction set of oneDNN, which computes convolutions and
    matrix products; an example is "AVX2". A few of OpenVINO's own kernels (means, the last product
    of some models) ignore the limit.
    """
    if instructions:
        os.environ["ONEDNN_MAX_CPU_ISA"] = instructions  # read once, by the first kernel
    import openvino

    core = openvino.Core()
    read = core.read_model(model=model.SerializeToString())
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
    }
    request = core.compile_model(read, "CPU", settings).create_infer_request()
    for name, array in feeds.items():
        request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
    request.infer()
    values = [np.array(tensor.data) for tensor in request.output_tensors]

    def run() -> list[NDArray[Any]]:
        request.infer()
        return values

    return run


def load_untuned(
    model: Any, feeds: Arrays, threads: int, schedules: str, precision: str = "float32"
) -> Run:
    """Compile a model in Tilewright with every workload's default schedule.

    If `schedules` is the folder of an artifact, the model is compiled for the artifact's target,
    otherwise for this host.
    """
    import tilewright
    from tilewright.compiler.targets.host import host_target

    target = "host"
    if (manifest := Path(schedules) / "manifest.json").exists():
        named = json.loads(manifest.read_text())["target"]["name"]
        # a host that LLVM names otherwise than any target (emeraldrapids) is a target all the same
        target = "host" if named == host_target().name else named
    executable = tilewright.compile_model(model, target, threads=threads, precision=precision)
    return lambda: executable.run(feeds)


def load_tuned(
    model: Any, feeds: Arrays, threads: int, schedules: str, precision: str = "float32"
) -> Run:
    """Load a tuned model in Tilewright.

    `schedules` is the folder of an artifact or the service's data folder.
    """
    from tilewright.compiler.runtime.artifact import load_artifact

    if (Path(schedules) / "manifest.json").exists():
        executable: Any = load_artifact(Path(schedules), threads=threads)
    else:
        from tilewright.service.jobs.knowledge.known_model import KnownModel
        from tilewright.service.settings import Settings
        from tilewright.service.storage import open_storage

        storage = open_storage(Settings(data_folder=Path(schedules)))
        data = model.SerializeToString()
        executable = KnownModel(data, storage, Mode(threads=threads, precision=precision)).compile()
        storage.close()
    return lambda: executable.run(feeds)


FLOAT32_ERROR = 1e-3
"""Accepted error of float32 engines. An engine that sets it explicitly races only if it is
named."""

BF16_ERROR = 5e-2
"""Accepted error of bfloat16 engines, as in `compiler.runtime.verify`."""

ENGINES = {
    engine.name: engine
    for engine in (
        Engine("onnxruntime", load_onnxruntime, "onnxruntime", ("onnxruntime",)),
        Engine("openvino", load_openvino, "openvino", ("openvino",)),
        *(
            Engine(
                f"openvino-{text.lower()}",
                partial(load_openvino, instructions=text),
                "openvino",
                ("openvino",),
                FLOAT32_ERROR,
            )
            for text in ("AVX2", "SSE41")
        ),
        Engine("ncnn", peers.load_ncnn, "ncnn", ("ncnn", "pnnx")),
        Engine("torch", peers.load_torch, "torch", ("torch",)),
        Engine("inductor", peers.load_inductor, "torch", ("torch",)),
        Engine("iree", peers.load_iree, "iree-base-compiler", ("iree",)),
        Engine("tvm", peers.load_tvm, "apache-tvm", ("tvm",)),
        Engine(
            "llama.cpp",
            load_llama_cpp,
            "llama-cpp-python",
            ("llama_cpp", "gguf"),
            models.INT8_ERROR,
        ),
        Engine("untuned", load_untuned, "tilewright", ("compiler",)),
        Engine("tuned", load_tuned, "tilewright", ("compiler",)),
        *(
            Engine(f"{name}-bf16", partial(load, precision=text), package, (module,), BF16_ERROR)
            for name, load, text, package, module in (
                ("openvino", load_openvino, "bf16", "openvino", "openvino"),
                ("untuned", load_untuned, "bfloat16", "tilewright", "compiler"),
                ("tuned", load_tuned, "bfloat16", "tilewright", "compiler"),
            )
        ),
    )
}
"""All engines by name, in the order of the tables."""


class Served:
    """Runs one inference engine in a child process, and answers the parent's requests.

    The request `load` loads a model and writes its outputs to a file. The request `turn` makes a
    series of timed runs.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._run: Run | None = None

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        match request["do"]:
            case "load":
                self._run, answer = _load(self._engine, request)
                return answer
            case "turn":
                assert self._run is not None
                return turn(self._run, request["seconds"], request["least"])
            case other:
                raise ValueError(f"unknown request {other!r}")


def _load(engine: Engine, request: Mapping[str, Any]) -> tuple[Run, dict[str, Any]]:
    from importlib.metadata import version

    model = models.build(request["model"])
    feeds = models.feeds(request["model"], model)
    started = time.perf_counter()
    run = engine.load(model, feeds, request["threads"], request["schedules"])
    seconds = time.perf_counter() - started
    outputs = run()
    np.savez(request["outputs"], *outputs)
    return run, {"version": version(engine.package), "load_seconds": seconds}


def turn(run: Run, seconds: float, least: int) -> dict[str, list[float]]:
    """Make one warm-up run, then time runs for about `seconds`, but at least `least` samples.

    If a run takes longer than `seconds`, it is timed once. Short runs are timed in groups, and the
    mean of a group is a sample, so that a turn has about 100 samples and none is below 0.2 ms. The
    result has the seconds per run on two clocks: "cpu", the process's CPU time (appropriate for one
    thread, unaffected by other processes), and "wall".
    """
    run()
    started = time.perf_counter()
    run()
    once = time.perf_counter() - started
    if once > seconds > 0:
        least = 1
    group = max(1, int(max(2e-4, seconds / 100) / max(once, 1e-7)))
    cpu: list[float] = []
    wall: list[float] = []
    end = time.perf_counter() + seconds
    while len(wall) < least or time.perf_counter() < end:
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        for _ in range(group):
            run()
        wall.append((time.perf_counter() - wall_start) / group)
        cpu.append((time.process_time() - cpu_start) / group)
    return {"cpu": cpu, "wall": wall}


if __name__ == "__main__":
    serve_parent(Served(ENGINES[sys.argv[1]]).answer)
