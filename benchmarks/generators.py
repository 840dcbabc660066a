"""Text-generation engines of `benchmarks.generation`, one per process: `python -m
benchmarks.generators NAME`.

The child reads one JSON object per line from standard input and answers each with one line:

    {"do": "load", "model": NAME, "length": L, "threads": N, "small": BOOL, "outputs": PATH,
     "prompt": [...]}           -> {"version", "load_seconds", "parameter_bytes", "row_bytes"}
    {"do": "generate", "prompt": [...], "tokens": K} -> {"tokens", "cpu": [...], "wall": [...]}

`load` runs the prompt and one further step, and writes the logits of both to the file PATH.
`generate` generates K tokens by greedy decoding; `cpu` and `wall` have the seconds of the prompt,
then those of each further step. `parameter_bytes` and `row_bytes` come from `decoders.read_bytes`.
The answer after an error is {"error": TEXT}; the child then continues.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.answering import serve_parent
from benchmarks.decoders import DECODERS, first_states, read_bytes, state_names

SMALL: Mapping[str, Mapping[str, int]] = {
    "gpt2": {"layers": 2, "hidden": 64, "heads": 4, "vocabulary": 500},
    "llama": {
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "groups": 2,
        "intermediate": 96,
        "vocabulary": 500,
    },
}
"""Tiny sizes for tests, by model. The sizes of a race are the defaults."""


class Generator(Protocol):
    """A loaded decoder and the caches of the text that it is generating."""

    def reset(self) -> None:
        """Clear the caches, so that a new text can begin."""

    def step(self, ids: Sequence[int], past: int) -> NDArray[np.float32]:
        """Process further tokens after `past` earlier ones.

        Returns the logits (vocabulary,) of the last token.
        """


class OnnxRuntime:
    """Decoder in ONNX Runtime with IOBinding: each cache is bound as both input and output."""

    def __init__(self, model: Any, threads: int, reach: Reach) -> None:
        del reach  # its caches have the model's length
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._caches = {
            name: onnxruntime.OrtValue.ortvalue_from_numpy(array)
            for name, array in first_states(model).items()
        }
        shape = [dim.dim_value for dim in model.graph.output[-1].type.tensor_type.shape.dim]
        self._binding = self._session.io_binding()
        for output, state in state_names(model).items():
            self._binding.bind_ortvalue_input(state, self._caches[state])
            self._binding.bind_ortvalue_output(output, self._caches[state])
        self._logits = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
        self._binding.bind_ortvalue_output("logits", self._logits)

    def reset(self) -> None:
        for cache in self._caches.values():
            cache.update_inplace(np.zeros(cache.shape(), np.float32))

    def step(self, ids: Sequence[int], past: int) -> NDArray[np.float32]:
        tokens, length = np.array([ids], np.int64), np.array([past], np.int32)
        self._binding.bind_cpu_input("input_ids", tokens)
        self._binding.bind_cpu_input("past_length", length)
        self._session.run_with_iobinding(self._binding)
        logits: NDArray[np.float32] = self._logits.numpy()[0]
        return logits


class OpenVino:
    """Decoder in OpenVINO in float32, with its caches as model state.

    OpenVINO's own tools export decoders in this form.
    """

    def __init__(self, model: Any, threads: int, reach: Reach) -> None:
        del reach  # its caches grow without a bound
        import openvino
        from openvino._offline_transformations import apply_make_stateful_transformation

        core = openvino.Core()
        read = core.read_model(model=model.SerializeToString())
        states = {state: output for output, state in state_names(model).items()}
        apply_make_stateful_transformation(read, states)
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,
        }
        self._request = core.compile_model(read, "CPU", settings).create_infer_request()

    def reset(self) -> None:
        self._request.reset_state()

    def step(self, ids: Sequence[int], past: int) -> NDArray[np.float32]:
        del past  # its caches know how long they are
        self._request.infer({"input_ids": np.array([ids], np.int64)}, share_inputs=True)
        logits: NDArray[np.float32] = self._request.get_tensor("logits").data[0]
        return logits


class Reach(NamedTuple):
    """Number of tokens in the prompt, and maximum number of tokens in the text."""

    prompt: int
    length: int


def tilewright(model: Any, threads: int, reach: Reach) -> Generator:
    """Load a decoder in Tilewright by the class `Decoder` of examples/generate.py."""
    from examples.generate import Decoder

    return Decoder(model, threads, reach)


@dataclass(frozen=True, slots=True)
class Engine:
    """A text-generation engine.

    `load(model, threads, reach)` loads a decoder. `reach` has the number of prompt tokens and the
    maximum number of tokens. The caches of the decoder are of kind `cache`, "fixed" or "growing".
    `package` is the distribution whose version is reported, and `module` must be importable.
    """

    name: str
    load: Callable[[Any, int, Reach], Generator]
    cache: str
    package: str
    module: str

    def is_installed(self) -> bool:
        return find_spec(self.module) is not None


ENGINES = {
    engine.name: engine
    for engine in (
        Engine("onnxruntime", OnnxRuntime, "fixed", "onnxruntime", "onnxruntime"),
        Engine("openvino", OpenVino, "growing", "openvino", "openvino"),
        Engine("untuned", tilewright, "fixed", "tilewright", "compiler"),
        Engine("untuned-growing", tilewright, "growing", "tilewright", "compiler"),
    )
}
"""All engines by name, in the order of the tables."""


def decoder(model: str, reach: Reach, cache: str, *, small: bool = False) -> Any:
    """Build a decoder model for texts of at most `reach.length` tokens.

    `small` selects tiny sizes for tests. `cache` is "fixed" or "growing".
    """
    return DECODERS[model](length=reach.length, cache=cache, **(SMALL[model] if small else {}))


def generate(
    engine: Generator,
    prompt: Sequence[int],
    tokens: int,
    choose: Callable[[NDArray[np.float32]], int],
) -> tuple[list[int], list[float], list[float]]:
    """Generate `tokens` tokens after a prompt; `choose` selects a token from logits.

    Returns the tokens, and the seconds of the prompt and of each further step as CPU time of the
    process and as wall time.
    """
    found: list[int] = []
    cpu, wall = [], []
    ids, past = list(prompt), 0
    engine.reset()
    while len(found) < tokens:
        started = time.process_time(), time.perf_counter()
        found.append(choose(engine.step(ids, past)))
        cpu.append(time.process_time() - started[0])
        wall.append(time.perf_counter() - started[1])
        ids, past = found[-1:], past + len(ids)
    return found, cpu, wall


def likeliest(logits: NDArray[np.float32]) -> int:
    return int(logits.argmax())


class Served:
    """Runs one text-generation engine in a child process, and answers the parent's requests.

    The request `load` loads a decoder. The request `generate` continues a prompt, and returns the
    tokens and the times.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loaded: Generator | None = None

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        match request["do"]:
            case "load":
                self._loaded, answer = _load(self._engine, request)
                return answer
            case "generate":
                assert self._loaded is not None
                found = generate(self._loaded, request["prompt"], request["tokens"], likeliest)
                return dict(zip(("tokens", "cpu", "wall"), found, strict=True))
            case other:
                raise ValueError(f"unknown request {other!r}")


def _load(engine: Engine, request: Mapping[str, Any]) -> tuple[Generator, dict[str, Any]]:
    prompt = request["prompt"]
    reach = Reach(len(prompt), request["length"])
    model = decoder(request["model"], reach, engine.cache, small=request["small"])
    parameter_bytes, row_bytes = read_bytes(model)
    started = time.perf_counter()
    loaded = engine.load(model, request["threads"], reach)
    del model
    first = loaded.step(prompt, 0).copy()
    second = loaded.step([0], len(prompt)).copy()
    seconds = time.perf_counter() - started
    np.savez(request["outputs"], first, second)
    return loaded, {
        "version": version(engine.package),
        "load_seconds": seconds,
        "parameter_bytes": parameter_bytes,
        "row_bytes": row_bytes,
    }


if __name__ == "__main__":
    serve_parent(Served(ENGINES[sys.argv[1]]).answer)
