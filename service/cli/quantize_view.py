"""Output of `tilewright quantize`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.service.cli.view import make_table
from tilewright.service.quantize.fidelity import Fidelity, OutputFidelity
from tilewright.service.quantize.report import QuantizeReport, Times
from tilewright.service.units import microseconds, milliseconds, speedup

ROWS = 40
"""Limit of the parts in a table. `--json` prints all of them."""

LEGEND = (
    "us: one run of the kernels that compute these layers; layers that share a kernel are timed "
    "as one. SQNR and cosine: of the last layer's values to those of the float32 model, with the "
    "noise that comes in from before. For layers that stay in float32, 'quantised us' is what they "
    "would take."
)


def report_view(report: QuantizeReport) -> RenderableType:
    """Return a summary of the quantisation, the outputs, and the slowest parts."""
    parts = _parts(report)
    lines: list[RenderableType] = [Text(f"{report.method}; {_samples(report)}"), Text()]
    lines += [_outputs(report.outputs), Text(), parts, Text(LEGEND, style="dim"), Text()]
    lines += [Text(line) for line in (_times(report.times), _kept(report), *report.notes) if line]
    return Group(*lines)


def decibels(fidelity: Fidelity | None) -> str:
    if fidelity is None:
        return "-"
    found = fidelity.sqnr_db
    return "exact" if found == math.inf else f"{found:.1f} dB"


def _samples(report: QuantizeReport) -> str:
    origin = "drawn samples" if report.origin == "drawn" else f"samples of {report.origin}"
    seen = ", the very ones that calibration saw" if report.seen else ""
    calibrated = f"calibrated on {report.samples}, " if report.samples else ""
    return f"{calibrated}measured on {report.measured} {origin}{seen}"


def _outputs(outputs: Sequence[OutputFidelity]) -> Table:
    table = make_table("<output", "SQNR", "cosine", "same top-1")
    for output in outputs:
        top = output.top_one
        table.add_row(
            Text(output.name),
            decibels(output.fidelity),
            f"{output.fidelity.cosine:.6f}",
            "-" if top is None else f"{top.same} of {top.rows}",
        )
    return table


def _parts(report: QuantizeReport) -> Table:
    """Return a table of the parts that take most time in float32, in the model's order."""
    table = make_table("<layers", "SQNR", "cosine", "float32 us", "quantised us", "saved us", "<as")
    parts = report.times.parts
    order = sorted(range(len(parts)), key=lambda i: -(parts[i].float_seconds or 0.0))
    for index in sorted(order[:ROWS]):
        part = parts[index]
        layers = [report.layers[layer] for layer in part.layers]
        near = next((one.fidelity for one in reversed(layers) if one.fidelity), None)
        table.add_row(
            Text(_names([one.layer.name for one in layers])),
            decibels(near),
            "-" if near is None else f"{near.cosine:.6f}",
            microseconds(part.float_seconds),
            microseconds(part.quantised_seconds),
            microseconds(part.saved_seconds),
            "float32" if layers[0].kept else "quantised",
        )
    if len(parts) > ROWS:
        table.add_row(f"... and {len(parts) - ROWS} more that take less time", *[""] * 6)
    return table


def _names(names: Sequence[str]) -> str:
    shown = " ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} +{len(names) - 3}"


def _times(times: Times) -> str:
    if not times.float_seconds or times.quantised_seconds is None:
        return f"{times.device} does not run the code: no times"
    line = (
        f"all kernels on {times.device}, {times.threads} thread{'s' * (times.threads > 1)}: "
        f"{milliseconds(times.float_seconds)} in float32, "
        f"{milliseconds(times.quantised_seconds)} quantised"
    )
    line += f", {speedup(times.quantised_seconds / times.float_seconds)} float32"
    if times.quantised_seconds > times.float_seconds:
        line += " (the quantised model is slower on this device)"
    if any(times.elsewhere):
        before, after = (milliseconds(seconds) for seconds in times.elsewhere)
        line += f"; of no quantised layer: {before} and {after} of those"
    if times.tuned:
        before, after = (f"{tuned} of {kernels}" for tuned, kernels in times.tuned)
        line += f"; tuned kernels: {before} in float32, {after} quantised"
    return line


def _kept(report: QuantizeReport) -> str:
    if not report.limit:
        return ""
    search = report.selection
    if search is None:
        return f"the loss stays within {report.limit} with all layers quantised"
    layers = sum(layer.kept for layer in report.layers)
    free = ", ".join(f"{o.name} {decibels(o.fidelity)}" for o in report.all_quantised)
    return (
        f"the loss stays within {report.limit} with {layers} of {len(report.layers)} layers in "
        f"float32: {len(search.kept)} of {len(report.times.parts)} parts, the noisiest for the "
        f"time that they save; {search.runs} combinations of parts were run, and "
        f"{len(search.rounds)} models quantised anew to be sure; with all of them quantised: {free}"
    )
