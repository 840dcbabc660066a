"""The table of all commands by name, such as `job list`, in the order of `tilewright --help`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from tilewright.service.cli import (
    access,
    bench,
    cost_model,
    database,
    devices,
    diffing,
    doctor,
    explaining,
    local,
    operators,
    profiling,
    quantizing,
    records,
    remote,
    replaying,
    serving,
    targets,
    top,
    tuning,
)
from tilewright.service.cli.options import with_options
from tilewright.service.cli.verbosity import with_verbosity

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Commands that share their first word, such as `job list` and `job show`.

    Attributes:
        help: the text about the group in the output of `tilewright --help`.
        commands: the commands by their second word.
    """

    help: str
    commands: Mapping[str, Command]


TREE: Mapping[str, Command | CommandGroup] = {
    "compile": with_options(local.compile_, options=("dims", "pad", "weight_limit")),
    "run": with_options(local.run),
    "bench": with_options(bench.bench),
    "tune": with_options(tuning.tune),
    "quantize": with_options(quantizing.quantize, mode=("threads",)),
    "diff": diffing.diff,
    "doctor": doctor.doctor,
    "show": CommandGroup(
        "A model's graph, kernels and run time; operators; targets.",
        {
            "graph": with_options(local.show_graph, mode=("numerics", "precision")),
            "kernels": with_options(explaining.show_kernels),
            "time": with_options(profiling.show_time),
            "operators": operators.show_operators,
            "targets": targets.show_targets,
        },
    ),
    "job": CommandGroup(
        "Tuning jobs of a service: submit, follow, control, fetch.",
        {
            "submit": with_options(remote.submit),
            "list": remote.list_jobs,
            "show": remote.show_job,
            "watch": remote.watch_job,
            "pause": remote.pause_job,
            "resume": remote.resume_job,
            "cancel": remote.cancel_job,
            "fetch": remote.fetch_artifact,
            "replay": replaying.replay,
        },
    ),
    "device": CommandGroup(
        "Tuning devices: this machine and the workers of a service.",
        {
            "list": devices.list_devices,
            "drain": devices.drain,
            "resume": devices.resume,
            "link": devices.link,
            "check": devices.check,
        },
    ),
    "record": CommandGroup(
        "Tuning records: find, withdraw, exchange.",
        {
            "find": with_options(remote.find_records),
            "list": records.list_records,
            "withdraw": records.withdraw,
            "export": records.export,
            "import": records.import_,
            "verify": records.verify,
            "key": records.key,
        },
    ),
    "cost-model": CommandGroup(
        "Cost models: what tuning runs start from.",
        {
            "list": cost_model.list_models,
            "train": cost_model.train,
            "promote": cost_model.promote,
            "rollback": cost_model.rollback,
        },
    ),
    "token": CommandGroup(
        "Bearer tokens of a service.",
        {
            "create": access.create_token,
            "list": access.list_tokens,
            "rotate": access.rotate,
            "revoke": access.revoke,
        },
    ),
    "server": CommandGroup(
        "Processes of a service, and what happens there.",
        {
            "run": serving.serve,
            "tuner": serving.tuner,
            "worker": serving.worker,
            "top": top.top,
            "audit": access.audit,
        },
    ),
    "db": CommandGroup(
        "The database that the settings name, and its blobs.",
        {
            "check": database.check,
            "backup": database.backup,
            "restore": database.restore,
            "migrate": database.migrate,
        },
    ),
}


def paths() -> Iterator[str]:
    """Yield the name of each command, such as "job list", in the order of the help."""
    for word, found in TREE.items():
        if isinstance(found, CommandGroup):
            yield from (f"{word} {second}" for second in found.commands)
        else:
            yield word


def add_commands(app: typer.Typer) -> None:
    """Add all commands of the table `TREE` to a Typer application.

    Commands with the same first word form a group.
    """
    for word, found in TREE.items():
        if isinstance(found, CommandGroup):
            group = typer.Typer(help=found.help, no_args_is_help=True)
            for second, command in found.commands.items():
                group.command(second, cls=SingleValues)(with_verbosity(command))
            app.add_typer(group, name=word)
        else:
            app.command(word, cls=SingleValues)(with_verbosity(found))


class SingleValues(TyperCommand):
    """A command that rejects an option given twice, unless the option accepts several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            UsageError: if an option that takes one value is given repeatedly, or the arguments are
                invalid.
        """
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, count in Counter(given).items():
            if not isinstance(option, TyperOption) or option.multiple or option.is_flag:
                continue
            if count > 1 and not ctx.resilient_parsing:
                ctx.fail(f"{option.opts[0]} is given {count} times, and takes one value")
        return super().parse_args(ctx, args)


class Root(TyperGroup):
    """The group of all commands. For an unknown command, its error suggests similar commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of the first argument.

        Raises:
            UsageError: if no command has this name; the message suggests similar names.
        """
        if args[0] not in TREE and not ctx.resilient_parsing and (found := similar(args[0])):
            listed = " or ".join(f"'{each}'" for each in found)
            ctx.fail(f"No such command '{args[0]}'. Did you mean {listed}?")
        return super().resolve_command(ctx, args)


def similar(word: str) -> list[str]:
    """Return commands whose last word is similar: ["tilewright job submit"] for "submti"."""
    endings: defaultdict[str, list[str]] = defaultdict(list)
    for path in dict.fromkeys((*TREE, *paths())):
        endings[path.rpartition(" ")[2]].append(f"tilewright {path}")
    close = get_close_matches(word, endings, n=2, cutoff=0.75)
    return [path for last in close for path in endings[last]]
