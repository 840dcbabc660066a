"""The command `bench`, which times a model on this machine or on a worker."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import (
    JsonOption,
    ModelOrArtifact,
    RangesOption,
    UserError,
    existing_file,
    load_settings,
)
from tilewright.service.cli.feeds import Feed, feeds_of
from tilewright.service.cli.given import SamplesOption, ValuesOption, given_inputs, sampled_hints
from tilewright.service.cli.local import known_facts, opened, served_facts, tell_served
from tilewright.service.cli.on_device import OnOption, device_for
from tilewright.service.cli.options import DEFAULTS
from tilewright.service.cli.terminal import console, say_json
from tilewright.service.option_texts import parse_dims, parse_ranges, parse_values
from tilewright.service.options import ModeOptions
from tilewright.service.show.units import milliseconds, speedups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from tilewright.compiler.runtime.model import Model


OURS = "tilewright"
"""Name of this engine in tables that compare engines."""


class Peer(StrEnum):
    """The engines that `bench` compares with: the names in `service.jobs.report.comparison.PEERS`.

    That module is imported only when a command runs, so the names are repeated here.
    """

    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


def bench(
    model: ModelOrArtifact,
    against: Annotated[
        Peer | None, typer.Option("--against", help="Compare with this engine")
    ] = None,
    onnx: Annotated[
        Path | None, typer.Option("--onnx", help="With an artifact: its source model")
    ] = None,
    mode: ModeOptions = DEFAULTS,
    dim: RangesOption = None,
    samples: SamplesOption = None,
    value: ValuesOption = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, max=1000, help="5 if not given")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", min=0.01, max=3600, help="Seconds of each turn; 0.5 if not given"
        ),
    ] = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time a model with the schedules in the database, interleaved with another engine.

    The speed-up is the other engine's time over ours: above 1x, Tilewright is faster. A model with
    dynamic sizes is timed at the sizes after @ in --dim. Without these, it is timed at several
    sizes of a range of --dim, or else at typical sizes. On a worker, the model alternates with its
    untuned program until the speed-up is certain.

    Example: tilewright bench model.onnx --against onnxruntime
    """
    from tilewright.compiler.errors import InvalidInputError
    from tilewright.compiler.sizes.hinted_ranges import hinted_shares
    from tilewright.service.cli.steps_view import telling
    from tilewright.service.jobs.inputs.random_choices import with_inputs
    from tilewright.service.jobs.plan.planning import ModelRequest
    from tilewright.service.jobs.plan.segment_planning import plan_first_program

    if on is not None:
        if against is not None:
            raise UserError(f"--against {against.value} runs on this machine, not on a worker")
        if model.is_dir() or onnx is not None:
            raise UserError("--on times a model with stored schedules, not an artifact")
        if samples is not None or value:
            raise UserError("--samples and --value are for this machine, not for a worker")
        if rounds is not None or seconds is not None:
            raise UserError("--rounds and --seconds are for this machine, not for a worker")
        _bench_on(on, model, mode, parse_dims(dim), as_json)
        return
    if against is not None and onnx is None and model.is_dir():
        raise UserError(f"'{model}' is an artifact: give the model for {against} with --onnx")
    ranges = parse_ranges(dim)
    source = onnx if model.is_dir() else model
    if (samples is not None or value) and source is None:
        raise UserError(f"'{model}' is an artifact: give the model of the samples with --onnx")
    dims = {name: [size] for name, size in ranges.items()}
    given = given_inputs(source or model, samples, parse_values(value), dims)
    sampled = {} if model.is_dir() else sampled_hints(model, given, dims)
    stated = {**sampled, **ranges}
    with (
        telling(console(as_json=True)) as tell,
        opened(model, mode, stated, tell) as (executable, known),
    ):
        feeds = feeds_of(executable, model, hinted_shares(dims), ranges, given)
        peer = None if against is None else (against.value, existing_file(onnx or model))
        try:
            turns = _Turns(mode.threads, rounds or 5, seconds or 0.5)
            rows, error = _race(executable, feeds, peer, turns, tell)
        except InvalidInputError as failed:
            if source is None:
                raise
            request = ModelRequest(source, given=given)
            raise with_inputs(failed, [plan_first_program(request, dims)]) from failed
    if as_json:
        say_json({"times": rows, "largest_error": error, "served": known_facts(known)})
        return
    out = console()
    out.print(_table(rows))
    if error is not None:
        out.print(f"largest error, relative to the largest output: {error:.1e}")
    tell_served(known)


