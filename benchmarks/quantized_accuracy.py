"""Measure how much quantisation changes the outputs of models, and compare with ONNX Runtime.

    python -m benchmarks.quantized_accuracy --models mobilenetv2

Each model is quantised as by `tilewright quantize`, with seeded calibration samples. The quantised
model runs in Tilewright and in ONNX Runtime on other samples. Each engine's outputs are compared
with the same engine's outputs of the float32 model. ONNX Runtime runs the quantised model twice.
The first run computes node by node, as ONNX specifies; the second run uses fused kernels, which
round at other places.

In deep models, one value that is rounded to the other side of a tie can cause a third of all noise.
Therefore a difference in decibels is reported with its standard error over the samples.

In addition, the model is quantised with a required quality (`--max-loss`): the outputs must stay
`--stated` decibels above their noise. Layers that cause too much noise then remain in float32.
Milliseconds are the sums over all kernels of a run, as `tilewright quantize` reports them. With
`--stated 0`, the benchmark only compares the engines.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import models
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, write_data
from tests.exact_int8 import exact_int8
from tilewright.compiler.api import compile_model
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.quantize.errors import QuantizeError
from tilewright.service.quantize.fidelity import Fidelity
from tilewright.service.quantize.limit import LeastSqnr
from tilewright.service.quantize.methods import DynamicInt8, Int4, Method, StaticInt8
from tilewright.service.quantize.report import QuantizeReport
from tilewright.service.quantize.run import QuantizeWork, quantize
from tilewright.service.quantize.samples import Samples

MODELS = (
    *("squeezenet", "shufflenet", "mobilenetv2", "inception-v1", "inception-v2", "densenet121"),
    *("resnet50", "zfnet512", "alexnet", "bert-base-128", "vgg19"),
)
"""The nine models of LIGHT_MODELS and two others, small ones first."""

METHODS: Mapping[str, Method] = {"static": StaticInt8(), "dynamic": DynamicInt8(), "int4": Int4()}
CALIBRATION = 8
HELD_OUT = 192
"""Default number of samples on which the engines are compared.

