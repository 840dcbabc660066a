"""What quantising loses: `python -m benchmarks.quantized_accuracy --models mobilenetv2`.

Each model is quantised as `tilewright quantize` does it, with seeded samples. The quantised file
runs in Tilewright and in ONNX Runtime, on samples that calibration did not see, and each engine's
outputs are compared with its own of the float32 file. Then the outputs are to stay `--stated`
decibels above their noise (`--max-loss`), which has to be kept. Milliseconds are those of all
kernels of a run, as the command reports them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import models
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin
from service.jobs.local_device import LocalDevice
from service.quantize.errors import QuantizeError
from service.quantize.fidelity import Fidelity
from service.quantize.limit import LeastSqnr
from service.quantize.methods import DynamicInt8, Int4, Method, StaticInt8
from service.quantize.report import QuantizeReport
from service.quantize.run import QuantizeWork, quantize
from service.quantize.samples import Samples

MODELS = (
    *("squeezenet", "shufflenet", "mobilenetv2", "inception-v1", "inception-v2", "densenet121"),
    *("resnet50", "zfnet512", "alexnet", "bert-base-128", "vgg19"),
)
"""The nine of LIGHT_MODELS and two more, small ones first."""

METHODS: Mapping[str, Method] = {"static": StaticInt8(), "dynamic": DynamicInt8(), "int4": Int4()}
CALIBRATION = 8
HELD_OUT = 48
"""Samples; a softmax has a few large entries, and on three samples engines are 0.6 dB apart."""

SEARCHED = 8
"""Held-out samples on which a stated loss is kept: each combination of layers runs on them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model by one method; decibels are those of the output that has most noise.

    `reached`, `kept`, `of` and `kept_ms` are of the model with the stated loss, None where no
    choice of layers kept it.
    """

    model: str
    method: str
    sqnr_db: float
    onnxruntime_db: float
    float_ms: float
    quantised_ms: float
    stated_db: float
    reached_db: float | None
    kept: int | None
    layers: int
    kept_ms: float | None
    seconds: float

    @property
    def apart_db(self) -> float:
        """Above zero where Tilewright is nearer to float32."""
        return self.sqnr_db - self.onnxruntime_db


def measure(name: str, method: str, stated_db: float) -> Row:
    """Quantise a model twice: as it comes, and with a stated loss."""
    case = models.case(name)
    model = case.build()
    seeded = tuple(case.feeds(model, seed) for seed in range(CALIBRATION + HELD_OUT))
    samples = Samples(seeded[:CALIBRATION], seeded[CALIBRATION:], {}, "seeds")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, LocalDevice() as device:
        path = Path(folder, "model.onnx")
        onnx.save(model, path)
        work = QuantizeWork(path, METHODS[method], samples, device)
        made, report = quantize(work)
        theirs = onnxruntime_db(model, made, samples)
        few = replace(samples, held_out=samples.held_out[:SEARCHED])
        kept: QuantizeReport | None = None
        try:
            limited = QuantizeWork(path, METHODS[method], few, device, limit=LeastSqnr(stated_db))
            _, kept = quantize(limited)
        except QuantizeError as error:
            print(error)
    times = report.times
    return Row(
        name,
        method,
        _worst(report),
        theirs,
        1e3 * (times.float_seconds or 0.0),
        1e3 * (times.quantised_seconds or 0.0),
        stated_db,
        None if kept is None else _worst(kept),
        None if kept is None else sum(layer.kept for layer in kept.layers),
        len(report.layers),
        None if kept is None else 1e3 * (kept.times.quantised_seconds or 0.0),
        time.monotonic() - began,
    )


def onnxruntime_db(model: Any, quantised: Any, samples: Samples) -> float:
    """The SQNR of ONNX Runtime's outputs of the quantised model to those of the float32 model."""
    totals: list[Fidelity] = []
    for wanted, came in zip(
        _onnxruntime(model, samples.held_out),
        _onnxruntime(quantised, samples.held_out),
        strict=True,
    ):
        found = [Fidelity.of(w, c) for w, c in zip(wanted, came, strict=True)]
        totals = [a + b for a, b in zip(totals, found, strict=True)] if totals else found
    return min(total.sqnr_db for total in totals)


def _onnxruntime(model: Any, samples: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [session.run(None, dict(sample)) for sample in samples]


def _worst(report: QuantizeReport) -> float:
    return min(output.fidelity.sqnr_db for output in report.outputs)


def markdown(origin: str, rows: Sequence[Row]) -> str:
    """The table with where it comes from."""
    lines = [
        "# What quantising loses",
        "",
        origin,
        "",
        "Signal over quantisation noise of the worst output, of the same quantised file in "
        "Tilewright and in ONNX Runtime, each against its own float32; all kernels of a run, one "
        "thread. Then with a stated loss.",
        "",
        "| model | method | dB | ONNX Runtime's | apart | float32 ms | quantised ms | stated dB "
        "| kept dB | layers in float32 | ms then |",
        "| --- | --- " + "| --: " * 9 + "|",
    ]
    for row in rows:
        then = ["not kept", "-", "-"]
        if row.reached_db is not None and row.kept_ms is not None:
            then = [f"{row.reached_db:.1f}", f"{row.kept} of {row.layers}", f"{row.kept_ms:.3f}"]
        lines.append(
            f"| {row.model} | {row.method} | {row.sqnr_db:.2f} | {row.onnxruntime_db:.2f} "
            f"| {row.apart_db:+.2f} | {row.float_ms:.3f} | {row.quantised_ms:.3f} "
            f"| {row.stated_db:.1f} | {' | '.join(then)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(models.MODELS), default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=["static"])
    parser.add_argument("--stated", type=float, default=30.0, help="decibels to keep")
    parser.add_argument("--name", default="quantized-accuracy", help="of the files of the results")
    parser.add_argument("--results", type=Path, default=RESULTS_FOLDER)
    arguments = parser.parse_args()
    origin = Origin.of(arguments)
    peer = f"onnxruntime {version('onnxruntime')}, onnx {version('onnx')}"
    rows: list[Row] = []
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name in arguments.models:
        for method in arguments.methods:
            row = measure(name, method, arguments.stated)
            rows.append(row)
            print(
                f"{name} {method}: {row.sqnr_db:.2f} dB, {row.apart_db:+.2f}, {row.seconds:.0f} s"
            )
            text = markdown(f"{origin.sentence()} {peer}.", rows)
            (arguments.results / f"{arguments.name}.md").write_text(text)
            document = {
                "origin": asdict(origin) | {"peers": peer},
                "models": [asdict(each) | {"apart_db": each.apart_db} for each in rows],
            }
            (arguments.results / f"{arguments.name}.json").write_text(
                json.dumps(document, indent=1) + "\n"
            )
    print(text)


if __name__ == "__main__":
    main()
