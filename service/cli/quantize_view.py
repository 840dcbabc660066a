"""Formats the output of `tilewright quantize`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tilewright.service.quantize.attribution import ModelPart
from tilewright.service.quantize.fidelity import Fidelity, OutputFidelity
from tilewright.service.quantize.report import LayerReport, QuantizeReport, Times
from tilewright.service.show.console import rich_table
from tilewright.service.show.table import CellKind, Column, table
from tilewright.service.show.units import microseconds, milliseconds, speedup

ROWS = 40
"""Limit of the model parts that the table lists, the slowest ones. `--json` prints all parts."""

UNDEFINED = "n/a"
"""Text shown in place of an undefined number."""

LEGEND = (
    "us: one run of the kernels that compute these layers; layers that share a kernel are timed "
    "as one. SQNR and cosine: of the last layer's values to those of the float32 model, with the "
    "noise that comes in from before. For layers that stay in float32, 'quantised us' is what they "
    "would take."
)


def report_view(report: QuantizeReport) -> RenderableType:
    """Return a printable report: the method, the accuracy, the slowest parts and the times.

    A part is a group of layers that are timed together, because they share kernels.
    """
    parts = _parts(report)
    lines: list[RenderableType] = [Text(f"{report.method}; {_samples(report)}"), Text()]
    lines += [_outputs(report.outputs), Text(), parts, Text(LEGEND, style="dim"), Text()]
    sentences = (_times(report.times), _kept(report), _tied(report.outputs))
    lines += [Text(line) for line in (*sentences, *report.notes) if line]
    return Group(*lines)


def decibels(fidelity: Fidelity | None) -> str:
    """Return the signal-to-noise ratio (SQNR) of a quantised value as text, such as "31.5 dB".

    The text is "-" without a measurement, "exact" without noise, and "n/a" for noise without a
    signal.
    """
    if fidelity is None:
        return "-"
    found = fidelity.sqnr_db
    if found == math.inf:
        return "exact"
    if fidelity.signal == 0.0 and math.isfinite(fidelity.noise):
        return UNDEFINED
    return f"{round(found, 1) + 0.0:.1f} dB"  # 0.0 is added to -0.0, which would have a sign


def cosine_text(fidelity: Fidelity | None) -> str:
    """Return the cosine similarity of a quantised value and its float32 value as text.

    The text is "-" without a measurement, and "n/a" if the cosine is undefined.
    """
    if fidelity is None:
        return "-"
    return UNDEFINED if math.isnan(fidelity.cosine) else f"{fidelity.cosine:.6f}"


def _samples(report: QuantizeReport) -> str:
    origin = "drawn samples" if report.origin == "drawn" else f"samples of {report.origin}"
    seen = ", the very ones that calibration saw" if report.seen else ""
    calibrated = f"calibrated on {report.samples}, " if report.samples else ""
    return f"{calibrated}measured on {report.measured} {origin}{seen}"


def _outputs(outputs: Sequence[OutputFidelity]) -> Table:
    def same(output: OutputFidelity) -> str:
        top = output.top_one
        if top is None:
            return "-"
        return f"{top.same} of {top.rows}" if top.rows else UNDEFINED

    described: tuple[Column[OutputFidelity], ...] = (
        Column("output", lambda output: output.name, CellKind.NAME),
        Column("SQNR", lambda output: decibels(output.fidelity)),
        Column("cosine", lambda output: cosine_text(output.fidelity)),
        Column("same top-1", same),
    )
    return rich_table(table(described, outputs))


def _parts(report: QuantizeReport) -> Table:
    """Return a table of the slowest parts in float32, at most `ROWS`, in the model's order.

    A part is a group of layers that are timed together.
    """
    parts = report.times.parts

    def layers(part: ModelPart) -> list[LayerReport]:
        return [report.layers[layer] for layer in part.layers]

    def near(part: ModelPart) -> Fidelity | None:
        return next((one.fidelity for one in reversed(layers(part)) if one.fidelity), None)

    described: tuple[Column[ModelPart], ...] = (
        Column(
            "layers", lambda part: _names([one.layer.name for one in layers(part)]), CellKind.NAME
        ),
        Column("SQNR", lambda part: decibels(near(part))),
        Column("cosine", lambda part: cosine_text(near(part))),
        Column("float32 us", lambda part: microseconds(part.float_seconds)),
        Column("quantised us", lambda part: microseconds(part.quantised_seconds)),
        Column("saved us", lambda part: microseconds(part.saved_seconds)),
        Column(
            "as", lambda part: "float32" if layers(part)[0].kept else "quantised", CellKind.TEXT
        ),
    )
    order = sorted(range(len(parts)), key=lambda i: -(parts[i].float_seconds or 0.0))
    made = rich_table(table(described, [parts[index] for index in sorted(order[:ROWS])]))
    if len(parts) > ROWS:
        made.add_row(f"... and {len(parts) - ROWS} more that take less time", *[""] * 6)
    return made


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


def _tied(outputs: Sequence[OutputFidelity]) -> str:
    tied = [(one.name, one.top_one.tied) for one in outputs if one.top_one and one.top_one.tied]
    if not tied:
        return ""
    listed = ", ".join(f"{count} of '{name}'" for name, count in tied)
    return f"rows without a single largest element in float32, left out of top-1: {listed}"


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
