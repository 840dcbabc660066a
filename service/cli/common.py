"""What several commands share: options, parsing, the console."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.terminal import say

if TYPE_CHECKING:
    from tilewright.compiler.graph.ir import Graph
    from tilewright.compiler.passes.pipeline import Observer
    from tilewright.db.stores.audit import Action, AuditStore
    from tilewright.service.client import Client
    from tilewright.service.settings import Settings


class UserError(Exception):
    """What the user gave is wrong; the message is one sentence."""


MAX_THREADS = 256
"""As in `compiler.runtime.native`, which is not imported before a command runs."""

STOP_GAIN = "0.5%"
"""As in `service.api.schemas.jobs` and `tuner.options`."""

MAX_DIMENSION = 1 << 40
"""As in `service.api.schemas.fields`."""


ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX file")]
TargetOption = Annotated[
    str, typer.Option("--target", help="'host', a name of `show targets`, or NAME:BITS")
]
ThreadsOption = Annotated[
    int, typer.Option("--threads", min=1, max=MAX_THREADS, help="Threads of a run")
]
DimsOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a named dimension; repeatable"),
]
HINTS = "LOW..HIGH[:STEP][@HINT[:SHARE],...]|@HINT[:SHARE],..."
RangesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar=f"NAME=SIZE|{HINTS}",
        help="Size of a named dimension; or a range such as 1..512 or 32..640:32, with size hints "
        "1..512@32:0.5,128:0.3; or hints alone, @128; repeatable",
    ),
]
SizesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar=f"NAME=[SIZE,...,]SIZE|{HINTS}",
        help="Sizes of a named dimension; or a range such as 1..512 or 32..640:32, which is tuned "
        "at its size hints, 1..512@32:0.5,128:0.3; or hints alone, @128; the artifact serves them "
        "all; repeatable",
    ),
]
PadOption = Annotated[
    bool,
    typer.Option("--pad", help="Pad inputs with zeros up to the artifact's next sizes"),
]
WeightLimitOption = Annotated[
    int | None,
    typer.Option(
        "--weight-limit", min=1, help="Most bytes of packed weights; what expands them gives way"
    ),
]
TrialsOption = Annotated[int, typer.Option("--trials", min=0, help="Most candidates to measure")]
SecondsOption = Annotated[
    float | None, typer.Option("--seconds", min=0.001, help="Most time to tune")
]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=(1 << 63) - 1, help="Seed of the search")
]
StopGainOption = Annotated[
    str,
    typer.Option(
        "--stop-gain", metavar="SHARE", help="End when less is expected of another minute; 0: never"
    ),
]
TargetMsOption = Annotated[
    float | None,
    typer.Option("--target-ms", min=1e-6, help="End when the kernels add up to no more"),
]
StrategyOption = Annotated[str | None, typer.Option("--strategy", help="Search strategy")]
UnconstrainedOption = Annotated[
    bool,
    typer.Option("--unconstrained", help="Search all that lowers, whatever the target's registers"),
]
ServerOption = Annotated[
    str | None, typer.Option("--server", help="URL of the service (or TILEWRIGHT_SERVER)")
]
TokenOption = Annotated[
    str | None, typer.Option("--token", help="Bearer token (or TILEWRIGHT_TOKEN)")
]


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON; all else goes to standard error")
]
DumpOption = Annotated[
    list[str] | None,
    typer.Option("--dump-after", metavar="PASS", help="Print the graph after a pass; repeatable"),
]


VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show every task, and what suggested the schedules")
]

TimingsOption = Annotated[
    bool, typer.Option("--timings", help="Print the milliseconds that each stage took")
]


def check_printing(as_json: bool, dump_after: list[str] | None) -> None:
    """One form of output at a time. Raises UserError."""
    if as_json and dump_after:
        raise UserError("--dump-after prints text and --json prints JSON: give one of them")


def dump_observer(names: list[str] | None) -> Observer | None:
    """Prints the graph after the named passes, in each of their rounds. Raises UserError."""
    if not names:
        return None
    from tilewright.compiler.graph.text import print_graph
    from tilewright.compiler.passes.pipeline import PASSES

    known = [step.__name__ for step in PASSES]
    for name in names:
        if name not in known:
            raise UserError(f"--dump-after '{name}': the passes are {', '.join(known)}")

    def observe(name: str, graph: Graph) -> None:
        if name in names:
            say(f"# after {name}\n{print_graph(graph)}")

    return observe


def parse_share(option: str, text: str) -> float:
    """0.005 from "0.5%" or "0.005". Raises UserError."""
    number = text.removesuffix("%")
    try:
        share = float(number) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UserError(f"{option} '{text}': expected a share such as 0.5% or 0.005, below 1")
    return share


def parse_dims(given: list[str] | None) -> dict[str, int]:
    """{"batch": 1} from ["batch=1"]. Raises UserError."""
    dims: dict[str, int] = {}
    for text in given or ():
        name, equals, size = text.rpartition("=")
        number = int(size) if size.isascii() and size.isdecimal() and len(size) < 20 else 0
        if not equals or not name or not 1 <= number <= MAX_DIMENSION:
            raise UserError(
                f"--dim '{text}': expected NAME=SIZE with a size from 1 to {MAX_DIMENSION}"
            )
        if dims.get(name, number) != number:
            raise UserError(f"--dim '{text}': '{name}' is {dims[name]} already")
        dims[name] = number
    return dims


def parse_sizes(given: list[str] | None) -> dict[str, tuple[int | str, ...]]:
    """{"sequence": ("1..512", 128)} from ["sequence=1..512,128"]. Raises UserError."""
    from tilewright.compiler.errors import InvalidArgumentError
    from tilewright.compiler.sizes.hinted_ranges import size_choices

    sizes: dict[str, tuple[int | str, ...]] = {}
    for text in given or ():
        name, _, given_sizes = text.rpartition("=")
        listed, at, hints = given_sizes.partition("@")
        each: list[int | str] = []
        *sizes_before, last = listed.split(",")
        for size in (*sizes_before, f"{last}{at}{hints}"):
            ranged = name and (".." in size or "@" in size)
            each.append(size if ranged else parse_dims([f"{name}={size}"])[name])
        try:
            chosen = size_choices(name, each)
        except InvalidArgumentError as error:
            raise UserError(f"--dim '{text}': {error}") from error
        if sizes.get(name, chosen) != chosen:
            raise UserError(f"--dim '{text}': '{name}' has sizes already")
        sizes[name] = chosen
    return sizes


def parse_ranges(given: list[str] | None) -> dict[str, int | str]:
    """{"sequence": "1..512"} from ["sequence=1..512"]. Raises UserError."""
    ranges: dict[str, int | str] = {}
    for name, choices in parse_sizes(given).items():
        if len(choices) != 1:
            raise UserError(f"--dim '{name}': expected one size or one range, not {len(choices)}")
        (ranges[name],) = choices
    return ranges


def existing_file(path: Path) -> Path:
    """The path, if a file is there. Raises UserError."""
    if path.is_file():
        return path
    if not path.exists():
        raise UserError(f"no such file: '{path}'")
    raise UserError(f"'{path}' is {'a folder' if path.is_dir() else 'a device or a pipe'}, no file")


def connect(server: str | None, token: str | None) -> Client:
    """A client of the service that the options, or else the settings, name. Raises UserError."""
    from tilewright.service.client import Client
    from tilewright.service.embedded import client_token

    settings = load_settings(server, token)
    if not settings.server:
        raise UserError(
            "the service's address is empty: give --server URL, or set TILEWRIGHT_SERVER to it"
        )
    if not settings.server.startswith(("http://", "https://")):
        raise UserError(f"--server '{settings.server}' is not an http or https URL")
    return Client(settings.server, client_token(settings))


def load_settings(server: str | None = None, token: str | None = None) -> Settings:
    """The settings, with what the command line says instead."""
    from tilewright.service.settings import Settings

    settings = Settings()
    changes = {"server": server, "token": token}
    return settings.model_copy(update={k: v for k, v in changes.items() if v is not None})


def write_down(
    audit: AuditStore, command: str, action: Action, subject: str, **detail: object
) -> None:
    """Add what a command on the service's own machine did to the audit log. Raises StorageError."""
    audit.add(
        action,
        subject,
        actor="",
        actor_name=f"tilewright {command}",
        origin=_who_runs_this(),
        detail=detail,
    )


def _who_runs_this() -> str:
    """The user and the machine."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name; Windows has no module `pwd`
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"
