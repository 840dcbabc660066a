"""Compare torch.compile backends on networks of transformers and timm: `python -m
benchmarks.torch_compile`.

Twelve architectures at small sizes with random weights run inference in float32. They are compiled
by this project's backend, by PyTorch's own (inductor, which needs a C++ compiler), and by inductor
with the option `freezing`, which makes weights constants as this backend does; eager mode is
measured too. All run in one process, alternately in a rotating order. A sample is the wall time of
one call of the module. Outputs are compared with eager mode: the largest difference, relative to
the largest output.

A run keeps the rows of other models in benchmarks/results/torch-compile.json.gz, so that a few
models can be run at a time. It needs PyTorch, transformers and timm, which are not installed in CI.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, geometric_mean, markdown_table, read_data, write_result
from tilewright.compiler.bindings.torch import tilewright
from tilewright.compiler.errors import ModelWarning

NAME = "torch-compile"
OURS, PEER, FROZEN, EAGER = "tilewright", "inductor", "inductor-freezing", "eager"
BACKENDS: Mapping[str, Mapping[str, Any]] = {
    OURS: {"backend": tilewright},
    PEER: {"backend": "inductor"},
    FROZEN: {"backend": "inductor", "options": {"freezing": True}},
}
PACKAGES = ("torch", "transformers", "timm")
TOLERANCE = 1e-4
WIDTH = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
WORDS = 5000


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one model.

    `seconds` has the time of a call by backend: the median over the rounds of each round's median.
    `compile_seconds` has the time of the first call. `error` is Tilewright's largest relative
    difference from eager mode, and `peer_error` inductor's.
    """

    model: str
    parameters: int
    seconds: Mapping[str, float]
    compile_seconds: Mapping[str, float]
    error: float
    peer_error: float
    speedup: float
    """Speed-up over inductor: the median over the rounds of the ratio of the medians."""
    frozen_speedup: float
    """The same over inductor with `freezing`."""
    versions: str


def _language(model: str, config: str, **options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def make() -> tuple[Any, dict[str, Any]]:
        import transformers

        known = {**WIDTH, "vocab_size": WORDS, **options}
        network = getattr(transformers, model)(getattr(transformers, config)(**known))
        return network, {"input_ids": torch.randint(5, WORDS, (1, 128))}

    return make


def _speech() -> tuple[Any, dict[str, Any]]:
    import transformers

    config = transformers.Wav2Vec2Config(conv_dim=(128,) * 7, **WIDTH)
    return transformers.Wav2Vec2Model(config), {"input_values": torch.randn(1, 16000)}


def _patches() -> tuple[Any, dict[str, Any]]:
    import transformers

    config = transformers.ViTConfig(image_size=160, patch_size=16, **WIDTH)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(1, 3, 160, 160)}


def _images(name: str, size: int = 160, **options: Any) -> Callable[[], tuple[Any, dict[str, Any]]]:
    def make() -> tuple[Any, dict[str, Any]]:
        import timm

        network = timm.create_model(name, pretrained=False, num_classes=100, **options)
        weight = network.get_classifier().weight
        if not weight.any():  # an untrained mixer's scores are all zero: nothing would be compared
            torch.nn.init.normal_(weight, std=0.02)
        return network, {"x": torch.randn(1, 3, size, size)}

    return make


def _declare_torchvision() -> None:
    """Declare two torchvision operators, so that importing torchvision needs no C++ library.

    If torchvision comes from a package index without CPU builds, its C++ library is linked with
    CUDA and fails to load. No model here uses the operators.
    """
    boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms"):
        try:
            torch.library.define(f"torchvision::{name}", boxes)
        except RuntimeError:
            return  # they are there