A softmax has only a few large values: on 3 samples the engines differ by 0.6 dB. On 48 samples the
standard error of a difference is up to 0.6 dB, and on 192 samples up to 0.2 dB.
"""

SEARCHED = 8
"""Number of held-out samples on which a required quality is checked. Each combination of layers
runs on all of them."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Quantisation noise of ONNX Runtime, and its difference from Tilewright's.

    Attributes:
        sqnr_db: ONNX Runtime's ratio of signal to quantisation noise, in decibels.
        apart_db: Tilewright's ratio minus ONNX Runtime's, in decibels. If it is positive,
            Tilewright's outputs are closer to those of the float32 model.
        error_db: the standard error of `apart_db` over the samples.
    """

    sqnr_db: float
    apart_db: float
    error_db: float


Noise = Sequence[Sequence[Fidelity]]
"""Fidelity of each output on each sample: the quantised model against the float32 model."""

Outputs = list[list[np.ndarray]]
Run = Callable[[Any, Sequence[Mapping[str, np.ndarray]]], Outputs]
"""Runs a model on samples, and returns all outputs per sample."""


@dataclass(frozen=True, slots=True)
class Row:
    """Result of quantising one model by one method.

    All ratios of signal to noise are in decibels, and refer to the output with the most noise. The
    fields `reached_db`, `kept` and `kept_ms` are None if no quality was required, or if no choice
    of layers reached the required quality. Without a required quality, no times are measured.

    Attributes:
        samples: the number of samples on which the engines are compared.
        sqnr_db: the ratio in Tilewright, if all layers are quantised.
        plain, fused: the comparison with ONNX Runtime, which computes node by node (`plain`) or
            with an optimised graph (`fused`).
        float_ms, quantised_ms: the time of the float32 and of the quantised model, in ms.
        stated_db: the required ratio; 0 if none is required.
        reached_db: the ratio of the model that was quantised with the required quality.
        kept: the number of layers that stay in float32 in this model, of `layers` in total.
        kept_ms: the time of this model in ms.
        seconds: the duration of the measurement.
    """

    model: str
    method: str
    samples: int
    sqnr_db: float
    plain: Peer
    fused: Peer
    float_ms: float | None
    quantised_ms: float | None
    stated_db: float
    reached_db: float | None
    kept: int | None
    layers: int
    kept_ms: float | None
    seconds: float


def measure(name: str, method: str, stated_db: float, held_out: int) -> Row:
    """Quantise a model by one method, and compare its outputs in Tilewright and in ONNX Runtime.

    Unless `stated_db` is 0, the model is also quantised with a required quality: a ratio of signal
    to noise of at least `stated_db` decibels. The engines are compared on `held_out` samples that
    are not used for calibration.
    """
    case = models.case(name)
    model = case.build()
    seeded = tuple(case.feeds(model, seed) for seed in range(CALIBRATION + held_out))
    samples = Samples(seeded[:CALIBRATION], seeded[CALIBRATION:], {}, "seeds")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, LocalDevice() as device:
        path = Path(folder, "model.onnx")
        onnx.save(model, path)
        work = QuantizeWork(path, METHODS[method], samples, device)
        made, report = quantize(work)
        ours = noise(_tilewright, model, made, samples)
        plain, fused = (
            peer(ours, noise(partial(_onnxruntime, fused=fused), model, made, samples))
            for fused in (False, True)
        )
        few = replace(samples, held_out=samples.held_out[:SEARCHED])
        kept: QuantizeReport | None = None
        try:
            if stated_db:
                limit = LeastSqnr(stated_db)
                _, kept = quantize(QuantizeWork(path, METHODS[method], few, device, limit=limit))
        except QuantizeError as error:
            print(error)
    before, after = report.times.float_seconds, report.times.quantised_seconds
    return Row(
        name,
        method,
        held_out,
        least(ours),
        plain,
        fused,
        1e3 * before if before and stated_db else None,
        1e3 * after if after and stated_db else None,
        stated_db,
        None if kept is None else _worst(kept),
        None if kept is None else sum(layer.kept for layer in kept.layers),
        len(report.layers),
        None if kept is None else 1e3 * (kept.times.quantised_seconds or 0.0),
        time.monotonic() - began,
    )


def noise(run: Run, model: Any, quantised: Any, samples: Samples) -> Noise:
    """Compare a quantised model with the float32 model in one engine.

    `run` runs a model in the engine. Returns the deviation (`Fidelity`) of each output on each
    sample.
    """
    return [
        [Fidelity.of(wanted, came) for wanted, came in zip(*outputs, strict=True)]
        for outputs in zip(
            run(model, samples.held_out), run(quantised, samples.held_out), strict=True
        )
    ]


def least(found: Noise) -> float:
    """Ratio of signal to quantisation noise of the noisiest output, over all samples, in dB."""
    return min(sum(output, Fidelity()).sqnr_db for output in zip(*found, strict=True))


def peer(ours: Noise, theirs: Noise) -> Peer:
    """Compare the noise of two engines.

    The standard error of the difference is estimated by the jackknife.
    """
    whole, count = least(theirs), len(ours)
    left = [
        least([*ours[:i], *ours[i + 1 :]]) - least([*theirs[:i], *theirs[i + 1 :]])
        for i in range(count)
        if count > 1
    ]
    error = math.sqrt((count - 1) * float(np.var(left))) if left else math.inf
    return Peer(whole, least(ours) - whole, error)


def _tilewright(model: Any, samples: Sequence[Mapping[str, np.ndarray]]) -> Outputs:
    compiled = compile_model(model, keep=False)
    return [[np.array(array) for array in compiled.run(dict(each))] for each in samples]


def _onnxruntime(
    model: Any, samples: Sequence[Mapping[str, np.ndarray]], *, fused: bool
) -> Outputs:
    import onnxruntime

    levels = onnxruntime.GraphOptimizationLevel
    options = exact_int8()
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if fused else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [session.run(None, dict(sample)) for sample in samples]


def _worst(report: QuantizeReport) -> float:
    return min(output.fidelity.sqnr_db for output in report.outputs)


def markdown(origin: str, rows: Sequence[Row]) -> str:
    """The benchmark's report in Markdown, with a row per model and method."""
    lines = [
        "# What quantising loses",
        "",
        origin,
        "",
        "Signal over quantisation noise of the worst output, of the same quantised file in "
        "Tilewright and in ONNX Runtime, each against its own float32: node by node, which is what "
        "ONNX states, and with its fused kernels. Differences with their standard errors over the "
        "samples. All kernels of a run, one thread. Then with a stated loss.",
        "",
        "| model | method | samples | dB | ORT, node by node | apart | ORT, fused | apart "
        "| float32 ms | quantised ms | stated dB | kept dB | layers in float32 | ms then |",
        "| --- | --- " + "| --: " * 12 + "|",
    ]
    for row in rows:
        then = ["not kept" if row.stated_db else "-", "-", "-"]
        if row.reached_db is not None:
            then = [f"{row.reached_db:.1f}", f"{row.kept} of {row.layers}", _ms(row.kept_ms)]
        lines.append(
            f"| {row.model} | {row.method} | {row.samples} | {row.sqnr_db:.2f} "
            f"| {_peer_cells(row.plain)} | {_peer_cells(row.fused)} | {_ms(row.float_ms)} "
            f"| {_ms(row.quantised_ms)} | {row.stated_db or '-'} | {' | '.join(then)} |"
        )
    return "\n".join(lines) + "\n"


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.3f}"


def _peer_cells(found: Peer) -> str:
    return f"{found.sqnr_db:.2f} | {found.apart_db:+.2f} ± {found.error_db:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(models.MODELS), default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=["static"])
    parser.add_argument("--stated", type=float, default=30.0, help="decibels to keep; 0: none")
    parser.add_argument("--samples", type=int, default=HELD_OUT, help="held out, to compare on")
    parser.add_argument("--name", default="quantized-accuracy", help="of the files of the results")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER)
    arguments = parser.parse_args()
    origin = Origin.of(arguments)
    peer = f"onnxruntime {version('onnxruntime')}, onnx {version('onnx')}"
    rows: list[Row] = []
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        for method in arguments.methods:
            row = measure(name, method, arguments.stated, arguments.samples)
            rows.append(row)
            apart = f"{row.plain.apart_db:+.2f}, {row.fused.apart_db:+.2f}"
            print(f"{name} {method}: {row.sqnr_db:.2f} dB, {apart}, {row.seconds:.0f} s")
            text = markdown(f"{origin.sentence()} {peer}.", rows)
            (arguments.results / f"{arguments.name}.md").write_text(text)
            document = {
                "origin": asdict(origin) | {"peers": peer},
                "models": [asdict(each) for each in rows],
            }
            stored = arguments.results / f"{arguments.name}.json.gz"
            write_data(stored, json.dumps(document, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
