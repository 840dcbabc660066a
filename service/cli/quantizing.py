"""`tilewright quantize`: quantisation to 8 or 4 bits, with its loss of accuracy and saved time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import (
    DimsOption,
    JsonOption,
    ModelPath,
    UserError,
    load_settings,
)
from tilewright.service.cli.on_device import OnOption, device_for
from tilewright.service.cli.options import DEFAULTS
from tilewright.service.cli.terminal import complain, console, note, say_json
from tilewright.service.option_texts import parse_dims
from tilewright.service.options import ModeOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilewright.compiler.program.kernels import ScheduleSource
    from tilewright.service.quantize.methods import Method
    from tilewright.service.quantize.samples import Samples

_WHERE = "an .npz file, a folder of them, or a folder of images"


def quantize(
    model: ModelPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the quantised model")],
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration", "--samples", metavar="PATH", help=f"Samples of the inputs: {_WHERE}"
        ),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Random samples: ranges and report mean little then")
    ] = False,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Quantise activations when the model runs")
    ] = False,
    int4: Annotated[
        bool, typer.Option("--int4", help="Weights of 4 bits; activations stay in float32")
    ] = False,
    block: Annotated[
        int | None,
        typer.Option("--block", help="With --int4: weights with one scale, 16 to 256; 32"),
    ] = None,
    accuracy_level: Annotated[
        int | None,
        typer.Option("--accuracy-level", help="With --int4: 4 multiplies int8 activations; 0"),
    ] = None,
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="One scale for weights, not one per channel")
    ] = False,
    ranges: Annotated[
        str | None,
        typer.Option("--ranges", help="Of calibration: minmax, entropy or percentile; minmax"),
    ] = None,
    max_loss: Annotated[
        str | None,
        typer.Option(
            "--max-loss",
            metavar="DB|PERCENT",
            help="Keep layers in float32 until outputs are 30dB above their noise, or 1% of the "
            "answers of a classification change",
        ),
    ] = None,
    mean: Annotated[
        str | None, typer.Option("--mean", help="Of images: of pixels in 0..1, with commas; 0")
    ] = None,
    std: Annotated[
        str | None, typer.Option("--std", help="Of images: what they are divided by; 1")
    ] = None,
    layout: Annotated[
        str | None, typer.Option("--layout", help="Of images: nchw or nhwc; nchw")
    ] = None,
    mode: ModeOptions = DEFAULTS,
    dim: DimsOption = None,
    as_json: JsonOption = False,
    on: OnOption = None,
) -> None:
    """Quantise a float32 model with onnxruntime, and show the loss and saved time of each layer.

    Tilewright's own executor computes the accuracy, on samples outside the calibration. Times are
    measured on the device. A model without quantisable operators is written unchanged.

    Example: tilewright quantize model.onnx -o int8.onnx --calibration samples/
    """
    from tilewright.service.cli.quantize_view import report_view
    from tilewright.service.cli.steps_view import telling
    from tilewright.service.jobs.evidence.end_to_end import select_schedules
    from tilewright.service.jobs.plan.planning import Planned
    from tilewright.service.quantize.errors import NothingToQuantizeError
    from tilewright.service.quantize.limit import parse_limit
    from tilewright.service.quantize.methods import check_installed, load_whole
    from tilewright.service.quantize.output import check_place, save_model
    from tilewright.service.quantize.run import QuantizeWork
    from tilewright.service.quantize.run import quantize as quantize_model
    from tilewright.service.storage import open_storage

    method = _method(
        dynamic=dynamic,
        int4=int4,
        block=block,
        accuracy_level=accuracy_level,
        per_tensor=per_tensor,
        ranges=ranges,
    )
    limit = None if max_loss is None else parse_limit(max_loss)
    check_installed(method)
    check_place(output, model)  # checked before the quantisation
    pictures = {"--mean": mean, "--std": std, "--layout": layout}
    samples = _samples(model, calibration, method, parse_dims(dim), pictures, random=random)
    out = console()
    storage = open_storage(load_settings())

    def serve(planned: Planned) -> tuple[Planned, ScheduleSource | None]:
        selected = select_schedules([planned], storage)
        return selected.planned[0], selected.schedules

    try:
        with (
            device_for(on, "host", storage) as (device, target),
            telling(None if as_json else out) as tell,
        ):
            made, report = quantize_model(
                QuantizeWork(model, method, samples, device, mode.mode(target), limit, serve, tell)
            )
    except NothingToQuantizeError as error:
        save_model(load_whole(model), output)
        complain(f"warning: nothing was quantised: {error}")
        if as_json:
            say_json({"output": str(output), "unchanged": str(error)})
        else:
            out.print(f"the model as it was: {output}", soft_wrap=True, markup=False)
        return
    finally:
        storage.close()
    save_model(made, output)
    if as_json:
        say_json({"output": str(output), **report.to_json()})
        return
    out.print(report_view(report))
    out.print(f"quantised model: {output}", soft_wrap=True)


def _method(
    *,
    dynamic: bool,
    int4: bool,
    block: int | None,
    accuracy_level: int | None,
    per_tensor: bool,
    ranges: str | None,
) -> Method:
    """Return the method that the options select. Raises UserError for contradictory options."""
    from tilewright.compiler.errors import unknown_choice
    from tilewright.service.quantize.methods import DynamicInt8, Int4, Ranges, StaticInt8

    if dynamic and int4:
        raise UserError("--dynamic and --int4 are two methods: give one of them")
    if not int4 and (block is not None or accuracy_level is not None):
        raise UserError("--block and --accuracy-level are for --int4")
    if int4 and per_tensor:
        raise UserError("--per-tensor is not for --int4, whose weights have a scale for each block")
    if (int4 or dynamic) and ranges is not None:
        raise UserError("--ranges are for calibration: neither --int4 nor --dynamic has any")
    if int4:
        plain = Int4()
        return Int4(
            plain.block if block is None else block,
            plain.accuracy_level if accuracy_level is None else accuracy_level,
        )
    if dynamic:
        return DynamicInt8(per_channel=not per_tensor)
    chosen = Ranges.MINMAX
    if ranges is not None:
        if ranges not in list(Ranges):
            raise UserError(unknown_choice("--ranges", ranges, Ranges))
        chosen = Ranges(ranges)
    return StaticInt8(per_channel=not per_tensor, ranges=chosen)


def _samples(
    model: Path,
    calibration: Path | None,
    method: Method,
    dims: Mapping[str, int],
    pictures: Mapping[str, str | None],
    *,
    random: bool,
) -> Samples:
    """Read the samples of `--calibration`, or generate random ones at fixed sizes.

    Args:
        model: an ONNX file.
        calibration: a file or folder of samples or images; None for random samples.
        method: the quantisation method. Static int8 needs `calibration` or `random`.
        dims: sizes of --dim by dimension.
        pictures: the user's text for each image option, such as "--mean"; None if not given.
        random: whether `--random` is given.

    Raises:
        UserError: if options contradict each other, or if static int8 has no samples.
    """
    from tilewright.compiler.errors import unknown_choice
    from tilewright.compiler.frontend.dimensions import check_dims, model_ports
    from tilewright.compiler.frontend.model_file import read_model
    from tilewright.compiler.sizes import dynamic_size
    from tilewright.service.quantize.images import ImageLayout, ImageOptions, parse_numbers
    from tilewright.service.quantize.methods import StaticInt8
    from tilewright.service.quantize.random_samples import random_samples_at_hints
    from tilewright.service.quantize.samples import model_inputs, read_samples

    if calibration is not None and random:
        raise UserError("--calibration and --random are two kinds of samples: give one of them")
    given = [option for option, text in pictures.items() if text is not None]
    if calibration is None and given:
        raise UserError(f"{given[0]} is for images of --calibration")
    if calibration is None and not random and isinstance(method, StaticInt8):
        raise UserError(
            f"static int8 takes the ranges of values from samples: give --calibration {_WHERE}; "
            "--dynamic and --int4 need none, and --random generates some, for a trial"
        )
    graph = read_model(model).proto.graph
    sizes = {name: dynamic_size(size) for name, size in check_dims(graph, dims).items()}
    if calibration is None:
        complain(
            "warning: the inputs are DRAWN AT RANDOM, not taken from real data: "
            + (
                "the ranges of values, and so the model, are good for a trial of its speed alone"
                if isinstance(method, StaticInt8)
                else "the losses that are reported may be far from those of real data"
            )
        )
        drawn = random_samples_at_hints(model, sizes)
        if drawn.dims.keys() - sizes.keys():
            listed = ", ".join(f"{name}={size}" for name, size in drawn.dims.items())
            note(f"sizes of the samples: {listed}; change with --dim")
        return drawn
    inputs = model_inputs(graph, model_ports(graph).fixed(sizes).inputs)
    options = ImageOptions()
    if text := pictures["--layout"]:
        if text not in list(ImageLayout):
            raise UserError(unknown_choice("--layout", text, ImageLayout))
        options = ImageOptions(layout=ImageLayout(text))
    if given:
        mean, std = (pictures[option] for option in ("--mean", "--std"))
        options = ImageOptions(
            options.mean if mean is None else parse_numbers("--mean", mean),
            options.std if std is None else parse_numbers("--std", std),
            options.layout,
        )
    return read_samples(calibration, inputs, options, sizes)
