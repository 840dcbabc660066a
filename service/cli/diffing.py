"""`tilewright diff`: comparison of two artifacts or jobs, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import (
    JsonOption,
    ServerOption,
    TokenOption,
    UserError,
    connect,
    may_be_id,
)
from tilewright.service.cli.terminal import console, say_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tilewright.service.client import Client
    from tilewright.service.difference import ComparedSide, ModelDifference


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="An artifact's folder, or a job")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other artifact or job")],
    everything: Annotated[
        bool, typer.Option("--all", help="Also kernels that are the same on both sides")
    ] = False,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two artifacts or jobs: kernels, times, schedules, sizes, precision.

    Kernels are matched by their workloads. Kernels of other types or layouts are matched by their
    computation ("alike"). A job's times are its measurements. Artifacts that run on this machine
    are timed per kernel. The speed-up of B over A is above 1x if B is faster.

    Example: tilewright diff before/ after/
    """
    from tilewright.service.difference import difference

    with ExitStack() as stack:
        connected: list[Client] = []

        def client() -> Client:
            if not connected:
                connected.append(stack.enter_context(connect(server, token)))
            return connected[0]

        found = difference(_side(a, client), _side(b, client))
    if as_json:
        say_json(found.to_json())
        return
    console().print(difference_view(found, everything))


def difference_view(found: ModelDifference, everything: bool = False) -> RenderableType:
    """Return a printable comparison of two artifacts or jobs.

    It has a table of differing properties, such as the target, and a line per kernel that differs.
    With `everything`, the kernels that are the same on both sides are listed too.
    """
    from rich.console import Group
    from rich.text import Text

    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import table
    from tilewright.service.show.tables.kernels import FACTS, pairs

    shown = [pair for pair in found.pairs if everything or not pair.same]
    same = len(found.pairs) - len(shown)
    parts: list[RenderableType] = [rich_table(table(FACTS, found.facts))]
    if shown:
        parts += [Text(), rich_table(table(pairs(), shown))]
    if same:
        are = "workload is" if same == 1 else "workloads are"
        parts.append(Text(f"{same} {are} the same on both sides"))
    return Group(*parts)


def _side(given: str, client: Callable[[], Client]) -> ComparedSide:
    """Return the properties and kernels of an artifact or a job, as one side of a comparison.

    Args:
        given: the artifact's folder, or the id of a job.
        client: returns a client of the service. It is called only for a job.

    Raises:
        UserError: if `given` is a file, or is neither a folder nor a job of the service. No request
            is sent for a text that cannot be an id.
    """
    from tilewright.service.client import NotKnownError
    from tilewright.service.difference import side_of_artifact, side_of_job

    folder = Path(given)
    if folder.is_dir():
        from tilewright.compiler.runtime.artifact import read_artifact

        return side_of_artifact(read_artifact(folder), _timed(folder))
    if folder.exists():
        raise UserError(f"'{given}' is a file: give an artifact's folder, or a job")
    if not may_be_id(given):
        raise UserError(f"no such file or folder, and no job of that name: '{given}'")
    try:
        return side_of_job(client().job(given), client().tasks(given))
    except NotKnownError as error:
        raise UserError(
            f"'{given}' is neither a local folder nor a job of the service: {error}"
        ) from error


def _timed(folder: Path) -> dict[str, tuple[int, float]] | None:
    """Time the kernels of an artifact on this machine.

    Returns, by kernel name, the number of calls in one run and the total seconds of these calls.
    The key "" has the number and seconds of all instructions that are not kernels, such as copies.
    Returns None if this machine cannot run the artifact, or if the sizes of its inputs are not
    fixed.
    """
    from tilewright.compiler.errors import CompilerError
    from tilewright.compiler.runtime.artifact import load_artifact
    from tilewright.compiler.runtime.executable import Executable
    from tilewright.compiler.runtime.program import KernelCall
    from tilewright.service.jobs.report.profiling import SAMPLES
    from tilewright.tuner.measure.model_runs import draw_inputs

    try:
        loaded = load_artifact(folder)
        if not isinstance(loaded, Executable):
            return None
        found = loaded.profile(draw_inputs(loaded.program.inputs), SAMPLES)
    except CompilerError:
        return None
    timed: dict[str, tuple[int, float]] = {}
    program = loaded.program
    for instruction, seconds in zip(program.walk(), found.min(axis=0), strict=True):
        name = ""
        if isinstance(instruction, KernelCall):
            name = program.kernels[instruction.kernel].name
        count, spent = timed.get(name, (0, 0.0))
        timed[name] = count + 1, spent + float(seconds)
    return timed