MODELS: Mapping[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "bert": _language("BertModel", "BertConfig"),
    "roberta": _language("RobertaModel", "RobertaConfig"),
    "gpt2": _language(
        "GPT2LMHeadModel", "GPT2Config", n_embd=256, n_layer=4, n_head=4, use_cache=False
    ),
    "llama": _language("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, use_cache=False),
    "t5-encoder": _language(
        "T5EncoderModel", "T5Config", d_model=256, d_kv=64, num_layers=4, num_heads=4, d_ff=1024
    ),
    "vit": _patches,
    "wav2vec2": _speech,
    "resnet18": _images("resnet18"),
    "mobilenetv3": _images("mobilenetv3_small_100"),
    "regnetx": _images("regnetx_002"),
    "convnext": _images("convnext_atto"),
    "mixer": _images("mixer_s16_224", img_size=160),
}


def _first(result: Any) -> torch.Tensor:
    """The first output of a module's result, which is a tensor, a mapping or a sequence."""
    if isinstance(result, torch.Tensor):
        return result
    values = result.values() if isinstance(result, Mapping) else result
    return next(iter(values))


def measure(name: str, rounds: int, turn_seconds: float) -> Row:
    """Compile and time one model in all backends.

    Raises SystemExit if Tilewright's outputs are wrong. A graph that Tilewright does not compile
    raises a ModelWarning as an error.
    """
    _declare_torchvision()
    torch.manual_seed(0)
    torch._dynamo.reset()
    network, given = MODELS[name]()
    network.eval()
    calls: dict[str, Callable[[], Any]] = {EAGER: lambda: network(**given)}
    first_seconds = {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ModelWarning)
        wanted = _first(calls[EAGER]())
        errors = {}
        for backend, chosen in BACKENDS.items():
            torch._dynamo.reset()  # what was compiled before stays as it is
            compiled = torch.compile(network, **chosen)
            started = time.perf_counter()
            found = _first(compiled(**given))
            first_seconds[backend] = time.perf_counter() - started
            errors[backend] = float((found - wanted).abs().max() / wanted.abs().max())
            calls[backend] = lambda compiled=compiled: compiled(**given)  # type: ignore[misc]
        if not errors[OURS] <= TOLERANCE:
            raise SystemExit(f"{name}: outputs differ from eager mode's by {errors[OURS]:.1e}")
        turns = _turns(calls, rounds, turn_seconds)
    ratios = {
        peer: median(theirs / ours for theirs, ours in zip(turns[peer], turns[OURS], strict=True))
        for peer in (PEER, FROZEN)
    }
    return Row(
        name,
        sum(each.numel() for each in network.parameters()),
        {each: median(times) for each, times in turns.items()},
        first_seconds,
        errors[OURS],
        errors[PEER],
        ratios[PEER],
        ratios[FROZEN],
        ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES),
    )


def _turns(
    calls: Mapping[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Time the calls alternately; returns, by name, the median seconds of a call in each round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        shift = number % len(names)
        for name in [*names[shift:], *names[:shift]]:
            call = calls[name]
            call()
            samples: list[float] = []
            ends = time.perf_counter() + seconds
            while len(samples) < 3 or time.perf_counter() < ends:
                started = time.perf_counter()
                call()
                samples.append(time.perf_counter() - started)
            found[name].append(median(samples))
    return found


def page(origin: Origin, rows: Sequence[Row], threads: int) -> str:
    """The benchmark's report in Markdown, with a row per model."""
    header = ["model", "parameters", "eager ms", "inductor ms", "freezing ms", "tilewright ms"]
    header += ["over inductor", "over freezing", "over eager", "difference", "inductor's"]
    header += ["first call s", "inductor's"]
    table = [
        [
            row.model,
            f"{row.parameters / 1e6:.1f} M",
            *[f"{1e3 * row.seconds[each]:.2f}" for each in (EAGER, PEER, FROZEN, OURS)],
            f"{row.speedup:.2f}",
            f"{row.frozen_speedup:.2f}",
            f"{row.seconds[EAGER] / row.seconds[OURS]:.2f}",
            f"{row.error:.0e}",
            f"{row.peer_error:.0e}",
            *[f"{row.compile_seconds[each]:.1f}" for each in (OURS, PEER)],
        ]
        for row in rows
    ]
    mean = geometric_mean([row.speedup for row in rows])
    frozen = geometric_mean([row.frozen_speedup for row in rows])
    eager = geometric_mean([row.seconds[EAGER] / row.seconds[OURS] for row in rows])
    text = " ".join((__doc__ or "").split("\n\n")[1].split())
    lines = [
        f"# torch.compile, {threads} thread{'s' if threads > 1 else ''}, batch 1, float32",
        "",
        f"{origin.sentence()} {rows[-1].versions}.",
        "",
        text,
        "",
        f"Geometric means over {len(rows)} models: {mean:.2f} times inductor's speed, "
        f"{frozen:.2f} times that with freezing, {eager:.2f} times that of eager mode. First calls "
        "include tracing; what inductor and this backend kept of earlier runs shortens them.",
        "",
        markdown_table(header, table, text=1),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: measure models, and write the report of all measured models."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_compile", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turn-seconds", type=float, default=0.3)
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / NAME, help="the stem")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    origin = Origin.of(options)
    stored = options.output.with_suffix(".json.gz")
    rows: dict[str, Row] = {}
    if stored.exists():
        data = read_data(stored)
        if data["origin"]["options"].get("threads") == options.threads:
            rows = {row["model"]: Row(**row) for row in data["rows"]}
    for name in options.models:
        rows[name] = row = measure(name, options.rounds, options.turn_seconds)
        ordered = [rows[each] for each in MODELS if each in rows]
        result = {"rows": [asdict(each) for each in ordered]}
        write_result(options.output, origin, result, page(origin, ordered, options.threads))
        print(f"{name}: {row.speedup:.2f} times inductor", flush=True)


if __name__ == "__main__":
    main()