@dataclass(frozen=True, slots=True)
class _Row:
    """The times of one engine at some sizes, and their ratio to the reference engine's times.

    The reference is the engine of --against, or Tilewright without --against. `ratio` is the median
    of this engine's time over the reference's time in interleaved pairs of samples. `low` and
    `high` bound its confidence interval.
    """

    sizes: str
    engine: str
    median_seconds: float
    min_seconds: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Turns:
    threads: int
    rounds: int
    seconds: float


def _race(
    executable: Model,
    feeds: Sequence[Feed],
    peer: tuple[str, Path] | None,
    turns: _Turns,
    tell: Callable[[str], None],
) -> tuple[list[_Row], float | None]:
    """Time the model on each feed. If `peer` is given, another engine and the model run in turns.

    Before each feed, `tell` is called with a line of progress.

    Args:
        executable: the compiled model.
        feeds: the inputs, one feed per size.
        peer: the other engine's name and the ONNX file that it runs; None for no comparison.
        turns: the number of turns of each engine, the seconds of a turn, and the threads.

    Returns:
        a row per feed and engine, and the largest difference between the engines' outputs as a
        fraction of the largest output; None without `peer`.
    """
    from tilewright.service.jobs.evidence.verification import largest_model_error
    from tilewright.service.jobs.report.comparison import PEERS, Run, compare, race

    rows: list[_Row] = []
    errors = []
    for feed in feeds:
        runs: dict[str, Run] = {OURS: partial(executable.run, feed.arrays)}
        if peer is not None:
            name, source = peer
            other, version = PEERS[name](source, feed.arrays, turns.threads)
            errors.append(largest_model_error(list(executable.run(feed.arrays)), list(other())))
            runs[f"{name} {version}"] = other
        at = f" at {feed.sizes}" if feed.sizes else ""
        tell(f"timing {' and '.join(runs)}{at}: {turns.rounds} times {turns.seconds:g} s each")
        timings = race(runs, threads=turns.threads, rounds=turns.rounds, turn_seconds=turns.seconds)
        reference = timings[-1]
        for timing in timings:
            found = compare(timing, reference)
            rows.append(
                _Row(
                    feed.sizes,
                    timing.name,
                    timing.median_seconds,
                    timing.min_seconds,
                    found.ratio,
                    found.interval.low,
                    found.interval.high,
                )
            )
    return rows, max(errors, default=None)


def _table(rows: Sequence[_Row]) -> Table:
    """Return a table with a row per engine and size.

    If another engine was timed, a column has the speed-up over it.
    """
    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import CellKind, Column, table

    sizes: Column[_Row] = Column("sizes", lambda row: row.sizes, CellKind.TEXT)
    others = dict.fromkeys(row.engine for row in rows if row.engine != OURS)
    described: tuple[Column[_Row], ...] = (
        *([sizes] if any(row.sizes for row in rows) else []),
        Column("engine", lambda row: row.engine, CellKind.NAME),
        Column("median", lambda row: milliseconds(row.median_seconds)),
        Column("min", lambda row: milliseconds(row.min_seconds)),
        *(Column(f"vs {other}", lambda row: speedups(asdict(row))) for other in others),
    )
    return rich_table(table(described, rows))


def _bench_on(
    on: str,
    model: Path,
    options: ModeOptions,
    dims: dict[str, int],
    as_json: bool,
) -> None:
    from tilewright.service.cli.view import selected_line
    from tilewright.service.jobs.evidence.end_to_end import select_schedules
    from tilewright.service.jobs.pipeline.timing import time_model
    from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
    from tilewright.service.storage import open_storage

    existing_file(model)
    storage = open_storage(load_settings())
    try:
        with device_for(on, "host", storage) as (device, target):
            planned = plan_model(ModelRequest(model, options.mode(target), dims))
            selected = select_schedules([planned], storage)
            (served,) = selected.planned
            timing = time_model(served, selected.schedules, device)
            where = "" if device.facts is None else f" ({device.facts.model})"
            name = f"{device.name}{where}"
    finally:
        storage.close()
    ratio, interval = timing.untuned.ratio, timing.untuned.interval
    if as_json:
        untuned = {"ratio": ratio, "low": interval.low, "high": interval.high}
        view = {"device": name, "seconds": timing.seconds, "untuned_over_served": untuned}
        say_json({**view, **served_facts(selected)})
        return
    out = console()
    out.print(
        f"{milliseconds(timing.seconds)} on {name}, the fastest run; {ratio:.2f}x untuned "
        f"({interval.low:.2f}x to {interval.high:.2f}x)",
        soft_wrap=True,
        markup=False,
    )
    out.print(selected_line(selected), soft_wrap=True, markup=False)
